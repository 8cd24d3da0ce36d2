"""A dead letter for tests."""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.records.dead_letter import DeadLetter
from kcl_protocol.messages import Record

LETTER = DeadLetter(
    record=Record("cG9pc29u", "k\u00fc\u2028", "4951", 1_770_000_000_123, 7),
    application_name="billing",
    stream_name="orders",
    stream_arn="arn:aws:kinesis:eu-west-1:111122223333:stream/orders",
    shard_id="shardId-000000000003",
    worker_id="host-1",
    set_aside_ms=1_770_000_009_000,
    failures=3,
    error="child ended with exit code 3 during processRecords",
    stderr=("Traceback", "ValueError: \ud800 no".encode("utf-8", "replace").decode()),
)


def letter(number: int) -> DeadLetter:
    """One of many."""
    return replace(LETTER, record=replace(LETTER.record, sequence_number=str(number)))
