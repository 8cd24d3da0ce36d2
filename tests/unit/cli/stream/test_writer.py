"""`put`: tries again until all is in, in order; nothing of an aggregate is lost by a reshard. In virtual time."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

import pytest

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.stream.follow import Follower
from kcl_daemon.cli.stream.writer import Writer
from kcl_daemon.config.kinds import RunUntil
from kcl_daemon.errors import AccessDenied, AwsError, InvalidRequest, Throttled, Unavailable
from kcl_daemon.leases.lease import MAX_HASH
from kcl_daemon.ports import StreamRef, StreamSummary
from kcl_daemon.records.producing import LARGE_BYTES, Entry, KeyedLine, PutResult
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from tests.simulator.loop import run_virtual
from tests.unit.cli.stream.test_follow import World, auto
from tests.unit.fakes import CalmChance
from tests.unit.retrieval.stage import TroubledKinesis

STREAM: Final = StreamRef("words")


class ModelProducer:
    """Puts into the model. `before` is called before each request; what it raises or gives is the answer instead."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: list[list[str]] = []
        self.before: Callable[[int], AwsError | None] = lambda _: None
        self.refuse: Callable[[int, Entry], bool] = lambda _number, _entry: False

    async def put(self, stream: StreamRef, entries: Sequence[Entry]) -> list[PutResult]:
        number = len(self.requests)
        self.requests.append([entry.partition_key for entry in entries])
        error = self.before(number)
        if error is not None:
            raise error
        return [
            PutResult("", "InternalFailure: slow") if self.refuse(number, entry) else self._put(entry)
            for entry in entries
        ]

    def _put(self, entry: Entry) -> PutResult:
        asked = {
            "StreamName": "words",
            "PartitionKey": entry.partition_key,
            "Data": base64.b64encode(entry.data).decode(),
        }
        return PutResult(cast("str", self._world.model.handle("PutRecord", asked)["ShardId"]))


class Stage:
    def __init__(self, *, aggregates: bool = False) -> None:
        self.world = World()
        self.producer = ModelProducer(self.world)
        self.said: list[str] = []
        self.writer = Writer(
            self.producer.put,
            self.world.kinesis,
            STREAM,
            self.world.clock,
            CalmChance(),
            self.said.append,
            aggregates=aggregates,
        )

    async def stored(self) -> list[str]:
        """The keys of what consumers get."""
        world = self.world
        follower = Follower(
            world.kinesis,
            STREAM,
            InitialPosition(StartAt.TRIM_HORIZON),
            RunUntil(None),
            (),
            world.clock,
            world.show,
            world.said.append,
        )
        await follower.run(await follower.shards())
        return world.keys


def lines(count: int, data: bytes = b"data") -> list[KeyedLine]:
    return [KeyedLine(f"line {number + 1}", data, str(number)) for number in range(count)]


def played(play: Callable[[], Awaitable[None]]) -> None:
    run_virtual(play)


def test_refused_records_come_before_the_lines_after_their_request() -> None:
    async def play() -> None:
        stage = Stage()
        stage.producer.refuse = lambda number, entry: number == 0 and int(entry.partition_key) % 2 == 1
        await stage.writer.put(lines(1000))
        assert [len(request) for request in stage.producer.requests] == [500, 250, 500]
        assert sorted(await stage.stored(), key=int) == list(map(str, range(1000)))
        assert stage.said == ["InternalFailure: slow; trying again"]
        assert (stage.writer.counts.lines, stage.writer.counts.bytes) == (1000, 4000)
        assert stage.writer.on_the_way is None

    played(play)


def test_it_waits_longer_and_longer_and_gives_up_when_nothing_was_ever_taken() -> None:
    async def play() -> None:
        stage = Stage()
        stage.producer.before = lambda _: Unavailable("no answer")
        began_s = stage.world.clock.monotonic()
        with pytest.raises(NotChanged, match="given up: no answer"):
            await stage.writer.put(lines(2))
        assert 10 < stage.world.clock.monotonic() - began_s < 20
        assert stage.writer.on_the_way == "line 1"

    played(play)


