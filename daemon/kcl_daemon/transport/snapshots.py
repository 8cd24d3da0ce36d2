"""A table's items before its changes: segments of a scan, read as closed shards of the stream.

The scan is eventually consistent, at half the price. A change that it does not see was made less than ten minutes
before, so it is in the shards that follow (`shards/snapshot.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec
from msgspec import Raw, Struct

from kcl_daemon.errors import InvalidRequest, IteratorExpired, StreamNotFound, Throttled
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import (
    Changes,
    Clock,
    FetchedRecords,
    Log,
    ReadFrom,
    ScannedPage,
    ScannedTable,
    ScanPort,
    StreamRef,
    StreamSummary,
)
from kcl_daemon.records.changes import snapshot_record
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.payload import EMPTY, NULL, AnyRecord, Payload
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Segment, Shard, segment_of
from kcl_daemon.shards.snapshot import (
    MOST_DIGITS,
    ItemKey,
    digits_in,
    digits_of,
    first_shards,
    items_of,
    key_bytes,
    key_of,
    ordinal_of,
    position_number,
    position_of,
)
from kcl_daemon.transport.caller import AwsJsonClient, JsonApi
from kcl_daemon.transport.service_answers import parsing_answer

TABLE_API: Final = JsonApi("DynamoDB_20120810.", StreamNotFound, "application/x-amz-json-1.0")
_UNIT_BYTES: Final = 8_192  # of an eventually consistent read
# A call that has to wait longer for read units returns without records.
_LONGEST_WAIT_S: Final = 10.0
_SLOWEST: Final = 1 / 64
_FASTER: Final = 1.1
# A stream keeps a change for 24 hours.
_KEPT_MS: Final = 20 * 3_600_000
_TOLD_EVERY_MS: Final = 5 * 60_000


class _Page(Struct, rename="pascal"):
    items: list[Raw]
    last_evaluated_key: Raw = NULL
    consumed_capacity: dict[str, object] | None = None


class TableScan:
    """`ScanPort` over our transport."""

    def __init__(self, client: AwsJsonClient) -> None:
        self._client = client

    async def describe_table(self, table: str) -> ScannedTable:
        return await self._client.call("DescribeTable", {"TableName": table}, scanned_table)

    async def scan(self, table: str, part: tuple[int, int], after: str | None, limit: int) -> ScannedPage:
        request: dict[str, object] = {
            "TableName": table,
            "Segment": part[0],
            "TotalSegments": part[1],
            "Limit": limit,
            "ReturnConsumedCapacity": "TOTAL",
        }
        if after is not None:
            request["ExclusiveStartKey"] = json.loads(after)
        return await self._client.call("Scan", request, scanned_page)


def scanned_table(body: bytes | bytearray) -> ScannedTable:
    with parsing_answer("DescribeTable"):
        found = json.loads(body)["Table"]
        schema = sorted(found["KeySchema"], key=lambda each: str(each["KeyType"]))  # HASH, RANGE
        keys = tuple(str(each["AttributeName"]) for each in schema)
        size = int(found.get("ItemCount", 0)), int(found.get("TableSizeBytes", 0))
        return ScannedTable(str(found["TableName"]), keys, *size)


def scanned_page(body: bytes | bytearray) -> ScannedPage:
    with parsing_answer("Scan"):
        page = msgspec.json.decode(body, type=_Page)
        units = (page.consumed_capacity or {}).get("CapacityUnits", len(body) / _UNIT_BYTES)
        key = page.last_evaluated_key
        return ScannedPage(
            [bytes(item) for item in page.items],
            None if key == NULL else bytes(key).decode(),
            float(cast("float", units)),
        )


class _Place(Struct, omit_defaults=True):
    """The iterator. `after` is DynamoDB's key, `key` that of the last sequence number."""

    ordinal: int
    digits: int = 1
    after: str | None = None
    key: bytes = b""
    ended: bool = False

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass(slots=True)
class _Pace:
    """Keeps one segment within its share of the read units; throttling makes it slower for a while."""

    share: float
    factor: float = 1.0
    due_s: float = 0.0
    units_per_item: float = 1.0

    def limit(self, most: int) -> int:
        """Items of a page that costs about what a second allows."""
        return max(1, min(most, int(self.share * self.factor / self.units_per_item)))

    def used(self, units: float, items: int, now_s: float) -> None:
        self.due_s = max(self.due_s, now_s - 1) + units / (self.share * self.factor)
        self.units_per_item = max(units / max(items, 1), 1e-3)
        self.factor = min(1.0, self.factor * _FASTER)

    def throttled(self) -> None:
        self.factor = max(_SLOWEST, self.factor / 2)


