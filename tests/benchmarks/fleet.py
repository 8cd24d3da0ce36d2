"""What is measured of a fleet: requests when idle, fail-over, a joining worker, a rolling deploy, convergence.

Owns the acts on the stage and the figures they give. Knows nothing of bounds (`test_fleet`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from math import inf
from statistics import median
from typing import Final

import anyio

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.config.retrieval import RetrievalSettings
from tests.benchmarks.stage import Assigned, NotInTime, Stage, plan_for, play
from tests.simulator.fleet.workers import SimWorker
from tests.simulator.loop import now

DYNAMODB: Final = ("UpdateItem", "GetItem", "Query", "Scan", "PutItem", "DeleteItem")
# Idle fleets are read this seldom to save time: how often Kinesis is asked does not change what DynamoDB is asked.
_IDLE_READS: Final = RetrievalSettings(idle_time_between_reads_ms=30_000)
_SETTLING_S: Final = 60.0
# Moves of one balancing run are closer together than this, two runs are further apart.
_BURST_S: Final = 10.0


# --- requests of idle fleets


def idle_requests(shards: int, workers: int, *, minutes: float) -> dict[str, float]:
    """DynamoDB requests per minute by operation, default settings, nothing in the stream."""
    plan = replace(plan_for(shards, records_per_shard_s=0.0), retrieval=_IDLE_READS)

    async def act(stage: Stage) -> dict[str, float]:
        await stage.begin(workers)
        await anyio.sleep(_SETTLING_S)
        before = dict(stage.world.network.calls)
        await anyio.sleep(minutes * 60)
        after = dict(stage.world.network.calls)
        if not stage.is_even(workers):
            raise NotInTime(f"an idle fleet did not stay as it was: {dict(stage.counts())}")
        return {name: (after.get(name, 0) - before.get(name, 0)) / minutes for name in DYNAMODB}

    return play(plan, f"idle/{shards}/{workers}", act)


# --- fail-over


class Victim(Enum):
    """Who is killed."""

    LEADER = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds over several seeds, in the order of the seeds."""

    seconds: tuple[float, ...]

    @property
    def worst_s(self) -> float:
        """The longest."""
        return max(self.seconds)

    @property
    def median_s(self) -> float:
        """The one in the middle."""
        return median(self.seconds)

    @property
    def worst_seed(self) -> int:
        """The first seed with the longest."""
        return self.seconds.index(self.worst_s) + 1


def fail_over(
    *, workers: int, victim: Victim, failover_ms: int = 10_000, seeds: int, shards: int = 8
) -> Spread:
    """SIGKILL until each shard of the dead worker delivers again, replacements none."""
    plan = replace(
        plan_for(shards, records_per_shard_s=4.0), leases=LeaseSettings(failover_time_ms=failover_ms)
    )

    async def act(stage: Stage) -> float:
        await stage.begin(workers)
        await anyio.sleep(stage.chance.uniform(5.0, 45.0))
        dying = _victim(stage, victim)
        shard_ids = [key for key, reader in stage.watch.reader.items() if reader == dying.worker_id]
        if not shard_ids:
            raise NotInTime(f"{dying.worker_id} reads nothing any more: {dict(stage.counts())}")
        dying.life.kill()
        return await stage.until(
            lambda: all(stage.watch.reader.get(shard_id) != dying.worker_id for shard_id in shard_ids),
            within_s=180.0,
            what="fail-over",
        )

    name = f"fail-over/{workers}/{victim.name}/{failover_ms}/{shards}"
    return Spread(tuple(play(plan, f"{name}/{seed}", act) for seed in range(1, seeds + 1)))


def _victim(stage: Stage, victim: Victim) -> SimWorker:
    leader = stage.world.leader.owner
    wanted = victim is Victim.LEADER
    return stage.chance.pick(
        [worker for worker in stage.world.fleet.living if (worker.worker_id == leader) is wanted]
    )


# --- a third worker


def joining(*, seeds: int, with_cpu: bool) -> Spread:
    """A third worker starts beside two busy ones: until the eight shards are read 3, 3 and 2 and deliver there."""
    plan = plan_for(8, records_per_shard_s=4.0, record_bytes=4096)

    async def act(stage: Stage) -> float:
        if with_cpu:
            stage.world.fleet.cpu_of = lambda worker_id: SimCpu(stage, worker_id, cost=0.6)
        await stage.begin(2)
        await anyio.sleep(stage.chance.uniform(40.0, 160.0))
        stage.start()
        return await stage.until(
            lambda: stage.is_even(3) and stage.is_read_as_assigned(), within_s=300.0, what="balance of three"
        )

    return Spread(tuple(play(plan, f"joining/{with_cpu}/{seed}", act) for seed in range(1, seeds + 1)))


# --- rolling deploy


@dataclass(frozen=True, slots=True)
class Deploy:
    """How a rolling deploy went.

    Args:
        quiet_gap_s: the longest time between two deliveries of a shard in the minute before.
        worst_gap_s: the same from the first stop to 30 s after the last start.
        repeats: records that were given to a child more than once.
        moves: assignments by the leader.
        took_s: from the first stop until the last replacement reads.
    """

    quiet_gap_s: float
    worst_gap_s: float
    repeats: int
    moves: int
    took_s: float