def test_throttling_after_a_success_is_retried_many_times() -> None:
    async def play() -> None:
        stage = Stage()
        stage.producer.before = lambda number: Throttled("slow") if 0 < number < 40 else None
        await stage.writer.put(lines(3))
        await stage.writer.put(lines(3))
        assert stage.writer.counts.lines == 6

    played(play)


def test_a_large_line_that_the_stream_refuses_costs_no_other() -> None:
    async def play() -> None:
        stage = Stage()
        large = KeyedLine("line 2", bytes(LARGE_BYTES + 1), "large")
        stage.producer.before = lambda number: InvalidRequest("too large") if number == 1 else None
        await stage.writer.put([*lines(1), large, *lines(1)])
        assert stage.producer.requests == [["0"], ["large"], ["0"]]
        assert (stage.writer.counts.lines, stage.writer.counts.refused) == (2, 1)
        (said,) = stage.said
        assert said.startswith("line 2 is not put: the stream takes no record of 1048582 bytes")

    played(play)


@pytest.mark.parametrize("error", [AccessDenied("no"), InvalidRequest("no")])
def test_an_error_that_no_retry_helps_ends_the_writer(error: AwsError) -> None:
    async def play() -> None:
        stage = Stage()
        stage.producer.before = lambda _: error
        with pytest.raises(type(error)):
            await stage.writer.put(lines(3))
        assert stage.writer.on_the_way == "line 1"

    played(play)


def test_a_reshard_between_the_list_of_shards_and_the_request_loses_nothing() -> None:
    async def play() -> None:
        stage = Stage(aggregates=True)
        await stage.writer.put(lines(50))
        stage.world.split(0, MAX_HASH // 2)
        await stage.writer.put(lines(50))
        assert stage.writer.counts.lines == 100
        assert sorted(await stage.stored(), key=int) == sorted([*map(str, range(50))] * 2, key=int)
        stage.world.merge(1, 2)
        stage.world.shown.clear()
        await stage.writer.put(lines(50))
        assert len(await stage.stored()) == 150

    played(play)


def test_a_signal_ends_trying_and_says_where() -> None:
    async def play() -> None:
        stage = Stage()

        def stop(number: int) -> AwsError | None:
            stage.writer.is_stopping = number == 1
            return Throttled("slow") if number else None

        stage.producer.before = stop
        await stage.writer.put(lines(600))
        assert stage.writer.on_the_way == "line 501"
        assert stage.writer.counts.lines == 500

    played(play)


def test_on_an_auto_stream_no_line_is_packed_and_that_is_said() -> None:
    async def play() -> None:
        stage = Stage(aggregates=True)
        auto(stage.world)
        await stage.writer.put(lines(50))
        assert (stage.writer.counts.lines, stage.writer.counts.records) == (50, 50)
        (said,) = stage.said
        assert "each line is a record of its own" in said
        assert await stage.stored() == list(map(str, range(50)))

    played(play)


def test_a_switch_to_auto_is_noticed_by_records_that_went_elsewhere() -> None:
    async def play() -> None:
        stage = Stage(aggregates=True)
        stage.world.split(0, MAX_HASH // 2)
        await stage.writer.put(lines(50))
        assert stage.writer.counts.records == 2
        auto(stage.world)
        for _ in range(4):
            stage.world.put("0")  # the next aggregate goes into the other shard
            await stage.writer.put(lines(50))
        assert not stage.writer.aggregates
        assert {*await stage.stored()} == {*map(str, range(50))}
        assert stage.writer.counts.lines == 250

    played(play)


def test_lines_are_packed_into_an_aggregate_although_describe_stream_is_denied() -> None:
    class Closed(TroubledKinesis):
        async def describe_stream(self, stream: StreamRef) -> StreamSummary:
            raise AccessDenied(f"{stream.name} is not yours", operation="DescribeStreamSummary")

    async def play() -> None:
        stage = Stage(aggregates=True)
        stage.writer.kinesis = Closed(stage.world.model)
        await stage.writer.put(lines(50))
        assert stage.writer.counts.records == 1
        assert len(stage.said) == 1

    played(play)
