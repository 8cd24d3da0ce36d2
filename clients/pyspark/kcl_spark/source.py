"""The data source `kcl_spool`, which reads the engine's spool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from kcl_landing.control import monotonic_s, pause
from kcl_landing.positions import START, Position, to_text
from kcl_landing.records import RecordBatch
from kcl_spark.positions import from_offset, to_offset
from kcl_spark.segments import Arrivals, Segment, SegmentRange, ends, pieces, read_arrivals, read_range, tasks
from kcl_spark.stores import FolderStore, StoredShard

FORMAT: Final = "kcl_spool"
COLUMNS: Final = {
    "kcl": "data BINARY, partition_key STRING, stream STRING, shard_id STRING, sequence_number STRING, "
    "sub_sequence_number LONG, approximate_arrival_timestamp TIMESTAMP",
    "aws": "data BINARY, partitionKey STRING, streamName STRING, shardId STRING, sequenceNumber STRING, "
    "subSequenceNumber LONG, approximateArrivalTimestamp TIMESTAMP",
}
_POLL_S: Final = 0.02
_DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024


class LostRange(Exception):
    """The engine changes the plan."""


class KclDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return COLUMNS[self.options.get("columns", "kcl")]

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return KclStreamReader(self.options, schema.fieldNames())


@dataclass
class Task(InputPartition):
    ranges: list[tuple[str, Position, Position]]

    def __post_init__(self) -> None:
        super().__init__(None)


class KclStreamReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str], names: Sequence[str]) -> None:
        self._store = FolderStore(Path(options["spool"]))
        self._max_bytes = int(options.get("maxBytesPerTrigger", _DEFAULT_MAX_BYTES))
        self._max_tasks = int(options.get("maxTasks", 8))
        self._lost_s = int(options.get("lostAfterMillis", 60_000)) / 1000
        self._names = list(names)
        self._arrivals: dict[tuple[str, str], list[Arrivals]] = {}
        self._earlier = self._arrivals

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Empty: the daemon decides."""
        return to_offset({})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._max_bytes)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        before = _positions(start)
        # It rises after segments are written, and falls before a lease goes.
        horizon_ms = self._store.horizon_ms()
        held = {shard: stored for shard, stored in self._store.poll().items() if stored.grant.held}
        horizon_ms = min(horizon_ms, self._store.horizon_ms())
        spooled = {shard: stored.segments for shard, stored in held.items()}
        granted = {shard: stored.grant.after for shard, stored in held.items()}
        self._earlier, self._arrivals = self._arrivals, {}
        try:
            reached = ends(before, spooled, granted, most, horizon_ms=horizon_ms, times=self._times)
        except FileNotFoundError:
            reached = before
        return to_offset(reached)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Waits until all records of the batch are here.

        LostRange: for `lostAfterMillis` no lease could bring them. MissingRange: later ones are here.
        """
        before, after = _positions(start), _positions(end)
        seen = self._store.poll()
        whole = [
            self._pieces(shard, before.get(shard, START), last, seen)
            for shard, last in sorted(after.items())
            if last > before.get(shard, START)
        ]
        return [
            Task([(self._store.location(each.segment), each.after, each.last) for each in its_pieces])
            for its_pieces in tasks(whole, self._max_tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, Task), "partitions() gives tasks"
        for location, after, last in partition.ranges:
            for batch in read_range(location, after, last):
                yield batch.rename_columns(self._names)

    def _times(self, segment: Segment) -> list[Arrivals]:
        key = (segment.shard_id, segment.name)
        if key not in self._arrivals:
            known = self._earlier.get(key)
            self._arrivals[key] = read_arrivals(self._store.location(segment)) if known is None else known
        return self._arrivals[key]

    def _pieces(
        self, shard_id: str, after: Position, last: Position, seen: Mapping[str, StoredShard]
    ) -> list[SegmentRange]:
        deadline_s = monotonic_s() + self._lost_s
        while True:
            stored = seen.get(shard_id, StoredShard())
            if stored.has(shard_id, after, last):
                return pieces(stored.segments, after, last)
            if stored.grant.held:
                deadline_s = monotonic_s() + self._lost_s
            elif monotonic_s() >= deadline_s:
                raise LostRange(
                    f"{shard_id}: no lease brings the records ({to_text(after)}, {to_text(last)}]"
                )
            pause(_POLL_S)
            seen = self._store.poll()


def _positions(offset: dict[str, Any]) -> dict[str, Position]:
    positions = from_offset(offset)
    assert positions is not None, "Spark gives a source its own offsets"
    return positions
