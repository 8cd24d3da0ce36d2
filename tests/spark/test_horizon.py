"""No batch takes a record that arrived before what an earlier batch took, whatever relays, shards and the daemon do.

The engine's own parts without a JVM: spool, alignment and the planner's reader on drawn schedules, in virtual time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxBytes

from kcl_landing.positions import START, Position
from kcl_spark.alignment import SETTLE_S, Alignment, SkewLimits
from kcl_spark.conversation import ShardState
from kcl_spark.positions import from_offset, to_offset
from kcl_spark.source import KclStreamReader
from kcl_spark.spool import Spool
from kcl_spark.stores import FolderStore
from tests.examples import examples
from tests.spark.parts import at, no_tell, record, rows_of

NAMES = ("shardId-0", "shardId-1", "shardId-2")
CHILD = "shardId-9"
FIRST_MS = 1_000


@dataclass
class Served:
    """A relay's side of a shard: what it has read, and what the engine says of it."""

    state: ShardState
    read: int


@dataclass
class World:
    """One host: a stream, the daemon's relays, an engine, and a query that notes what its batches took."""

    folder: Path
    reach_ms: int
    now_ms: int = FIRST_MS
    arrived: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in NAMES})
    served: dict[str, Served] = field(default_factory=dict[str, Served])
    committed: dict[str, Position] = field(default_factory=dict[str, Position])
    planned: dict[str, Position] = field(default_factory=dict[str, Position])
    newest_ms: int = 0
    closed: str | None = None
    ended: bool = False
    stopping: bool = False

    def start(self) -> None:
        """The engine starts, and all relays come."""
        self.spool = Spool(FolderStore(self.folder), max_bytes=10**9)
        self.alignment = Alignment(SkewLimits(wait_s=10**6), no_tell)
        self.reader = KclStreamReader({"spool": str(self.folder)}, [])
        self.stopping, self.served = False, {}
        self.spool.set_horizon(-1)
        self.spool.reported(self.planned, self.committed)
        self.come()
        self.pass_time(1)
        self.pass_time(round(SETTLE_S * 1000))

    def put(self, name: str, count: int) -> None:
        if name != self.closed and name in self.arrived:
            self.arrived[name].extend([self.now_ms] * count)

    def close(self, name: str) -> None:
        """One shard is split: it has an end, and a child that begins once the end is confirmed."""
        self.closed = self.closed or name

    def come(self) -> None:
        """Relays come back at the checkpoints."""
        for name in self.arrived:
            if name not in self.served and not (name == self.closed and self.ended) and not self.stopping:
                begun = self.committed.get(name, START)
                self.spool.grant(name, begun, self)
                self.served[name] = Served(ShardState(name), begun[0] + 1)

    def read(self, name: str, most: int) -> None:
        """The daemon delivers the next records, of 0 nothing; at the tip it says until when that is all."""
        relay = self.served.get(name)
        if relay is None or not most or relay.state.is_drained or relay.state.is_last:
            return
        last = min(len(self.arrived[name]), relay.read + most)
        fresh = range(max(relay.read, self.spool.mark(name)[0] + 1), last)
        if fresh:
            records = [
                {**record(number), "approximateArrivalTimestamp": self.arrived[name][number]}
                for number in fresh
            ]
            self.spool.add(name, rows_of(records, name), at(fresh[-1]), self)
        at_tip = last == len(self.arrived[name])
        self.spool.complete(name, self.now_ms if at_tip else None, self)
        relay.read, relay.state.behind_ms = last, 0 if at_tip else 1_000
        if at_tip and name == self.closed:
            self.spool.leaves(name, is_last=True)
            relay.state.is_last = True

    def go(self, name: str) -> None:
        """The relay of a shard goes, whether it was drained or not."""
        if self.served.pop(name, None) is not None:
            self.spool.revoke(name, self)

    def stop(self, most: int) -> None:
        """The daemon asks for all shards, which leave one by one between batches; then it starts again."""
        self.stopping = True
        for name, relay in self.served.items():
            if not relay.state.is_last:
                relay.state.is_drained = True
                self.spool.leaves(name, is_last=False)
        for name in list(self.served):
            self.turn((0,) * len(NAMES), most)
            self.go(name)
        self.restart()

    def bounce(self, name: str, most: int) -> None:
        """The relay of a shard goes and comes back while others go on."""
        self.go(name)
        for _ in range(2):
            self.turn((3,) * len(NAMES), most)
        self.come()

    def restart(self) -> None:
        for name in list(self.served):
            self.go(name)
        self.start()

    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.spool.flush_aged()
        self.spool.reported(self.planned, self.committed)
        for name, relay in list(self.served.items()):
            relay.state.asked_s = (
                None if relay.state.is_drained or relay.state.is_last else self.now_ms / 1000
            )
            if relay.state.is_last and self.committed.get(name, START)[0] + 1 >= len(self.arrived[name]):
                relay.state.ended = self.ended = True
                self.arrived.setdefault(CHILD, [])
        self.alignment.set_horizon(
            [each.state for each in self.served.values()], self.spool, self.now_ms / 1000
        )

    def plan(self, most: int) -> None:
        """The next batch, unless one is planned."""
        if self.planned == self.committed:
            end = from_offset(self.reader.latestOffset(to_offset(self.planned), ReadMaxBytes(most)))
            assert end is not None
            taken = [
                self.arrived[name][number]
                for name, last in end.items()
                for number in range(self.planned.get(name, START)[0] + 1, last[0] + 1)
            ]
            assert min(taken, default=self.newest_ms) >= self.newest_ms - self.reach_ms
            self.newest_ms, self.planned = max(self.newest_ms, *taken, 0), end

    def commit(self) -> None:
        self.committed = self.planned

    def turn(self, reads: tuple[int, ...], most: int) -> None:
        """Each shard delivers some, and the next batch takes what it may."""
        for name, count in zip(NAMES, reads, strict=True):
            self.put(name, 2)
            self.now_ms += 30
            self.read(name, count)
        self.pass_time(110)
        self.commit()
        self.plan(most)

    def finish(self) -> None:
        """Relays come back and read all: batches take every record."""
        self.restart()
        done = dict[str, int]()
        for _ in range(200):
            self.come()
            for name in self.arrived:
                self.read(name, 1_000)
            self.pass_time(200)
            self.plan(10**9)
            self.commit()
            done = {name: self.committed.get(name, START)[0] + 1 for name in self.arrived}
            if done == {name: len(each) for name, each in self.arrived.items()}:
                return
            self.pass_time(2_000)
        raise AssertionError(f"batches took {done} of {self.arrived}")


