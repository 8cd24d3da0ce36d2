"""Streams of DynamoDB as the daemon reads them: what is asked, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import pytest

from kcl_daemon.errors import (
    AwsError,
    InvalidRequest,
    IteratorExpired,
    StreamNotFound,
    Throttled,
    Trimmed,
    Unavailable,
)
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, IteratorKind, ReadFrom, StreamRef
from kcl_daemon.shards.lineage import InitialPosition, Shard, StartAt
from kcl_daemon.transport.changes_answers import HASH_RANGE, ShardShape, open_at, shards
from kcl_local.changes.stream import StreamsOptions
from tests.simulator.loop import run_virtual
from tests.unit.changes import TABLE, TableWorld

T = TypeVar("T")
OLDEST = ReadFrom(IteratorKind.TRIM_HORIZON)
LATER_CHILDREN = StreamsOptions(children_lag_s=5.0)


def play(scene: Callable[[TableWorld], Awaitable[T]], options: StreamsOptions | None = None) -> T:
    async def main() -> T:
        return await scene(TableWorld(options))

    return run_virtual(main)


async def all_numbers(world: TableWorld, shard_id: ShardId, start: ReadFrom = OLDEST) -> list[str]:
    """What one reader of the shard gets until nothing comes."""
    iterator, found = await world.changes.get_shard_iterator(world.ref, shard_id, start), list[str]()
    while True:
        fetched = await world.changes.get_records(world.ref, shard_id, iterator, 10_000)
        found += [each.sequence_number for each in fetched.records]
        if fetched.next_iterator is None or not fetched.payload:
            return found
        iterator = fetched.next_iterator


def test_a_stream_is_described_by_the_name_of_its_leases() -> None:
    async def scene(world: TableWorld) -> None:
        found = await world.changes.describe_stream(world.ref)
        label = world.stream.label.replace(":", "_")
        assert found.name == f"us-east-1$123456789012${TABLE}${label}"
        assert (found.arn, found.status, found.retention_s) == (world.stream.arn, "ENABLED", 86_400.0)
        assert found.view_type == "NEW_AND_OLD_IMAGES"
        assert await world.changes.streams_of(TABLE) == (found,)
        assert await world.changes.streams_of("others") == ()
        world.model.disable(TABLE)
        await anyio.sleep(1.0)
        world.model.enable(TABLE, "KEYS_ONLY")
        both = await world.changes.streams_of(TABLE)
        assert [each.view_type for each in both] == ["NEW_AND_OLD_IMAGES", "KEYS_ONLY"]
        assert sorted(each.arn for each in await world.changes.list_streams()) == [each.arn for each in both]

    play(scene)


def test_shards_of_all_pages_are_listed_with_their_parents() -> None:
    async def scene(world: TableWorld) -> None:
        for _ in range(110):
            world.model.roll(TABLE)
            await anyio.sleep(1.0)
        listed = await world.changes.list_shards(world.ref)
        assert [each.shard_id for each in listed] == world.shards
        assert len(world.client.asked("DescribeStream")) == 2
        assert {each.hash_range for each in listed} == {HASH_RANGE}
        assert [each.is_open for each in listed] == [False] * 110 + [True]
        assert [each.parent_shard_ids for each in listed[1:]] == [{each.shard_id} for each in listed[:-1]]

    play(scene)


def test_a_parent_that_has_children_is_closed_although_its_end_is_not_shown() -> None:
    shapes: list[ShardShape] = [
        {"ShardId": "a", "SequenceNumberRange": {"StartingSequenceNumber": "5"}},
        {"ShardId": "c", "SequenceNumberRange": {"StartingSequenceNumber": "9"}, "ParentShardId": "a"},
        {"ShardId": "b", "SequenceNumberRange": {"StartingSequenceNumber": "8"}, "ParentShardId": "a"},
    ]
    assert [each.ending_sequence_number for each in shards(shapes)] == [8, None, None]


def _id(created_s: int, name: str) -> ShardId:
    return ShardId(f"shardId-{created_s * 1000:020}-{name}")


def _shard(created_s: int, name: str, *parents: ShardId) -> Shard:
    return Shard(_id(created_s, name), HASH_RANGE, frozenset(parents), created_s)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (InitialPosition(StartAt.TRIM_HORIZON), "a"),
        (InitialPosition(StartAt.LATEST), "cde"),
        (InitialPosition(StartAt.TIMESTAMP, 500.0), "a"),
        (InitialPosition(StartAt.TIMESTAMP, 10_000.0), "b"),
        (
            InitialPosition(StartAt.TIMESTAMP, 14_500.0),
            "b",
        ),  # its last changes may be later than its children
        (InitialPosition(StartAt.TIMESTAMP, 19_990.0), "bc"),  # only one of the two children is surely begun
        (InitialPosition(StartAt.TIMESTAMP, 90_000.0), "cde"),
    ],
)
def test_reading_begins_at_the_shards_that_were_open(start: InitialPosition, expected: str) -> None:
    a, b = _shard(1_000, "a", _id(0, "gone")), _shard(5_000, "b", _id(1_000, "a"))
    c, d = _shard(19_000, "c", b.shard_id), _shard(19_800, "d", b.shard_id)
    found = (a, b, c, d, _shard(19_900, "e", b.shard_id))
    assert "".join(sorted(each.shard_id[-1] for each in open_at(found, start))) == expected


def test_an_answer_has_at_most_a_thousand_changes_whatever_is_asked_for() -> None:
    async def scene(world: TableWorld) -> None:
        world.model.fill(TABLE, 2_500, 100)
        assert len(await all_numbers(world, world.shards[0])) == 2_500
        assert {each["Limit"] for each in world.client.asked("GetRecords")} == {1000}

    play(scene)


def test_how_far_behind_is_told_by_the_newest_change_of_an_answer() -> None:
    async def scene(world: TableWorld) -> None:
        world.write("a")
        await anyio.sleep(600.0)
        iterator = await world.changes.get_shard_iterator(world.ref, world.shards[0], OLDEST)
        fetched = await world.changes.get_records(world.ref, world.shards[0], iterator, 10)
        assert 600_000 <= (fetched.millis_behind_latest or 0) <= 601_000
        assert fetched.next_iterator is not None
        fetched = await world.changes.get_records(world.ref, world.shards[0], fetched.next_iterator, 10)
        assert (len(fetched.payload), fetched.millis_behind_latest) == (0, 0)

    play(scene)


def test_the_end_of_a_shard_comes_after_its_last_changes_and_has_its_children() -> None:
    async def scene(world: TableWorld) -> None:
        numbers, parent = world.write("a", "b"), world.shards[0]
        world.model.split(TABLE)
        iterator = await world.changes.get_shard_iterator(world.ref, parent, OLDEST)
        fetched = await world.changes.get_records(world.ref, parent, iterator, 10)
        assert [each.sequence_number for each in fetched.records] == numbers
        assert (fetched.child_shards, fetched.next_iterator is None) == ((), False)
        assert fetched.next_iterator is not None
        fetched = await world.changes.get_records(world.ref, parent, fetched.next_iterator, 10)
        assert (fetched.next_iterator, fetched.is_last) == (None, False)
        assert {each.shard_id for each in fetched.child_shards} == {*world.shards} - {parent}
        assert {each.parent_shard_ids for each in fetched.child_shards} == {frozenset({parent})}
        assert world.client.calls[-1][1]["ShardFilter"] == {"Type": "CHILD_SHARDS", "ShardId": parent}

    play(scene)


def test_children_that_are_not_listed_yet_are_waited_for_without_a_new_read() -> None:
    async def scene(world: TableWorld) -> None:
        world.write("a")
        parent = world.shards[0]
        iterator: str | None = await world.changes.get_shard_iterator(world.ref, parent, OLDEST)
        world.model.roll(TABLE)
        answers: list[FetchedRecords] = []
        while iterator is not None:
            answers.append(await world.changes.get_records(world.ref, parent, iterator, 10))
            iterator = answers[-1].next_iterator
            await anyio.sleep(1.0)
        assert len(answers[-1].child_shards) == 1
        assert len(answers) > 4
        assert len(world.client.asked("GetRecords")) == 1

    play(scene, LATER_CHILDREN)


def test_children_that_never_come_are_trouble() -> None:
    async def scene(world: TableWorld) -> None:
        parent = world.shards[0]
        world.model.roll(TABLE)
        iterator: str | None = await world.changes.get_shard_iterator(world.ref, parent, OLDEST)
        with pytest.raises(Unavailable, match="no child of it is listed although the stream is ENABLED"):
            while iterator is not None:
                iterator = (await world.changes.get_records(world.ref, parent, iterator, 10)).next_iterator

    play(scene, StreamsOptions(children_lag_s=600.0))


def test_nothing_follows_the_last_shards_of_a_stream_that_was_switched_off() -> None:
    async def scene(world: TableWorld) -> None:
        numbers, shard_id = world.write("a"), world.shards[0]
        world.model.disable(TABLE)
        iterator = await world.changes.get_shard_iterator(world.ref, shard_id, OLDEST)
        fetched = await world.changes.get_records(world.ref, shard_id, iterator, 10)
        assert ([each.sequence_number for each in fetched.records], fetched.is_last) == (numbers, False)
        assert fetched.next_iterator is not None
        fetched = await world.changes.get_records(world.ref, shard_id, fetched.next_iterator, 10)
        assert (fetched.next_iterator, fetched.child_shards, fetched.is_last) == (None, (), True)

    play(scene)


def test_an_endpoint_without_filters_is_asked_for_all_shards() -> None:
    async def scene(world: TableWorld) -> None:
        parent = world.shards[0]
        world.model.roll(TABLE)
        iterator = await world.changes.get_shard_iterator(world.ref, parent, OLDEST)
        await world.changes.get_records(world.ref, parent, iterator, 10)
        world.client.refusals.append("ValidationException")
        fetched = await world.changes.get_records(world.ref, parent, "end:0", 10)
        assert [each.shard_id for each in fetched.child_shards] == world.shards[1:]
        assert "ShardFilter" not in world.client.calls[-1][1]

    play(scene)


@pytest.mark.parametrize("knows_times", [True, False])
def test_from_a_time_on_older_changes_are_left_out(knows_times: bool) -> None:
    """Also where the service cannot begin at a time: then all of the shard is read."""

    async def scene(world: TableWorld) -> None:
        world.model.fill(TABLE, 1_500, 100)
        await anyio.sleep(200.0)
        later = world.write("a", "b")
        start = ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=world.clock.wall_ms() / 1000 - 50.0)
        if not knows_times:
            world.client.refusals.append("ValidationException")
        shard_id = world.shards[0]
        iterator: str = await world.changes.get_shard_iterator(world.ref, shard_id, start)
        found, behind = list[str](), list[int]()
        for _ in range(4):
            fetched = await world.changes.get_records(world.ref, shard_id, iterator, 1000)
            found += [each.sequence_number for each in fetched.records]
            behind.append(fetched.millis_behind_latest or 0)
            assert fetched.next_iterator is not None
            iterator = fetched.next_iterator
        assert found == later
        assert (behind[0] > 40_000) is not knows_times  # there is more: no reason to pause
        assert behind[-1] == 0
        assert iterator.startswith("arn:"), "the time is not carried beyond the first change"

    play(scene)


def test_a_time_that_is_to_come_leaves_out_what_comes_before_it() -> None:
    async def scene(world: TableWorld) -> None:
        world.write("a")
        start = ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=world.clock.wall_ms() / 1000 + 100.0)
        iterator = await world.changes.get_shard_iterator(world.ref, world.shards[0], start)
        fetched = await world.changes.get_records(world.ref, world.shards[0], iterator, 10)
        await anyio.sleep(110.0)
        wanted = world.write("b")
        assert fetched.next_iterator is not None
        fetched = await world.changes.get_records(world.ref, world.shards[0], fetched.next_iterator, 10)
        assert [each.sequence_number for each in fetched.records] == wanted

    play(scene)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("TrimmedDataAccessException", Trimmed),
        ("ExpiredIteratorException", IteratorExpired),
        ("LimitExceededException", Throttled),
        ("ThrottlingException", Throttled),
        ("ResourceNotFoundException", StreamNotFound),
        ("ValidationException", InvalidRequest),
        ("InternalServerError", Unavailable),
    ],
)
def test_errors_have_their_kinds(code: str, kind: type[AwsError]) -> None:
    async def scene(world: TableWorld) -> None:
        world.client.refusals.append(code)
        with pytest.raises(AwsError, match=code) as raised:
            await world.changes.get_records(world.ref, world.shards[0], "i", 10)
        assert type(raised.value) is kind

    play(scene)


def test_changes_older_than_a_day_are_trimmed_and_a_stream_is_read_by_its_arn() -> None:
    async def scene(world: TableWorld) -> None:
        first, *_ = world.write("a", "b")
        await anyio.sleep(25 * 3600.0)
        with pytest.raises(Trimmed):
            start = ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=first)
            await world.changes.get_shard_iterator(world.ref, world.shards[0], start)
        with pytest.raises(InvalidRequest, match="read by its ARN"):
            await world.changes.list_shards(StreamRef("x", table="x"))

    play(scene, StreamsOptions(shard_life_s=48 * 3600.0))
