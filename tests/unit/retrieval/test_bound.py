"""Where reading ends in a bounded run: at the first record at or after the bound, or where an answer is beyond it."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.errors import ChildNotListed
from kcl_daemon.leases.lease import HashRange, ShardId
from kcl_daemon.ports import StreamRef
from kcl_daemon.records.batch import Batch, ReadFacts, nothing
from kcl_daemon.records.payload import Payload
from kcl_daemon.retrieval.source import QUIET_ANSWERS, EndOfShard, ReachedBound, ShardSource, StartMemory
from kcl_daemon.shards.lineage import ChildShard
from kcl_protocol.messages import Record
from kcl_protocol.sequence import TRIM_HORIZON
from tests.unit.retrieval.stage import Stage, Start, play, texts

UNTIL_MS = 1_000_000
FAR_MS = UNTIL_MS + 3_600_000
PLACE = "us-east-1:123456789012"


def source(until_ms: int | None = UNTIL_MS, only: frozenset[str] = frozenset()) -> ShardSource:
    return ShardSource(
        StreamRef("words"),
        ShardId("shardId-0"),
        TRIM_HORIZON,
        None,
        StartMemory(),
        until_ms=until_ms,
        only=only,
    )


def arrived(*times_ms: int | None) -> Batch:
    payload = Payload.of(
        Record("YQ==", "k", str(100 + place), approximate_arrival_timestamp=time_ms)
        for place, time_ms in enumerate(times_ms)
    )
    return Batch(payload, ReadFacts(0.0, times_ms[0], 0))


@pytest.mark.parametrize(
    ("times_ms", "left"),
    [
        ((UNTIL_MS - 2, UNTIL_MS - 1), 2),
        ((UNTIL_MS - 1, UNTIL_MS), 1),
        ((UNTIL_MS,), 0),
        ((UNTIL_MS - 1, UNTIL_MS + 9, UNTIL_MS - 1), 1),
        ((None, UNTIL_MS - 1), 2),
    ],
)
def test_the_first_record_at_or_after_the_bound_ends_the_shard(
    times_ms: tuple[int | None, ...], left: int
) -> None:
    batch, ended = source().bounded(arrived(*times_ms), FAR_MS, at_end=False)
    assert (len(batch), ended) == (left, left < len(times_ms))


@pytest.mark.parametrize(
    ("behind_ms", "asked_ms", "ended"),
    [
        (0, UNTIL_MS + 7_000, True),
        (0, UNTIL_MS + 6_999, False),
        (5_000, UNTIL_MS + 12_000, True),
        (5_000, UNTIL_MS + 11_999, False),
        (None, FAR_MS, False),
    ],
)
def test_an_answer_that_is_beyond_the_bound_ends_the_shard_without_a_record(
    behind_ms: int | None, asked_ms: int, ended: bool
) -> None:
    assert source().bounded(nothing(behind_ms), asked_ms, at_end=False)[1] is ended


def test_the_end_of_a_shard_leads_to_its_children_unless_a_record_is_beyond_the_bound() -> None:
    assert source().bounded(arrived(UNTIL_MS - 1), FAR_MS, at_end=True)[1] is False
    assert source().bounded(arrived(UNTIL_MS), FAR_MS, at_end=True)[1] is True


def test_the_last_records_of_a_shard_that_may_have_ended_do_not_end_a_run() -> None:
    assert source().bounded(arrived(UNTIL_MS - 1), FAR_MS, at_end=False)[1] is False, (
        "its children may have records from before the bound; the next answer tells of an end"
    )


def test_an_empty_answer_of_a_changes_stream_ends_a_run_only_when_many_were_empty() -> None:
    changes = replace(source(), stream=StreamRef("table", f"arn:aws:dynamodb:{PLACE}:table/t/stream/1"))
    long_ago, since = [UNTIL_MS + 6_000], [FAR_MS] * (QUIET_ANSWERS - 1)
    assert changes.bounded(nothing(0), changes.tip_ms(FAR_MS, since), at_end=False)[1] is False
    assert changes.bounded(nothing(0), changes.tip_ms(FAR_MS, [*long_ago, *since]), at_end=False)[1] is False
    assert changes.bounded(nothing(0), changes.tip_ms(FAR_MS, [FAR_MS, *since]), at_end=False)[1] is True


def test_without_a_bound_nothing_is_cut() -> None:
    batch = arrived(UNTIL_MS * 2)
    assert source(None).bounded(batch, FAR_MS, at_end=False) == (batch, False)


def test_child_shards_that_are_not_named_are_left_out() -> None:
    whole = HashRange(0, 9)
    children = tuple(ChildShard(ShardId(f"shardId-{number}"), frozenset(), whole) for number in (1, 2))
    assert source().end(children) == EndOfShard(children)
    assert source(only=frozenset({"shardId-2"})).end(children) == EndOfShard(children[1:])


def test_polling_ends_at_the_bound_and_later_where_nothing_comes() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a", "b")
        now_ms = round(stage.clock.wall_ms())
        reader = stage.reader(until_ms=now_ms + 10_000, reports_empty=False)
        start(reader)
        assert await texts(reader, 2) == ["a", "b"]
        end = await reader.next()
        assert isinstance(end, ReachedBound)
        waited_ms = stage.clock.wall_ms() - now_ms
        assert 17_000 <= waited_ms < 20_000, "seven seconds after the bound, as a record may be late"

    play(scene)


def test_polling_does_not_deliver_what_came_after_the_bound() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a")
        await stage.clock.sleep(5)
        until_ms = stage.clock.wall_ms()
        stage.put("b")
        reader = stage.reader(until_ms=until_ms)
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert isinstance(await reader.next(), ReachedBound)

    play(scene)


@pytest.mark.parametrize("is_bounded", [True, False])
def test_a_shard_of_a_table_that_ended_without_a_child_is_read_when_the_bound_is_long_past(
    is_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job would wait for a child that the service may never list; one without a bound says what is wrong."""
    table = StreamRef("table", f"arn:aws:dynamodb:{PLACE}:table/t/stream/1")
    monkeypatch.setattr("tests.unit.retrieval.stage.STREAM", table)

    async def end(*_arguments: object) -> str:
        return "end:30"

    async def scene(stage: Stage, start: Start) -> None:
        monkeypatch.setattr(stage.kinesis, "get_shard_iterator", end)
        began_ms = stage.clock.wall_ms()
        stage.kinesis.refusal = ChildNotListed("no child of it is listed", operation="DescribeStream")
        reader = stage.reader(until_ms=began_ms + 10_000 if is_bounded else None)
        start(reader)
        with anyio.move_on_after(600):
            assert isinstance(await reader.next(), ReachedBound)
            assert 120_000 < stage.clock.wall_ms() - began_ms < 240_000, "ten answers since then"
        assert (stage.clock.wall_ms() - began_ms < 600_000) is is_bounded
        assert reader.trouble == "DescribeStream: no child of it is listed"

    play(scene)
