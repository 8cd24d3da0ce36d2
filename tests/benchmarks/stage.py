"""A simulated fleet that a benchmark drives step by step: the production graph in virtual time, checkers included.

Owns the course of one run and what is measured of it. Knows nothing of what is to be shown (`fleet`).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan
from tests.simulator.fleet.workers import SimWorker
from tests.simulator.fleet.world import Sabotage, World
from tests.simulator.loop import now, run_virtual
from tests.simulator.plans.plan import Plan
from tests.simulator.trace import Trace

T = TypeVar("T")
_LOOK_S: Final = 0.05
_HASHES: Final = 1 << 128
# What nobody ends: a benchmark ends its run itself.
_NEVER_S: Final = 1e9


class NotInTime(AssertionError):
    """Raised when a fleet has not come to what was awaited."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """A lease that a leader gave to somebody: when, which one, to whom and why."""

    at_s: float
    lease_key: str
    to: str
    reason: str


class Watch(Trace):
    """Keeps what benchmarks ask about instead of a digest."""

    def __init__(self) -> None:
        super().__init__()
        self.reader: dict[str, str] = {}
        self.deliveries: dict[str, list[float]] = {}
        self.assigned: list[Assigned] = []

    def note(self, who: str, event: str, detail: str = "") -> None:
        """Remember who was given records of which shard."""
        if event == "delivered":
            shard_id = detail.split(" ", 1)[0]
            self.reader[shard_id] = who
            self.deliveries.setdefault(shard_id, []).append(now())

    def log(
        self, who: str, level: str, event: str, *, bound: dict[str, object], fields: dict[str, object]
    ) -> None:
        """Remember assignments; warnings and faults as in every run."""
        if event == "lease_assigned":
            self.assigned.append(
                Assigned(now(), str(fields["lease_key"]), str(fields["to"]), str(fields["reason"]))
            )
        super().log(who, level, event, bound=bound, fields=fields)


class Stage:
    """One run. `world` is the simulator's, to be used at will."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.chance = Chance(f"benchmark/{name}")
        self.watch = Watch()
        self.plan = plan
        self.world = World(plan, self.chance.fork("world"), self.watch, Sabotage())

    def start(self) -> SimWorker:
        """A new worker process."""
        return self.world.fleet.start()

    async def begin(self, workers: int) -> None:
        """Stream and producers, workers within two seconds; returns when all shards are read, as many by each."""
        self.world.begin()
        for _ in range(workers):
            self.start()
            await anyio.sleep(self.chance.uniform(0.0, 2.0 / workers))
        await self.until(lambda: self.is_even(workers), within_s=180.0, what="an even start")

    def held(self, worker_id: str) -> list[str]:
        """The shards that a worker reads by the lease table."""
        return [key for key, view in self.world.rules.views.items() if view.reader == worker_id]

    def counts(self) -> Counter[str]:
        """Number of shards by the worker that reads them; empty while something is not read or on its way."""
        views = self.world.rules.views.values()
        if any(view.owner is None or view.checkpoint_owner is not None for view in views):
            return Counter()
        return Counter(str(view.owner) for view in views)

    def is_even(self, workers: int) -> bool:
        """Whether so many workers read all shards, none of them two more than another."""
        counts = self.counts()
        complete = counts.total() == self.plan.shards and len(counts) == min(workers, self.plan.shards)
        return complete and max(counts.values()) - min(counts.values()) <= 1

    def is_reading(self, worker_id: str) -> bool:
        """Whether a worker was the last to be given records of some shard."""
        return worker_id in self.watch.reader.values()

    def is_read_as_assigned(self) -> bool:
        """Whether the last records of each shard went to its present owner."""
        views = self.world.rules.views
        return len(views) == self.plan.shards and all(
            self.watch.reader.get(key) == view.owner for key, view in views.items()
        )

    def kbps(self, shard_id: str) -> float:
        """What is written to a shard, in KiB per second, where the plan spreads records without chance."""
        row = self.world.rules.rows[shard_id]
        low, high = (int(str(row[name])) / _HASHES for name in ("startingHashKey", "endingHashKey"))
        part = high ** (1 / self.plan.skew) - low ** (1 / self.plan.skew)
        return float(part * self.plan.records_per_s * self.plan.record_bytes / 1024)

    async def until(self, condition: Callable[[], bool], *, within_s: float, what: str) -> float:
        """Wait for something; how many seconds it took.

        Raises:
            NotInTime: it did not happen.
        """
        began_s = now()
        while not condition():
            if now() - began_s > within_s:
                raise NotInTime(f"{what}: not within {within_s:g} s; {dict(self.counts())}")
            await anyio.sleep(_LOOK_S)
        return now() - began_s


def play(plan: Plan, name: str, act: Callable[[Stage], Awaitable[T]]) -> T:
    """Run a benchmark's act on a fresh stage; the same name, the same run.

    Raises:
        NotInTime: the fleet did not come to what the act awaited.
        Violation: it broke a rule.
    """

    async def course() -> T:
        stage = Stage(plan, name)
        result = await act(stage)
        for worker in stage.world.fleet.workers:
            worker.life.kill()
        await anyio.sleep(1.0)
        return result

    collects = gc.isenabled()
    gc.disable()  # as in the runner of scenarios
    try:
        return run_virtual(course)
    finally:
        if collects:
            gc.enable()
            gc.collect()


def plan_for(shards: int, *, records_per_shard_s: float, record_bytes: int = 512, skew: float = 1.0) -> Plan:
    """A plan without faults and without an end, with children that checkpoint each batch."""
    return Plan(
        shards=shards,
        records_per_s=shards * records_per_shard_s,
        record_bytes=record_bytes,
        skew=skew,
        events=(),
        children_plan=ChildrenPlan(behaviour=Behaviour()),
        calm_at_s=_NEVER_S,
        ends_at_s=_NEVER_S,
    )
