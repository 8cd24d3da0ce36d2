"""Begins the snapshot of a table, once for each application and stream.

A coordinator row (`leases/text_row.py`) says when it began and in how many segments: two leaders make the same leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from kcl_daemon import faults
from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.fleet.table_views import write_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Row
from kcl_daemon.leases.text_row import text_of, text_write
from kcl_daemon.leases.worker_row import incarnation_of, workers_of
from kcl_daemon.ports import ScannedTable, ScanPort, StreamRef, Table
from kcl_daemon.shards.lineage import Segment
from kcl_daemon.shards.snapshot import hours_of, segment_leases, segments_for, snapshot_in, units_for

_KEY: Final = "daemon/snapshot/"
# An older one was over, or given up, before the leases were deleted.
_STALE_MS: Final = 3_600_000
_LATEST_HOURS: Final = 20.0


class SnapshotStart:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        workers: Table,
        scan: ScanPort,
        settings: ChangesSettings,
    ) -> None:
        self._context = context
        self._table = table
        self._workers = workers
        self._scan = scan
        self._settings = settings
        self._log = context.log
        self._said = set[str]()
        self._over = set[Segment]()

    async def leases(self, stream: StreamRef) -> list[Lease]:
        """Of the segments, for a stream without leases. Empty: workers of other programs stand in the way."""
        java = await self._java_workers()
        if java:
            self._log.error(
                "snapshot_refused",
                worker_ids=java,
                advice="Java workers of this application live, and would take a segment of the table for a shard. Stop "
                "them, or take the snapshot with another applicationName",
            )
            return []
        first = await self._begun(stream)
        return segment_leases(first.begun_ms, first.count, stream.identity)

    def is_not_taken(self, stream: StreamRef, leases: Sequence[Lease]) -> None:
        if _key(stream) not in self._said and snapshot_in(leases) is None:
            self._log.info(
                "snapshot_not_taken",
                stream=stream.name,
                leases=len(leases),
                advice="there are leases of this stream already: its snapshot is over, or was never asked for. To take "
                "one, use a new applicationName",
            )
        self._said.add(_key(stream))

    async def over(self, stream: StreamRef, leases: Sequence[Lease]) -> None:
        """Only one leader says it. Never raises for AWS."""
        first = snapshot_in(leases)
        if first is None or first in self._over:
            return
        done = {lease.shard_id for lease in leases if lease.is_finished}
        if not all(each.shard_id in done for each in first.all):
            return
        try:
            row = await self._table.get(_key(stream))
            if row is not None and _segment(row) == first and _fields(row).get("overMs") is None:
                await self._say_over(stream, row, first)
            self._over.add(first)
        except AwsError as error:
            self._log.debug("snapshot_end_not_noted", error=str(error))

    async def _say_over(self, stream: StreamRef, row: Row, first: Segment) -> None:
        over_ms = self._context.service_ms
        applied, _ = await self._write(stream, row, first, over_ms)
        if applied:
            seconds = (over_ms - first.begun_ms) // 1000
            self._log.info("snapshot_over", stream=stream.name, seconds=seconds, segments=first.count)

    async def _java_workers(self) -> list[str]:
        now_s, period_s = self._context.clock.wall_ms() / 1000, self._context.timings.active_s
        rows = [row for row in await self._workers.scan() if incarnation_of(row) is None]
        found = workers_of(rows, self._workers.key_attribute)
        return sorted(each.worker_id for each in found if now_s - each.last_update_s < period_s)

    async def _begun(self, stream: StreamRef) -> Segment:
        row = await self._table.get(_key(stream))
        known = None if row is None else _segment(row)
        passed_ms = (self._context.service_clock or self._context.clock).passed_ms()
        if known is not None and passed_ms - known.begun_ms < _STALE_MS:
            return known
        table = await self._scan.describe_table(stream.table_name)
        units = self._settings.read_units
        first = Segment(passed_ms, 0, self._settings.segments or segments_for(table.size_bytes, units))
        applied, after = await self._write(stream, row, first)
        if applied:
            faults.maybe("after-snapshot-begun")
            self._tell(stream, table, first)
            return first
        other = None if after is None else _segment(after)
        if other is None:
            raise Unavailable("the row of the snapshot was written by another leader", operation="PutItem")
        return other

    async def _write(
        self, stream: StreamRef, row: Row | None, first: Segment, over_ms: int | None = None
    ) -> tuple[bool, Row | None]:
        text = orjson.dumps({"begunMs": first.begun_ms, "segments": first.count, "overMs": over_ms}).decode()
        write = text_write(_key(stream), row, text, key_attribute=self._table.key_attribute)
        written = await write_row(self._table, write)
        return written.applied, written.row

    def _tell(self, stream: StreamRef, table: ScannedTable, first: Segment) -> None:
        units, hours = self._settings.read_units, hours_of(table.size_bytes, self._settings.read_units)
        self._log.info(
            "snapshot_begun",
            stream=stream.name,
            table=table.name,
            segments=first.count,
            items=table.items,
            size_bytes=table.size_bytes,
            read_units=units,
            hours=round(hours, 1),
        )
        if hours > _LATEST_HOURS:
            self._log.warning(
                "snapshot_budget_small",
                hours=round(hours, 1),
                read_units=units,
                advice="the stream keeps changes for 24 hours; those that come while the table is scanned would be lost. "
                f"Stop, delete this application's tables, and set snapshotReadUnits = {units_for(table.size_bytes)} "
                "or more; the table must have that read capacity beside what others use",
            )


def _key(stream: StreamRef) -> str:
    return f"{_KEY}{stream.name if stream.identity is None else stream.identity}"


def _fields(row: Row) -> dict[str, object]:
    try:
        found = orjson.loads(text_of(row))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _segment(row: Row) -> Segment | None:
    found = _fields(row)
    begun_ms, count = found.get("begunMs"), found.get("segments")
    return Segment(begun_ms, 0, count) if isinstance(begun_ms, int) and isinstance(count, int) else None
