"""A filter and a batch window under a real daemon with a real child: KPL aggregates, frames, a stop, the stored checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local
from tests.unit.records.aggregates import aggregate

pytestmark = pytest.mark.timeout(300)

SIZED: Final = f"{PROCESSORS}.sized"
SHARD: Final = "shardId-000000000000"
FILTER: Final = '{"data": {"order": {"type": ["new"]}}}'


def put(app: Application, data: bytes) -> str:
    """Write one record; its sequence number."""
    answer = app.kinesis.put_record(StreamName=app.name, Data=data, PartitionKey="key")
    return answer["SequenceNumber"]


def order(number: int, kind: str) -> bytes:
    return json.dumps({"order": {"type": kind, "number": number}}).encode()


def batches(app: Application) -> list[list[str]]:
    path = app.directory / "ledgers" / "worker" / "batches"
    whole = path.read_text("utf-8").rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def stored(app: Application) -> tuple[str | None, str | None]:
    row = app.rows().get(SHARD, {})
    return row.get("checkpoint", {}).get("S"), row.get("checkpointSubSequenceNumber", {}).get("N")


def test_a_child_is_given_what_matches_and_the_rest_is_passed_over(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "filtered", shards=1) as app:
        first = put(app, order(0, "new"))
        put(app, b"no JSON")
        with app.daemon(SIZED, {"idleTimeBetweenReadsInMillis": 200, "recordFilter": FILTER}) as daemon:
            wait_until(lambda: stored(app)[0] == first, "the child has checkpointed the first")
            kinds = ("new", "old", "sent")
            together = aggregate(("key", order(each, kinds[each % 3]), None) for each in range(1, 12))
            last = put(app, together)
            wait_until(lambda: sum(map(len, batches(app))) == 4, "those in the aggregate")
            Event().wait(2)  # the next reads tell that what is behind them does not match
            daemon.stop()
        texts = [json.loads(text)["order"] for batch in batches(app) for text in batch]
        assert [each["number"] for each in texts] == [0, 3, 6, 9]
        assert stored(app) == (last, "10"), "to the end of the aggregate, whose last record did not match"


def test_batches_are_gathered_and_a_stop_gives_what_there_is(local: Local, tmp_path: Path) -> None:
    more = {"idleTimeBetweenReadsInMillis": 200, "batchWindowMillis": 60_000, "batchMaxRecords": 5}
    with application(local, tmp_path, "gathered", shards=1) as app:
        with app.daemon(SIZED, more) as daemon:
            daemon.wait_for("child_started", shard_id=SHARD)
            last = None
            for number in range(7):
                last = put(app, str(number).encode())
                Event().wait(0.3)
            wait_until(lambda: len(batches(app)) == 1, "the first five")
            Event().wait(1.0)
            daemon.stop()
        assert batches(app) == [["0", "1", "2", "3", "4"], ["5", "6"]]
        assert stored(app)[0] == last
