"""Records that were lost because they were too old: what is said, and what becomes of the shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import anyio
import pytest

from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import EndOfShard, ShardSource, StartMemory, lost_words
from kcl_daemon.shards.lineage import created_ms
from kcl_local.changes.stream import StreamsOptions
from kcl_protocol.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.unit.changes import TABLE, TableWorld
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.retrieval.stage import Stage, texts
from tests.unit.retrieval.stage import play as play_kinesis

T = TypeVar("T")
_DAY_S = 86_400.0
_LONG = StreamsOptions(shard_life_s=10 * _DAY_S, life_jitter=0.0)


class Scene:
    """A table's stream, and readers over its first shard."""

    def __init__(self, options: StreamsOptions, start: Callable[[PollingReader], object]) -> None:
        self.world = TableWorld(options)
        self.shard_id = self.world.shards[0]
        self.log = MemoryLog()
        self.memory = StartMemory()
        self._start = start

    def read(
        self,
        checkpoint: ExtendedSequenceNumber = TRIM_HORIZON,
        *,
        stops: bool = True,
        timestamp_s: float | None = None,
    ) -> PollingReader:
        async def stream_is_there() -> bool:
            return True

        source = ShardSource(
            self.world.ref,
            self.shard_id,
            checkpoint,
            timestamp_s,
            self.memory,
            stream_is_there=stream_is_there,
            stops_at_loss=stops,
        )
        reader = PollingReader(
            source,
            worker_context(log=self.log),
            ByteBudget(LoopClock()),
            kinesis=self.world.changes,
            settings=RetrievalSettings(),
            reports_empty=False,
        )
        self._start(reader)
        return reader

    def said(self, level: str) -> dict[str, object]:
        """The one event of a loss."""
        assert self.log.events("error") + self.log.events("warning") == ["position_trimmed"]
        return next(fields for at, _event, fields in self.log.lines if at == level)


def play(scene: Callable[[Scene], Awaitable[T]], options: StreamsOptions = _LONG) -> T:
    found: list[T] = []

    async def main() -> T:
        async with anyio.create_task_group() as background:
            found.append(await scene(Scene(options, lambda reader: background.start_soon(reader.run))))
            background.cancel_scope.cancel()
        return found[0]

    return run_virtual(main)


def numbers_of(names: list[str]) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(names[0])


async def keys(reader: PollingReader, count: int) -> int:
    return len(await texts(reader, count))


def test_a_shard_stops_where_changes_were_lost_and_says_between_which_times_once() -> None:
    async def scene(it: Scene) -> None:
        first, _ = it.world.write("a", "b")
        await anyio.sleep(20 * 3600.0)
        it.world.write("c")
        await anyio.sleep(6 * 3600.0)
        reader = it.read(ExtendedSequenceNumber(first))
        with anyio.move_on_after(7200.0):
            await reader.next()
        fields = it.said("error")
        assert fields["checkpoint"] == first
        assert str(fields["lost"]).startswith(f"records after {first} that are older than ")
        assert "(6.0 h ago), the oldest one left; this shard began at" in str(fields["lost"])
        assert "(26.0 h ago)" in str(fields["lost"])
        assert "onTrimmed = continue" in str(fields["advice"])
        assert reader.trouble == fields["lost"]
        assert reader._last_fetch.lost
        assert 100 <= len(it.world.client.asked("GetShardIterator")) <= 130  # it is tried again each minute

    play(scene)


def test_a_shard_goes_on_at_the_oldest_change_where_that_is_asked_for() -> None:
    async def scene(it: Scene) -> None:
        first, _ = it.world.write("a", "b")
        await anyio.sleep(20 * 3600.0)
        it.world.write("c")
        await anyio.sleep(6 * 3600.0)
        reader = it.read(ExtendedSequenceNumber(first), stops=False)
        assert await keys(reader, 1) == 1
        assert "(6.0 h ago), the oldest one left" in str(it.said("warning")["lost"])
        it.world.write("d")
        assert await keys(reader, 1) == 1
        it.said("warning")
        assert reader.trouble is None

    play(scene)


def test_a_reader_that_is_overtaken_by_the_trimming_says_so_each_time() -> None:
    """It had delivered up to some change, and its child was slower than a day."""

    async def scene(it: Scene) -> None:
        reader = it.read(stops=False)
        for round_ in range(1, 3):
            it.world.write(*"abc")
            assert await keys(reader, 3) == 3
            it.world.client.refusals.extend(["InternalServerError"] * 100_000)
            it.world.write(*"de")
            await anyio.sleep(30 * 3600.0)
            it.world.client.refusals.clear()
            it.world.write("f")
            assert await keys(reader, 1) == 1
            assert it.log.events("warning").count("position_trimmed") == round_

    play(scene)


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_shard_that_is_gone_before_it_was_finished_stops(checkpointed: bool) -> None:
    async def scene(it: Scene) -> None:
        first = it.world.write("a")[0]
        await anyio.sleep(40 * 3600.0)
        it.world.write("b")
        reader = it.read(ExtendedSequenceNumber(first) if checkpointed else TRIM_HORIZON)
        with anyio.move_on_after(600.0):
            await reader.next()
        lost = str(it.said("error")["lost"])
        assert "this shard has none left; this shard began at" in lost
        assert "(40.0 h ago)" in lost
        assert reader.trouble == lost

    play(scene, StreamsOptions())


def test_a_shard_that_is_gone_ends_where_reading_goes_on_so_that_its_children_are_read() -> None:
    async def scene(it: Scene) -> None:
        first = it.world.write("a")[0]
        await anyio.sleep(40 * 3600.0)
        it.world.write("b")
        reader = it.read(ExtendedSequenceNumber(first), stops=False)
        assert await reader.next() == EndOfShard(())
        assert "all records after" in str(it.said("warning")["lost"])

    play(scene, StreamsOptions())


