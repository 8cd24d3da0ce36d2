"""Small parts of the engine's tests that need no JVM: batches of records, a spool, books as Spark writes them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kcl_landing.positions import Position, Positions
from kcl_landing.records import Record, RecordBatch, to_arrow
from kcl_spark.positions import to_offset
from kcl_spark.segments import Segment
from kcl_spark.spool import Spool
from kcl_spark.stores import FolderStore

SHARD = "shardId-000000000000"
OTHER = "shardId-000000000001"
ME = object()
"""Who serves the shards of these tests."""


def at(number: int, sub: int = 0) -> Position:
    return number, sub


def record(number: int, sub: int = 0, data: bytes = b"x") -> dict[str, Any]:
    return {
        "data": base64.b64encode(data).decode(),
        "partitionKey": "key",
        "sequenceNumber": str(number),
        "approximateArrivalTimestamp": 1_735_689_600_250,
        "subSequenceNumber": sub,
        "action": "record",
    }


def taken(record: Mapping[str, Any]) -> Record:
    """A record as the engine reads it."""
    return msgspec.json.decode(json.dumps(record).encode(), type=Record)


def rows(first: int, last: int, shard_id: str = SHARD) -> RecordBatch:
    return rows_of([record(number) for number in range(first, last + 1)], shard_id)


def rows_of(records: Sequence[Mapping[str, Any]], shard_id: str = SHARD) -> RecordBatch:
    return to_arrow([taken(each) for each in records], stream="words", shard_id=shard_id)


def fill(spool: Spool, first: int, last: int, shard_id: str = SHARD) -> None:
    """Records of these numbers arrive, in a segment of their own."""
    spool.add(shard_id, rows(first, last, shard_id), at(last), ME)
    spool.flush(shard_id)


def segment(after: int, last: int, size_bytes: int = 100, shard_id: str = SHARD) -> Segment:
    return Segment(shard_id, at(after), at(last), last - after, size_bytes)


def plan(folder: Path, batch_id: int, end: Positions, *, committed: bool) -> None:
    """Write the books of a batch as Spark does."""
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / str(batch_id)).write_text(
        f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(to_offset(end))}'
    )
    if committed:
        (folder / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def move_watermark(checkpoint: Path, watermark_ms: int) -> None:
    """Of the newest commit, as an event time of that moment moves it."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    text = re.sub(r'WatermarkMs":[0-9]+', f'WatermarkMs":{watermark_ms}', newest.read_text())
    assert str(watermark_ms) in text
    newest.write_text(text)
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def message(action: str, **fields: Any) -> bytes:
    return json.dumps({"action": action, **fields}).encode() + b"\n"


def folder_of(spool: Spool) -> Path:
    assert isinstance(spool.store, FolderStore)
    return spool.store.folder


def files(spool: Spool, shard_id: str = SHARD) -> list[str]:
    return sorted(path.name for path in (folder_of(spool) / shard_id).glob("*.arrow"))


def no_tell(_level: str, _event: str, /, **_fields: object) -> None:
    """A log that nobody reads."""


class Told:
    """A log that remembers the names of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, _level: str, event: str, /, **_fields: object) -> None:
        self.events.append(event)

    def has(self, event: str) -> bool:
        return event in self.events


def positions(numbers: Mapping[str, int]) -> dict[str, Position]:
    return {shard: at(number) for shard, number in numbers.items()}