Step = Callable[[World], None]


def steps() -> st.SearchStrategy[Step]:
    name = st.sampled_from([*NAMES, CHILD])
    most = st.sampled_from([1, 3_000, 10**9])
    reads = st.tuples(*[st.sampled_from([0, 1, 3, 100])] * len(NAMES))
    turn = st.builds(lambda counts, size: lambda world: world.turn(counts, size), reads, most)
    return st.one_of(
        *[turn] * 4,
        st.builds(lambda each, count: lambda world: world.put(each, count), name, st.integers(1, 3)),
        st.builds(lambda each, most: lambda world: world.read(each, most), name, st.integers(1, 5)),
        st.builds(lambda passed: lambda world: world.pass_time(passed), st.sampled_from([1, 60, 110, 500])),
        st.builds(lambda size: lambda world: world.plan(size), most),
        st.just(lambda world: world.commit()),
        st.builds(lambda each, size: lambda world: world.bounce(each, size), name, most),
        st.just(lambda world: world.come()),
        st.builds(lambda size: lambda world: world.stop(size), most),
        st.just(lambda world: world.restart()),
        st.builds(lambda each: lambda world: world.close(each), st.sampled_from(NAMES)),
    )


@settings(max_examples=examples(200))
@given(st.sampled_from([0, 100]), st.lists(steps(), min_size=5, max_size=30))
def test_no_row_of_a_batch_is_older_than_what_an_earlier_batch_took(
    reach_ms: int, schedule: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), reach_ms)
        with (
            mock.patch("kcl_spark.spool.monotonic_s", lambda: world.now_ms / 1000),
            mock.patch("kcl_spark.alignment.TIP_REACH_MS", reach_ms),
        ):
            for number in range(30):
                world.put(NAMES[number % len(NAMES)], 2)
                world.now_ms += 40
            world.start()
            for step in schedule:
                step(world)
            world.finish()