def test_a_shard_that_nobody_had_begun_loses_nothing_by_what_ages_between_two_calls() -> None:
    async def scene(it: Scene) -> None:
        reader = it.read()
        await anyio.sleep(10.0)
        it.world.client.refusals.append("TrimmedDataAccessException")
        it.world.write("a")
        assert await keys(reader, 1) == 1
        assert it.log.events() == []

    play(scene)


def test_expired_iterators_and_limits_lose_nothing() -> None:
    async def scene(it: Scene) -> None:
        it.world.write("a")
        reader = it.read()
        assert await keys(reader, 1) == 1
        it.world.client.refusals.extend(
            ["LimitExceededException"] * 3 + ["ExpiredIteratorException", "ThrottlingException"]
        )
        it.world.write("b", "c")
        assert await keys(reader, 2) == 2
        assert [each for each in it.log.events("warning") if each != "iterator_renewed"] == []
        assert it.log.events("error") == []

    play(scene)


def test_at_the_tip_and_behind_it_a_shard_is_read_five_times_a_second_at_most() -> None:
    async def scene(it: Scene) -> None:
        it.world.model.fill(TABLE, 20_000, 100)
        reader = it.read()
        assert await keys(reader, 20_000) == 20_000
        times = it.world.client.read_at_s
        assert len(times) == 20
        assert min(late - early for early, late in pairwise(times)) >= 0.199
        await anyio.sleep(100.0)
        assert 60 <= len(times) - 20 <= 75

    play(scene)


def test_at_latest_a_child_that_dies_early_gets_what_came_meanwhile() -> None:
    """DynamoDB may know no reading from a time on."""

    async def scene(it: Scene) -> None:
        it.world.write("old")
        await anyio.sleep(3600.0)
        first = it.read(LATEST)
        await anyio.sleep(10.0)
        first.close()
        it.memory.idle_iterator = None
        it.world.write("a", "b")
        second = it.read(LATEST)
        assert await keys(second, 2) == 2
        with anyio.move_on_after(60.0) as none_follows:
            await second.next()
        assert none_follows.cancelled_caught

    play(scene)


def test_a_stream_of_kinesis_can_stop_too() -> None:
    async def scene(stage: Stage, start: Callable[[PollingReader], object]) -> None:
        first, *_ = stage.put("a", "b")
        await anyio.sleep(100.0)
        stage.put("c")
        stage.model.trim("words", 1_770_000_000.0 + 50.0)
        reader = stage.reader(ExtendedSequenceNumber(first))
        reader._source = replace(reader._source, stops_at_loss=True)
        start(reader)
        with anyio.move_on_after(600.0):
            await reader.next()
        assert stage.log.events() == ["position_trimmed"]
        assert stage.log.events("error") == ["position_trimmed"]
        assert reader.waiting == (0, 0)

    play_kinesis(scene)


def test_with_latest_the_loss_of_the_record_where_reading_began_is_told() -> None:
    async def scene(stage: Stage, start: Callable[[PollingReader], object]) -> None:
        stage.memory.first_sequence_number, _ = stage.put("a", "b")
        await anyio.sleep(100.0)
        stage.put("c")
        stage.model.trim("words", 1_770_000_000.0 + 50.0)
        reader = stage.reader(LATEST)
        start(reader)
        assert await texts(reader, 1) == ["c"]
        assert stage.log.events("warning") == ["position_trimmed"]

    play_kinesis(scene)


def test_a_loss_of_unknown_extent_is_told_without_guesses() -> None:
    shard_id = ShardId("shardId-000000000007")
    assert lost_words(shard_id, "5", None, 0) == "records after 5; which is the oldest one left is not known"
    assert lost_words(shard_id, "5", 0, 3_600_000) == (
        "records after 5 that are older than 1970-01-01T00:00:00Z (1.0 h ago), the oldest one left"
    )


@pytest.mark.parametrize("stops", [True, False])
def test_a_shard_whose_parents_were_read_says_that_its_beginning_is_lost(stops: bool) -> None:
    async def scene(it: Scene) -> None:
        it.memory.needed_since_ms = created_ms(it.shard_id)
        it.world.write("a", "b")
        await anyio.sleep(20 * 3600.0)
        it.world.write("c")
        await anyio.sleep(6 * 3600.0)
        reader = it.read(stops=stops)
        with anyio.move_on_after(7200.0) as waited:
            assert await keys(reader, 1) == 1
        assert waited.cancelled_caught is stops
        lost = str(it.said("error" if stops else "warning")["lost"])
        assert "(6.0 h ago), the oldest one left" in lost
        assert reader._last_fetch.lost is stops

    play(scene)


def test_a_shard_without_changes_left_whose_parents_were_read_does_not_end_silently() -> None:
    async def scene(it: Scene) -> None:
        it.memory.needed_since_ms = created_ms(it.shard_id)
        it.world.write("a")
        await anyio.sleep(26 * 3600.0)
        with anyio.move_on_after(600.0):
            await it.read().next()
        assert "is not known" in str(it.said("error")["lost"])

    play(scene)


@pytest.mark.parametrize("hours", [23, 30])
def test_a_shard_that_begins_an_application_has_lost_nothing(hours: int) -> None:
    async def scene(it: Scene) -> None:
        it.memory.needed_since_ms = created_ms(it.shard_id) if hours < 24 else None
        it.world.write("a")
        await anyio.sleep(hours * 3600.0)
        it.world.write("b")
        assert await keys(it.read(), 1) >= 1
        assert it.log.events("error") + it.log.events("warning") == []

    play(scene)