@dataclass(slots=True)
class _Reading:
    pace: _Pace
    table: ScannedTable
    arn: str
    last: int = 0
    began_ms: int = 0
    began_items: int = 0
    told_ms: int = 0
    warned: bool = False
    long_keys: bool = False


class SnapshotSegments:
    """`Changes` with segments. All segments of a table share `read_units` a second. `clock` has the service's time of day."""

    def __init__(
        self, changes: Changes, scan: ScanPort, *, form: ChangeForm, read_units: int, clock: Clock, log: Log
    ) -> None:
        self._changes = changes
        self._scan = scan
        self._form = form
        self._read_units = read_units
        self._clock = clock
        self._log = log
        self._readings: dict[tuple[str, ShardId], _Reading] = {}

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return await self._changes.describe_stream(stream)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._changes.list_streams()

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return await self._changes.streams_of(table)

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        return await self._changes.list_shards(stream, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        segment = segment_of(shard_id)
        if segment is None:
            return await self._changes.get_shard_iterator(stream, shard_id, read_from)
        reading = await self._reading(stream, segment)
        place = self._place(reading, segment, read_from)
        reading.last, reading.began_items = place.ordinal, items_of(place.ordinal)
        reading.began_ms = reading.told_ms = self._clock.wall_ms()
        return place.text

    def _place(self, reading: _Reading, segment: Segment, read_from: ReadFrom) -> _Place:
        number, now_ms, place = read_from.sequence_number, self._clock.wall_ms(), _Place(0)
        try:
            if number is not None:
                ordinal, key = position_of(number)
                reading.last = max(reading.last, ordinal)
                if key:
                    after = json.dumps(key_of(key, reading.table.keys))
                    place = _Place(items_of(ordinal), digits_in(number), after, key)
                else:
                    place = _Place(0, digits_in(number))
        except ValueError as error:
            raise InvalidRequest(
                f"{error}; reset the lease of this segment, or begin anew with another applicationName",
                operation="Scan",
            ) from error
        place.ordinal = ordinal_of(segment.begun_ms, now_ms, reading.last, place.ordinal)
        return place

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        segment = segment_of(shard_id)
        if segment is None:
            return await self._changes.get_records(stream, shard_id, iterator, limit)
        try:
            place = msgspec.json.decode(iterator, type=_Place)
        except msgspec.DecodeError:
            raise IteratorExpired("not an iterator of a segment", operation="Scan") from None
        if place.ended:
            return await self._end(stream, segment)
        reading = await self._reading(stream, segment)
        behind_ms = max(1, self._clock.wall_ms() - segment.begun_ms)
        if not await self._may_read(reading.pace):
            return FetchedRecords(EMPTY, iterator, behind_ms, ())
        part = segment.index, segment.count
        try:
            page = await self._scan.scan(reading.table.name, part, place.after, reading.pace.limit(limit))
        except Throttled:
            reading.pace.throttled()
            raise
        reading.pace.used(page.read_units, len(page.items), self._clock.monotonic())
        payload, following = self._given(page, place, reading)
        self._judge(segment, following, reading)
        return FetchedRecords(payload, following.text, behind_ms, ())

    async def _may_read(self, pace: _Pace) -> bool:
        wait_s = pace.due_s - self._clock.monotonic()
        if wait_s > 0:
            await self._clock.sleep(min(wait_s, _LONGEST_WAIT_S))
        return wait_s <= _LONGEST_WAIT_S

    async def _end(self, stream: StreamRef, segment: Segment) -> FetchedRecords:
        shards = first_shards(await self._changes.list_shards(stream), segment)
        children = tuple(ChildShard(each.shard_id, each.parent_shard_ids, each.hash_range) for each in shards)
        reading = self._readings.pop((stream.name, segment.shard_id), None)
        self._log.info(
            "snapshot_segment_over",
            shard_id=segment.shard_id,
            items=None if reading is None else items_of(reading.last),
            seconds=(self._clock.wall_ms() - segment.begun_ms) // 1000,
        )
        return FetchedRecords(EMPTY, None, 0, children, is_last=not children)

    def _given(self, page: ScannedPage, place: _Place, reading: _Reading) -> tuple[Payload, _Place]:
        ordinal, digits, key, at_ms = place.ordinal, place.digits, place.key, self._clock.wall_ms()
        table, records = reading.table, list[AnyRecord]()
        for item in page.items:
            ordinal, found = ordinal + 1, key_bytes(_key_in(item, table.keys), table.keys)
            if digits_of(found) <= MOST_DIGITS:
                key, digits = found, max(digits, digits_of(found))
            else:
                self._warn_of_long_key(reading, len(found))
            record = snapshot_record(
                item,
                table.keys,
                self._form,
                reading.arn,
                number=position_number(ordinal, key, digits),
                at_ms=at_ms,
            )
            records.append(cast("AnyRecord", record))
        reading.last = max(reading.last, ordinal)
        following = _Place(ordinal, digits, page.next_key, key, ended=page.next_key is None)
        return Payload.only(records) if records else EMPTY, following

    def _warn_of_long_key(self, reading: _Reading, size: int) -> None:
        if not reading.long_keys:
            reading.long_keys = True
            self._log.error(
                "snapshot_key_long",
                table=reading.table.name,
                bytes=size,
                advice="an item's key is too long for a sequence number. Nothing is lost: if the scan stops at such "
                "an item, it gives again what came after the last shorter key; if all keys are as long, it begins "
                "anew. Let it run through without a restart",
            )

    def _judge(self, segment: Segment, place: _Place, reading: _Reading) -> None:
        """Warn in time if the stream will have forgotten changes when the scan is over."""
        items, of = items_of(place.ordinal), reading.table.items / segment.count
        now_ms = self._clock.wall_ms()
        read, took_ms = items - reading.began_items, now_ms - reading.began_ms
        if not read or now_ms - reading.told_ms < _TOLD_EVERY_MS:
            return
        reading.told_ms, left_ms = now_ms, max(0.0, of - items) * took_ms / read
        facts = {
            "shard_id": segment.shard_id,
            "items": items,
            "of": round(of),
            "hours_left": round(left_ms / 3_600_000, 1),
            "throttled": reading.pace.factor < 1,
        }
        if reading.warned or now_ms - segment.begun_ms + left_ms <= _KEPT_MS:
            self._log.info("snapshot_progress", **facts)
            return
        reading.warned = True
        self._log.warning(
            "snapshot_too_slow",
            **facts,
            advice="at this rate the scan takes longer than the stream keeps changes, 24 hours: changes would be "
            "lost. Raise snapshotReadUnits and the table's read capacity, or make the processor faster; a "
            "larger snapshotSegments lets more workers share the work, but only of a new snapshot",
        )

    async def _reading(self, stream: StreamRef, segment: Segment) -> _Reading:
        key = stream.name, segment.shard_id
        known = self._readings.get(key)
        if known is None:
            arn = await self._arn(stream)
            table = await self._scan.describe_table(stream.table_name)
            pace = _Pace(self._read_units / segment.count, due_s=self._clock.monotonic())
            now_ms = self._clock.wall_ms()
            known = self._readings.setdefault(
                key, _Reading(pace, table, arn, began_ms=now_ms, told_ms=now_ms)
            )
        return known

    async def _arn(self, stream: StreamRef) -> str:
        if stream.arn is not None:
            return stream.arn
        found = await self._changes.streams_of(stream.table_name)
        if not found:
            raise StreamNotFound(f"the table {stream.table} has no stream", operation="ListStreams")
        return found[-1].arn


_members: Final = msgspec.json.Decoder(dict[str, Raw])


def _key_in(item: bytes, names: tuple[str, ...]) -> ItemKey:
    members = _members.decode(item)
    return {name: cast("Mapping[str, str]", json.loads(bytes(members[name]))) for name in names}
