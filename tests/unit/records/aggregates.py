"""KPL aggregates for tests, as the reference encoder writes them, and broken ones."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from aws_kinesis_agg.aggregator import RecordAggregator, messages_pb2

from kcl_daemon.leases.lease import HashRange
from kcl_daemon.records.kpl import MAGIC, Deaggregator
from kcl_daemon.records.payload import AnyRecord, RawRecord, raw_record
from kcl_protocol.messages import Record

# No stubs: the module is made of descriptors at run time.
AggregatedRecord: Any = cast("Any", messages_pb2).AggregatedRecord

UserRecord = tuple[str, bytes, str | None]
"""Partition key, data, explicit hash key."""


def aggregate(records: Iterable[UserRecord]) -> bytes:
    """The data of one Kinesis record; the reference encoder refuses what would be more than 1 MiB."""
    aggregator = RecordAggregator()
    for key, data, hash_key in records:
        full = aggregator.add_user_record(key, data, hash_key)
        assert full is None, "more than one Kinesis record holds"
    packed = aggregator.clear_and_get()
    assert packed is not None, "nothing was added"
    return cast("tuple[str, str, bytes]", packed.get_contents())[2]


def sealed(message: bytes) -> bytes:
    """A message as the data of an aggregate, whatever is in it."""
    return MAGIC + message + hashlib.md5(message).digest()


def outer(data: bytes, sequence_number: str = "49", arrival_ms: int | None = 1_770_000_000_123) -> RawRecord:
    """A Kinesis record with such data."""
    return raw_record(Record(base64.b64encode(data).decode(), "outer key", sequence_number, arrival_ms))


def decoded(record: AnyRecord) -> tuple[str, bytes]:
    """Partition key and data of a record."""
    text = bytes(record.partition_key).decode()
    data = base64.b64decode(bytes(record.data)[1:-1], validate=True)
    return cast("str", json.loads(text)), data


def silent(reason: str, sequence_number: str) -> None:
    """A complaint that must not come."""
    raise AssertionError(f"{sequence_number}: {reason}")


def apart(
    data: bytes, hash_range: HashRange | None = None, on_malformed: Callable[[str, str], None] = silent
) -> Sequence[AnyRecord]:
    """What comes of a Kinesis record with such data."""
    pieces = Deaggregator(hash_range, on_malformed)(outer(data))
    return [record for piece, _ in pieces for record in piece]
