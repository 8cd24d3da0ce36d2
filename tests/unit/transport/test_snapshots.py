"""Segments of a scan as closed shards: pages, positions, budget, and what follows them."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from typing import Final

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.errors import InvalidRequest, IteratorExpired, Throttled
from kcl_daemon.ports import (
    FetchedRecords,
    IteratorKind,
    ReadFrom,
    ScannedPage,
    ScannedTable,
)
from kcl_daemon.records.batch_text import BatchEncoder
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch, ShardSource, StartMemory
from kcl_daemon.shards.lineage import Segment
from kcl_daemon.shards.snapshot import items_of, position_of
from kcl_daemon.transport.snapshots import SnapshotSegments, scanned_page, scanned_table
from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.messages import ProcessRecords, Record
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.items import BEGUN_MS, STREAM, Stream, Table, shard

FIRST: Final = ReadFrom(IteratorKind.TRIM_HORIZON)


def layer(
    table: Table, stream: Stream | None = None, log: MemoryLog | None = None, units: int = 10**6
) -> SnapshotSegments:
    return SnapshotSegments(
        stream or Stream(),
        table,
        form=ChangeForm.LAMBDA,
        read_units=units,
        clock=LoopClock(),
        log=log or MemoryLog(),
    )


def name_of(record: Record) -> str:
    return str(json.loads(b64decode(record.data))["dynamodb"]["NewImage"]["id"]["S"])


async def read(
    segments: SnapshotSegments, segment: Segment, start: ReadFrom, *, limit: int = 7, most: int = 10**9
) -> tuple[list[Record], FetchedRecords]:
    iterator: str | None = await segments.get_shard_iterator(STREAM, segment.shard_id, start)
    records = list[Record]()
    while True:
        assert iterator is not None
        answer = await segments.get_records(STREAM, segment.shard_id, iterator, limit)
        records += answer.payload.decoded()
        iterator = answer.next_iterator
        if iterator is None or len(records) >= most:
            return records, answer


def names(count: int) -> list[str]:
    return [f"item-{number:06}" for number in range(count)]


def test_segments_give_each_item_once_then_the_shards_of_the_stream() -> None:
    old, open_now, later = shard(-60), shard(-30), shard(5)
    stream = Stream((old, shard(-20, old.shard_id), open_now, shard(5, open_now.shard_id)))
    log = MemoryLog()
    segments = layer(Table(names(50)), stream, log)

    async def run() -> tuple[list[Record], FetchedRecords]:
        first, _ = await read(segments, Segment(BEGUN_MS, 0, 2), FIRST)
        second, end = await read(segments, Segment(BEGUN_MS, 1, 2), FIRST)
        return first + second, end

    records, end = run_virtual(run)
    assert sorted(map(name_of, records)) == names(50)
    parents = {Segment(BEGUN_MS, index, 2).shard_id for index in range(2)}
    assert {each.shard_id for each in end.child_shards} == {stream.shards[1].shard_id, open_now.shard_id}
    assert all(each.parent_shard_ids == parents for each in end.child_shards)
    assert end.child_shards
    assert not end.is_last
    assert later.shard_id not in stream.asked
    over = [fields for _, event, fields in log.lines if event == "snapshot_segment_over"]
    assert [each["items"] for each in over] == [25, 25]


def test_without_shards_nothing_follows() -> None:
    _, end = run_virtual(lambda: read(layer(Table([])), Segment(BEGUN_MS, 0, 1), FIRST))
    assert end.is_last
    assert end.child_shards == ()


def test_other_shards_pass_through() -> None:
    stream = Stream()
    segments = layer(Table([]), stream)

    async def run() -> FetchedRecords:
        shard_id = shard(0).shard_id
        return await segments.get_records(
            STREAM, shard_id, await segments.get_shard_iterator(STREAM, shard_id, FIRST), 10
        )

    assert run_virtual(run).next_iterator == "of the stream"
    assert stream.asked == [shard(0).shard_id]


@given(
    st.integers(1, 60),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 10), st.integers(0, 10**6 - 1)), max_size=6),
)
def test_a_scan_goes_on_after_any_checkpoint(
    count: int, limit: int, stops: Sequence[tuple[int, int, int]]
) -> None:
    """Each stop loses what was given after the last checkpoint; items with keys of one length come and go meanwhile."""
    table, segment, gone = Table(names(count)), Segment(BEGUN_MS, 0, 1), set[str]()
    given, largest, checkpoint = list[str](), 0, ""

    async def run() -> None:
        nonlocal largest, checkpoint
        for most, lost, chosen in [*stops, (10**9, 0, 0)]:
            start = (
                ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=checkpoint) if checkpoint else FIRST
            )
            records, _ = await read(layer(table), segment, start, limit=limit, most=most)
            numbers = [int(each.sequence_number) for each in records]
            assert numbers == sorted(set(numbers))
            assert not numbers or numbers[0] > largest, "a number above all that were given"
            largest = max([largest, *numbers])
            given.extend(map(name_of, records))
            kept = records[: max(0, len(records) - lost)]
            checkpoint = kept[-1].sequence_number if kept else checkpoint
            if len(table.items) > 1:
                gone.add(table.items.pop(chosen % len(table.items)))
            table.items = sorted({*table.items, f"item-{chosen:06}"})
            await anyio.sleep(0.02)

    before = set(table.items)
    run_virtual(run)
    assert before - set(given) <= gone, "all that were there all the while"


def test_an_item_at_a_checkpoint_is_not_given_again_the_first_neither() -> None:
    table, segment = Table(names(3)), Segment(BEGUN_MS, 0, 1)

    async def run() -> list[list[str]]:
        records, _ = await read(layer(table), segment, FIRST)
        number = records[0].sequence_number
        found = list[list[str]]()
        table.items.insert(0, "item")
        for kind in (IteratorKind.AT_SEQUENCE_NUMBER, IteratorKind.AFTER_SEQUENCE_NUMBER):
            again, _ = await read(layer(table), segment, ReadFrom(kind, sequence_number=number))
            found.append([name_of(each) for each in again])
        return found

    assert run_virtual(run) == [names(3)[1:], names(3)[1:]]


@pytest.mark.parametrize("stores", [False, True])
def test_the_next_child_gets_all_that_is_not_stored(*, stores: bool) -> None:
    """Its consumer remembers where the reading began."""
    segments, segment, memory = layer(Table(names(3))), Segment(BEGUN_MS, 0, 1), StartMemory()
    checkpoint, found = TRIM_HORIZON, list[list[str]]()

    async def run() -> None:
        nonlocal checkpoint
        for _ in range(2):
            reader = PollingReader(
                ShardSource(STREAM, segment.shard_id, checkpoint, None, memory),
                worker_context(),
                ByteBudget(LoopClock()),
                kinesis=segments,
                settings=RetrievalSettings(),
                reports_empty=False,
            )
            numbers, names_found = list[str](), list[str]()
            async with anyio.create_task_group() as background:
                background.start_soon(reader.run)
                while isinstance(item := await reader.next(), DeliveryBatch):
                    batch = decode_daemon_line(item.take_encoded(BatchEncoder()).data)
                    assert isinstance(batch, ProcessRecords)
                    numbers += [each.sequence_number for each in batch.records]
                    names_found += map(name_of, batch.records)
                    item.release()
            found.append(names_found)
            checkpoint = ExtendedSequenceNumber(numbers[0]) if stores else TRIM_HORIZON

    run_virtual(run)
    assert found == [names(3), names(3)[1:] if stores else names(3)]


def test_numbers_count_the_items() -> None:
    records, _ = run_virtual(lambda: read(layer(Table(names(20))), Segment(BEGUN_MS, 0, 1), FIRST))
    counts = [items_of(position_of(each.sequence_number)[0]) for each in records]
    assert counts == list(range(1, 21))


def test_a_key_too_long_for_a_number_is_said_and_repeated_not_lost() -> None:
    log, segment = MemoryLog(), Segment(BEGUN_MS, 0, 1)
    table = Table(sorted([*names(3), "item-000001" + "x" * 2_000]))

    async def run() -> list[str]:
        records, _ = await read(layer(table, log=log), segment, FIRST)
        assert [name_of(each) for each in records] == table.items
        start = ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=records[2].sequence_number)
        again, _ = await read(layer(table), segment, start)
        return [name_of(each) for each in again]

    assert run_virtual(run) == table.items[2:], "what came after the last shorter key"
    assert [(level, event) for level, event, _ in log.lines if "key" in event] == [
        ("error", "snapshot_key_long")
    ]


def test_positions_of_other_shards_are_refused() -> None:
    async def run() -> None:
        segments, segment = layer(Table([])), Segment(BEGUN_MS, 0, 1)
        with pytest.raises(InvalidRequest, match="not a position in a segment"):
            await segments.get_shard_iterator(
                STREAM,
                segment.shard_id,
                ReadFrom(
                    IteratorKind.AT_SEQUENCE_NUMBER, sequence_number="49590338271490256608559692538361571095"
                ),
            )
        with pytest.raises(IteratorExpired):
            await segments.get_records(STREAM, segment.shard_id, "no iterator", 10)

    run_virtual(run)


@pytest.mark.parametrize(("units", "item_units"), [(100, 0.5), (40, 4.0), (4, 50.0)])
def test_a_segment_keeps_its_share_of_the_read_units(units: int, item_units: float) -> None:
    table = Table(names(400), units=item_units)
    segments = layer(table, units=2 * units)

    async def run() -> float:
        began_s = anyio.current_time()
        await read(segments, Segment(BEGUN_MS, 0, 2), FIRST, limit=1_000)
        return anyio.current_time() - began_s

    took_s = run_virtual(run)
    allowed = units * (took_s + 2)
    assert table.spent <= allowed + item_units * max(table.sizes), "within the share, give or take a page"
    assert table.spent >= 0.6 * units * took_s, "and not far below it"


def test_throttling_slows_down_and_ends() -> None:
    table = Table(names(200), throttles=3)
    segments, segment = layer(table, units=100), Segment(BEGUN_MS, 0, 1)

    async def run() -> list[Record]:
        iterator = await segments.get_shard_iterator(STREAM, segment.shard_id, FIRST)
        for _ in range(3):
            with pytest.raises(Throttled):
                await segments.get_records(STREAM, segment.shard_id, iterator, 1_000)
        records, _ = await read(segments, segment, FIRST, limit=1_000)
        return records

    assert len(run_virtual(run)) == 200
    assert table.sizes[0] == 12, "an eighth"
    assert max(table.sizes) > 3 * table.sizes[0]


def test_a_scan_that_will_take_too_long_warns_early_and_once() -> None:
    log = MemoryLog()
    table = Table(names(100_000), units=1.0)
    segments, segment = layer(table, log=log, units=1), Segment(BEGUN_MS, 0, 1)
    run_virtual(lambda: read(segments, segment, FIRST, limit=100, most=2_000))
    found = [
        fields for level, event, fields in log.lines if (level, event) == ("warning", "snapshot_too_slow")
    ]
    assert len(found) == 1
    assert "snapshotReadUnits" in str(found[0]["advice"])
    assert 20 < float(str(found[0]["hours_left"])) < 30


def test_answers_of_the_service() -> None:
    described = {
        "Table": {
            "TableName": "orders",
            "KeySchema": [
                {"AttributeName": "at", "KeyType": "RANGE"},
                {"AttributeName": "id", "KeyType": "HASH"},
            ],
            "ItemCount": 7,
            "TableSizeBytes": 900,
        }
    }
    assert scanned_table(json.dumps(described).encode()) == ScannedTable("orders", ("id", "at"), 7, 900)
    body = b'{"Items":[{"id":{"S":"a"},"n":{"N":"1.50"}}],"LastEvaluatedKey":{"id":{"S":"a"}},"ConsumedCapacity":'
    page = scanned_page(body + b'{"TableName":"orders","CapacityUnits":2.5}}')
    assert page == ScannedPage([b'{"id":{"S":"a"},"n":{"N":"1.50"}}'], '{"id":{"S":"a"}}', 2.5)
    assert scanned_page(b'{"Items":[]}').next_key is None
