"""`tail` in virtual time, over the model of Kinesis with the service's limits."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
import pytest

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.stream.follow import Follower
from kcl_daemon.config.kinds import RunUntil
from kcl_daemon.errors import IteratorExpired, StreamNotFound, Throttled, Unavailable
from kcl_daemon.leases.lease import MAX_HASH, ShardId
from kcl_daemon.ports import IteratorKind, ReadFrom, StreamRef
from kcl_daemon.records.payload import AnyRecord, key_text
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_local.kinesis.arguments import KinesisOptions, ReadLimits
from kcl_local.kinesis.model import KinesisModel
from kcl_local.kinesis.stream import stream_arn
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock
from tests.unit.records.aggregates import aggregate
from tests.unit.retrieval.stage import TroubledKinesis

STREAM: Final = StreamRef("words")
OLDEST: Final = InitialPosition(StartAt.TRIM_HORIZON)
NEWEST: Final = InitialPosition(StartAt.LATEST)
TIP: Final = RunUntil(None)


class World:
    """A stream, and what a follower has shown of it."""

    def __init__(self, shards: int = 1, options: KinesisOptions | None = None) -> None:
        clock = self.clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000, options or KinesisOptions())
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": shards})
        self.kinesis = TroubledKinesis(self.model)
        self.shown: list[tuple[str, str]] = []
        self.said: list[str] = []

    def put(self, *keys: str, data: bytes = b"data") -> None:
        for key in keys:
            self.model.handle(
                "PutRecord",
                {"StreamName": "words", "PartitionKey": key, "Data": base64.b64encode(data).decode()},
            )

    def shard(self, number: int) -> str:
        return f"shardId-{number:012}"

    def split(self, number: int, at: int) -> None:
        self.model.handle(
            "SplitShard",
            {"StreamName": "words", "ShardToSplit": self.shard(number), "NewStartingHashKey": str(at)},
        )

    def merge(self, number: int, other: int) -> None:
        self.model.handle(
            "MergeShards",
            {
                "StreamName": "words",
                "ShardToMerge": self.shard(number),
                "AdjacentShardToMerge": self.shard(other),
            },
        )

    async def show(self, shard_id: ShardId, records: Sequence[AnyRecord]) -> None:
        self.shown += [(shard_id, key_text(record) or "") for record in records]

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.shown]

    async def follow(
        self, start: InitialPosition = OLDEST, until: RunUntil | None = TIP, only: Sequence[str] = ()
    ) -> None:
        follower = Follower(self.kinesis, STREAM, start, until, only, self.clock, self.show, self.said.append)
        await follower.run(await follower.shards())


def in_virtual_time(play: Callable[[], Awaitable[None]]) -> None:
    run_virtual(play)


def test_following_ends_at_the_tip_or_goes_on() -> None:
    async def play() -> None:
        world = World(2)
        world.put(*map(str, range(50)))
        await world.follow()
        assert sorted(world.keys, key=int) == list(map(str, range(50)))

        world.shown.clear()
        with anyio.move_on_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(world.follow, NEWEST, None)
                await anyio.sleep(5)
                world.put("later")
        assert world.keys == ["later"]

    in_virtual_time(play)


def test_following_begins_and_ends_at_the_given_times() -> None:
    async def play() -> None:
        world = World()
        for number in range(10):
            world.put(str(number))
            await anyio.sleep(60)
        at_s = world.clock.wall_ms() / 1000
        start = InitialPosition(StartAt.TIMESTAMP, at_s - 450)
        await world.follow(start, RunUntil(round((at_s - 150) * 1000)))
        assert world.keys == ["3", "4", "5", "6", "7"]
        began_s = anyio.current_time()
        await world.follow(NEWEST, RunUntil(world.clock.wall_ms() + 20_000))
        assert 20 < anyio.current_time() - began_s < 30

    in_virtual_time(play)


def test_children_come_after_all_their_parents() -> None:
    async def play() -> None:
        world = World(2)
        world.put(*map(str, range(40)))
        world.split(0, MAX_HASH // 4)
        world.put(*map(str, range(40, 80)))
        world.merge(3, 1)
        world.put(*map(str, range(80, 120)))
        await world.follow()

        assert sorted(world.keys, key=int) == list(map(str, range(120)))
        places = {
            shard: [at for at, (each, _) in enumerate(world.shown) if each == shard]
            for shard in map(world.shard, range(5))
        }
        zero, one, two, three, merged = places.values()
        assert max(zero) < min(*two, *three)
        assert max(*one, *three) < min(merged)

    in_virtual_time(play)


def test_a_shard_that_was_named_brings_its_children_and_no_others() -> None:
    async def play() -> None:
        world = World(2)
        world.put(*map(str, range(40)))
        world.split(0, MAX_HASH // 4)
        world.put(*map(str, range(40, 80)))
        await world.follow(only=("0",))
        assert {shard for shard, _ in world.shown} == {world.shard(number) for number in (0, 2, 3)}
        world.shown.clear()
        await world.follow(only=(world.shard(1),))
        assert {shard for shard, _ in world.shown} == {world.shard(1)}
        with pytest.raises(NotChanged, match="no shard 9; it has shardId-000000000000, "):
            await world.follow(only=("0", "9"))

    in_virtual_time(play)


def test_a_split_while_it_follows_loses_nothing() -> None:
    async def play() -> None:
        world = World()
        with anyio.move_on_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(world.follow, NEWEST, None)
                await anyio.sleep(2)
                world.put("before")
                world.split(0, MAX_HASH // 2)
                world.put(*"abcdefgh")
        assert world.keys[0] == "before"
        assert sorted(world.keys[1:]) == list("abcdefgh")

    in_virtual_time(play)


def test_troubles_are_said_once_and_lose_nothing() -> None:
    async def play() -> None:
        world = World()
        world.put("a", "b", "c", "d")
        world.kinesis.troubles.extend([
            Throttled("slow"), Throttled("slow"), None, Unavailable("gone"), Unavailable("gone"), IteratorExpired("old"),
        ])  # fmt: skip
        await world.follow()
        assert world.keys == ["a", "b", "c", "d"]
        assert [said.partition(":")[0].partition(";")[0] for said in world.said] == [
            "others read this stream too",
            "gone",
        ]
        last = world.kinesis.positions[-1]
        assert last.kind is IteratorKind.AFTER_SEQUENCE_NUMBER

    in_virtual_time(play)


def test_an_iterator_that_expires_before_any_record_loses_none() -> None:
    async def play() -> None:
        world = World(options=KinesisOptions(iterator_ttl_s=300))
        with anyio.move_on_after(1200):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(world.follow, NEWEST, None)
                await anyio.sleep(5)
                world.kinesis.refusal = Throttled("slow")
                await anyio.sleep(100)
                world.put("meanwhile")
                await anyio.sleep(300)
                world.kinesis.refusal = None
        assert world.keys == ["meanwhile"]
        assert world.kinesis.positions[1].kind is IteratorKind.AT_TIMESTAMP

    in_virtual_time(play)


def test_a_deleted_stream_ends_it() -> None:
    async def play() -> None:
        world = World()
        world.kinesis.refusal = StreamNotFound("gone")
        with pytest.raises(ExceptionGroup) as raised:
            await world.follow()
        assert raised.group_contains(StreamNotFound)

    in_virtual_time(play)


def test_aggregates_are_taken_apart_and_broken_ones_shown() -> None:
    async def play() -> None:
        world = World()
        world.put("outer", data=aggregate([("a", b"1", None), ("b", b"2", None)]))
        world.put("broken", data=aggregate([("a", b"1", None)])[:-1])
        world.put("broken too", data=aggregate([("a", b"1", None)])[:-1])
        await world.follow()
        assert world.keys == ["a", "b", "broken", "broken too"]
        (said,) = world.said
        assert "begins like a KPL aggregate" in said

    in_virtual_time(play)


@pytest.mark.parametrize("record_bytes", [200, 1_000, 20_000, 250_000])
def test_a_reader_beside_it_is_never_refused(record_bytes: int) -> None:
    """It takes its four reads a second, of all that a shard can be written with: 1 MiB a second."""
    refused, read = 0, 0

    async def write(world: World) -> None:
        data, per_s = bytes(record_bytes), min(1000, 2**20 // record_bytes)
        while True:
            for _ in range(4):
                world.put(*["k"] * (per_s // 4), data=data)
                await anyio.sleep(0.25)

    async def consume(world: World) -> None:
        nonlocal refused, read
        shard = ShardId(world.shard(0))
        iterator: str | None = await world.kinesis.get_shard_iterator(
            STREAM, shard, ReadFrom(IteratorKind.LATEST)
        )
        await anyio.sleep(0.11)
        while iterator is not None:
            try:
                fetched = await world.kinesis.get_records(STREAM, shard, iterator, 10_000)
                iterator, read = fetched.next_iterator, read + len(fetched.payload)
            except Throttled:
                refused += 1
            await anyio.sleep(0.252)  # by a millisecond a fifth one must not fall into the second of four

    async def play() -> None:
        world = World(options=KinesisOptions(limits=ReadLimits()))
        # What is there already is read with all that the share allows.
        for _ in range(80):
            world.put(*["k"] * max(1, 2**18 // record_bytes), data=bytes(record_bytes))
        with anyio.move_on_after(40):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, world)
                tasks.start_soon(consume, world)
                tasks.start_soon(world.follow, OLDEST, None)
        assert world.said == []
        rate = len(world.shown) * record_bytes / 40
        assert rate > 0.5 * min(2 * 2**20 / 5, 1000 * record_bytes)

    in_virtual_time(play)
    assert refused == 0
    assert read > 0


def auto(world: World, strategy: str = "AUTO") -> None:
    arn = {"StreamARN": stream_arn("words")}
    on_demand = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
    world.model.handle("UpdateStreamMode", {**arn, **on_demand})
    strategy_now = {"RecordDistributionStrategy": strategy}
    world.model.handle("UpdateStreamRecordDistributionStrategy", {**arn, **strategy_now})


def test_records_of_other_shards_are_left_out_and_that_is_said() -> None:
    async def play() -> None:
        world = World(2)
        far = str(MAX_HASH)
        world.put("k0", data=aggregate([("a", b"1", "0"), ("b", b"2", far), ("c", b"3", far)]))
        world.put("k0", data=aggregate([("d", b"4", far), ("e", b"5", "0")]))
        await world.follow()
        assert world.keys in (["a", "e"], ["b", "c", "d"])
        (said,) = world.said
        assert "left out: their keys belong to other shards" in said

    in_virtual_time(play)


def test_on_an_auto_stream_nothing_is_left_out() -> None:
    async def play() -> None:
        world = World(2)
        auto(world)
        world.put("k0", data=aggregate([("a", b"1", "0"), ("b", b"2", str(MAX_HASH))]))
        await world.follow()
        assert (world.keys, world.said) == (["a", "b"], [])

    in_virtual_time(play)