def rolling_deploy(seed: int, *, workers: int = 5, shards: int = 50) -> Deploy:
    """Each worker in turn is stopped gracefully and replaced when it has ended; the next when the replacement reads."""
    plan = plan_for(shards, records_per_shard_s=4.0)

    async def act(stage: Stage) -> Deploy:
        await stage.begin(workers)
        await anyio.sleep(90.0)
        began_s, moves = now(), len(stage.watch.assigned)
        for worker in list(stage.world.fleet.living):
            worker.stop()
            await worker.ended.wait()
            await anyio.sleep(stage.chance.uniform(0.5, 2.0))
            replacement = stage.start()
            await stage.until(
                partial(stage.is_reading, replacement.worker_id), within_s=120.0, what="a reading replacement"
            )
        took_s = now() - began_s
        await anyio.sleep(30.0)
        return Deploy(
            quiet_gap_s=_longest_gap(stage, began_s - 60.0, began_s),
            worst_gap_s=_longest_gap(stage, began_s, now()),
            repeats=stage.world.truth.repeats,
            moves=len(stage.watch.assigned) - moves,
            took_s=took_s,
        )

    return play(plan, f"deploy/{workers}/{shards}/{seed}", act)


def _longest_gap(stage: Stage, from_s: float, to_s: float) -> float:
    """The longest time without a delivery that ended in this period, over all shards; one that still lasts counts."""
    longest_s = 0.0
    for times in stage.watch.deliveries.values():
        moments = [*times, to_s]
        gaps = [later - earlier for earlier, later in pairwise(moments) if from_s < later <= to_s]
        longest_s = max(longest_s, *gaps)
    return longest_s


# --- convergence


class SimCpu:
    """Port Cpu: what the host does besides, and a worker's own cost for each KiB per second that it reads.

    Args:
        stage: knows what is written to which shard and who reads it.
        worker_id: whose figure this is.
        cost: percentage points for one KiB per second.
        base: percent without any lease.
    """

    name = "simulated"

    def __init__(self, stage: Stage, worker_id: str, *, cost: float, base: float = 4.0) -> None:
        self._stage = stage
        self._worker_id = worker_id
        self._cost = cost
        self._base = base

    def percent(self) -> float:
        """As it is now."""
        reading_kbps = sum(self._stage.kbps(shard_id) for shard_id in self._stage.held(self._worker_id))
        return min(100.0, self._base + self._cost * reading_kbps)

    async def sample(self) -> float | None:
        """As the port says."""
        return self.percent()


@dataclass(frozen=True, slots=True)
class Convergence:
    """How a fleet came to rest.

    Args:
        seconds: from the first assignment until all were within the band, for good.
        runs: balancing runs that moved something by then.
        moves: leases moved by then, first assignments not counted.
        later_moves: leases moved in the hour after.
        percents: CPU of the workers at the end.
    """

    seconds: float
    runs: int
    moves: int
    later_moves: int
    percents: tuple[float, ...]


def converging(
    seed: int, *, shards: int, costs: Sequence[float] = (1.0, 1.5, 2.5), skew: float = 1.5, band: float = 0.1
) -> Convergence:
    """Workers of unequal speed start together on skewed shards; watched for an hour after they are balanced.

    Balanced is: nobody's CPU is further from the average than the band, or than two percentage points.
    """
    plan = plan_for(shards, records_per_shard_s=1.0, record_bytes=1536, skew=skew)

    async def act(stage: Stage) -> Convergence:
        cpus = {
            f"worker-{n}": SimCpu(stage, f"worker-{n}", cost=cost) for n, cost in enumerate(costs, start=1)
        }
        stage.world.fleet.cpu_of = cpus.__getitem__
        await stage.begin(len(costs))
        began_s = stage.watch.assigned[0].at_s
        await stage.until(
            lambda: _within(cpus, band) and bool(stage.counts()), within_s=1800.0, what="balance"
        )
        balanced_s = now()
        await anyio.sleep(3600.0)
        by_then = [each for each in stage.watch.assigned if each.at_s <= balanced_s and " -> " in each.reason]
        return Convergence(
            seconds=balanced_s - began_s,
            runs=_bursts(by_then),
            moves=len(by_then),
            later_moves=sum(1 for each in stage.watch.assigned if each.at_s > balanced_s),
            percents=tuple(round(cpu.percent(), 1) for cpu in cpus.values()),
        )

    return play(plan, f"converging/{shards}/{skew}/{costs}/{seed}", act)


def _within(cpus: dict[str, SimCpu], band: float) -> bool:
    percents = [cpu.percent() for cpu in cpus.values()]
    average = sum(percents) / len(percents)
    return all(abs(percent - average) <= max(band * average, 2.0) for percent in percents)


def _bursts(assigned: Sequence[Assigned]) -> int:
    """How many runs these moves were made in."""
    times = [each.at_s for each in assigned]
    return sum(1 for earlier, later in pairwise([-inf, *times]) if later - earlier > _BURST_S)
