"""Carries out one plan and says how it went.

Owns the course of a run: faults, then calm, then the end of the stream, then a graceful stop of all. Knows nothing of
how scenarios are drawn (`scenarios`).
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

import anyio

from kcl_daemon import faults
from kcl_daemon.config.kinds import RunUntil
from kcl_daemon.ports import CloudWatch
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.points import Visits
from tests.simulator.fleet.workers import SimWorker
from tests.simulator.fleet.world import Sabotage, World
from tests.simulator.loop import current_loop, now, run_virtual
from tests.simulator.pairs.evidence import seen_in
from tests.simulator.plans.plan import Kind, Plan
from tests.simulator.rules.liveness import LOOK_S
from tests.simulator.rules.progress import ProgressRules
from tests.simulator.scenarios.until import UntilRules
from tests.simulator.trace import Trace, Write
from tests.simulator.violation import Violation

# For so long a worker row counts after its last report, by its date.
_DATES_RIGHT_S: Final = 60.0
# Where a plan ends early.
_WELL_FOR_S: Final = 30.0
# Records wait for their turn also where all is well.
_USUAL_S: Final = 6.0
# A child may take shutdownGraceMillis, then EOF, SIGTERM and SIGKILL one after the other.
_STOP_BOUND_S: Final = 45.0
# Agreement on a leader takes a look in five minutes; then come ten minutes of readiness, and the looks of all at its end.
_VERSION_BOUND_S: Final = 1200.0
# A deploy of all workers that waited for trouble to end, a minute for what they left, and the bake time.
_TABLES_BOUND_S: Final = 600.0
# Until a worker that started knows Kinesis' time: its start may be retried.
_START_MOST_S: Final = 150.0
# The row of a killed worker counts for a minute after its last report.
_ROW_LASTS_S: Final = 150.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went.

    Args:
        scenario: its name.
        seed: with which it can be replayed.
        virtual_s: how long it lasted in virtual time.
        records: written to the stream.
        repeats: deliveries that were not the first of their record.
        latency_most_s: the longest that a record waited for its first child.
        checkpoints: checkpoints that moved a row.
        leaders: who led, in turn.
        callbacks: what the event loop ran.
        digest: the same for two runs in which the same happened.
        violation: what was wrong, None: nothing.
        gaps_s: how long shards stood still at planned hand-offs.
        faults: how often what was wrong, by kind.
        leases_per_shard: how many leases there were for each live shard of a DynamoDB stream, at most.
        points: of each point between two writes that was come to: how often, and how many were killed and paused there.
        seen: how often what a factor of `pairs` is about was met.
    """

    scenario: str
    seed: int
    virtual_s: float
    records: int
    repeats: int
    latency_most_s: float
    checkpoints: int
    leaders: tuple[str, ...]
    callbacks: int
    digest: str
    violation: Violation | None
    gaps_s: tuple[float, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict[str, int])
    leases_per_shard: float = 0.0
    points: Mapping[str, Visits] = field(default_factory=dict[str, Visits])
    seen: Mapping[str, int] = field(default_factory=dict[str, int])


def run_plan(
    plan: Plan,
    *,
    scenario: str,
    seed: int,
    write: Write | None = None,
    sabotage: Sabotage | None = None,
    cloudwatch: CloudWatch | None = None,
) -> Outcome:
    """Run it to its end or to the first violation; `cloudwatch` is told what the workers count."""
    trace = Trace(write)
    course = _Course(plan, Chance(f"{scenario}/{seed}/run"), trace, sabotage or Sabotage())
    course.cloudwatch = cloudwatch
    violation: Violation | None = None
    collects = gc.isenabled()
    gc.disable()  # a collection in the middle costs time and finds nothing: a run is short
    try:
        run_virtual(course.run)
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever ends a run is reported with its seed
        violation = _first_violation(error) or Violation(type(error).__name__, repr(error), course.virtual_s)
    finally:
        faults.inject(None)
        if collects:
            gc.enable()
            gc.collect()
    world = course.world
    return Outcome(
        scenario=scenario,
        seed=seed,
        virtual_s=course.virtual_s,
        records=world.truth.records if world else 0,
        repeats=world.truth.repeats if world else 0,
        latency_most_s=world.deliveries.latency_most_s if world else 0.0,
        checkpoints=world.rules.checkpoints if world else 0,
        leaders=tuple(world.leader.owners) if world else (),
        callbacks=course.callbacks,
        digest=trace.digest,
        violation=violation,
        gaps_s=tuple(world.gaps.measured_s) if world else (),
        faults=world.faults_by_kind if world else {},
        leases_per_shard=world.changed.ratio_most if world and world.changed else 0.0,
        points=world.points.visits if world else {},
        seen=seen_in(world) if world else {},
    )


def _first_violation(error: BaseException) -> Violation | None:
    """The violation that ended a run; what went wrong while the run was being cleared away hides it."""
    found: Violation | None = None
    following: BaseException | None = error
    while following is not None:
        if isinstance(following, Violation):
            found = following
        following = following.__context__
    return found


def _is_stored(world: World) -> bool:
    """By the children, where they have a store of their own."""
    bank, landing = world.bank, world.landing
    is_landed = landing is None or not landing.missing
    return (bank is None or not bank.missing()) and is_landed and _is_read(world)


def _is_read(world: World) -> bool:
    return world.marks is None or world.marks.reader.is_done


class _Course:
    """One run from its first to its last moment."""

    def __init__(self, plan: Plan, chance: Chance, trace: Trace, sabotage: Sabotage) -> None:
        self._plan = plan
        self._chance = chance
        self._ends_early = plan.ends_early and not (plan.is_quiet or plan.names_stand_alone)
        self._trace = trace
        self._sabotage = sabotage
        self.world: World | None = None
        self.cloudwatch: CloudWatch | None = None
        self.virtual_s = 0.0
        self.callbacks = 0

    async def run(self) -> None:
        loop = current_loop()
        self.world = world = World(self._plan, self._chance, self._trace, self._sabotage)
        world.fleet.cloudwatch = self.cloudwatch
        faults.inject(world.points.reached)
        reported = ProgressRules(
            truth=world.truth,
            rules=world.rules,
            deliveries=world.deliveries,
            trace=self._trace,
            workers=lambda: world.fleet.living,
            may_be_held=lambda key: world.holds.may_be_held(key) or world.deliveries.is_paused(key),
        )
        try:
            world.begin()
            if self._plan.jobs:
                await self._run_jobs(world)
                return
            reported.begin()
            await anyio.sleep(self._plan.calm_at_s)
            world.calm_down()
            await self._watch_calm(world)
            await self._arrive(world)
            if self._plan.moves_tables:
                await self._arrive_in_one_table(world)
            await self._finish(world)
            await self._stop_all(world)
            self._judge(world, await self._believed(world))
        finally:
            self.virtual_s = now()
            self.callbacks = loop.handles_run

    async def _run_jobs(self, world: World) -> None:
        """One bounded job after the other; each ends by itself."""
        for after_s in self._plan.jobs:
            await self._run_job(world, after_s)

    async def _run_job(self, world: World, after_s: float | None) -> None:
        fleet, first, skew_s = world.fleet, len(world.fleet.workers), self._plan.dates_wrong_by_s
        at_s = now() + (after_s or 0.0)
        fleet.run_until = RunUntil(None if after_s is None else round((EPOCH_S + at_s) * 1000))
        # A worker may read up to its own start; dates may be wrong.
        rules = UntilRules(at_s, at_s) if after_s is not None else UntilRules(at_s - skew_s, inf)
        world.deliveries.on_records = rules.delivered
        for _ in range(self._plan.job_workers):
            fleet.start()
        begins_s = max(at_s, now(), self._plan.calm_at_s)
        while not self._job_is_over(fleet.workers[first:]):
            await anyio.sleep(LOOK_S / 4)
            if after_s is None:
                rules.upper_s = fleet.workers[-1].started_at_s + _START_MOST_S + skew_s
            if now() >= self._plan.calm_at_s and fleet.calm_since_s is None:
                world.calm_down()
            if not fleet.living and not self._has_ended(fleet.workers[first:]):
                fleet.start()
            ends_s = min(self._believed_end_s(fleet.workers[first:]), rules.upper_s)
            if now() > max(begins_s, ends_s, world.deliveries.last_aside_s) + self._plan.bound_s:
                raise Violation("job_does_not_end", f"the job that began with worker {first + 1} goes on")
        if after_s is None:
            rules.lower_s = self._agreed_s(fleet.workers, first) - skew_s
        rules.ended(world.truth)
        if world.bank is not None:
            world.bank.judge(rules.lower_s)
        if world.landing is not None:
            world.landing.judge(rules.lower_s)
        world.faults["job ended"] += 1

    def _agreed_s(self, workers: list[SimWorker], first: int) -> float:
        """Where a job to the tip ended: at its start, or at that of a worker that was killed shortly before."""
        began_s = workers[first].started_at_s
        bounds = [each.run_until_s for each in workers[first:] if each.ended.is_done]
        agreed_s = min(bound for bound in bounds if bound is not None)
        killed = (each.life.died_s for each in workers[:first])
        if agreed_s < began_s - self._plan.dates_wrong_by_s and not any(
            died_s is not None and died_s > began_s - _ROW_LASTS_S for died_s in killed
        ):
            raise Violation("former_bound", f"a job that began at {began_s:.0f} s ended at {agreed_s:.0f} s")
        return agreed_s

    def _believed_end_s(self, workers: list[SimWorker]) -> float:
        """Who began with a date that was ahead of the true one reads until then, and others wait for it."""
        bounds = (each.run_until_s for each in workers)
        return max((until_s for until_s in bounds if until_s is not None), default=-inf)

    def _has_ended(self, workers: list[SimWorker]) -> bool:
        return any(each.ended.is_done and each.stop_asked_at_s is None for each in workers)

    def _job_is_over(self, workers: list[SimWorker]) -> bool:
        return self._has_ended(workers) and all(each.ended.is_done or each.life.is_dead for each in workers)

    async def _watch_calm(self, world: World) -> None:
        """To the planned end, or until all has been well for a while: most of the rest would be the same."""
        well_s = 0.0
        while now() < self._plan.ends_at_s and not (self._ends_early and well_s >= _WELL_FOR_S):
            await anyio.sleep(LOOK_S)
            world.liveness.poll()
            if world.landing is not None:
                world.landing.look(bound_s=self._plan.bound_s)
            well_s = well_s + LOOK_S if world.liveness.worst_s <= _USUAL_S else 0.0
            if self._plan.names_stand_alone and now() > self._plan.calm_at_s + self._plan.bound_s:
                world.succession.look_at_names()

    async def _arrive(self, world: World) -> None:
        """Wait for the client version that the plan ends in: each change of the leader begins the readiness anew."""
        deadline = now() + _VERSION_BOUND_S
        wanted = self._plan.ends_in
        while wanted and world.client_version not in wanted and now() <= deadline:
            await anyio.sleep(LOOK_S)
            world.liveness.poll()

    async def _arrive_in_one_table(self, world: World) -> None:
        """Wait until all is in the lease table; then somebody joins who has known nothing else."""
        deadline = now() + _TABLES_BOUND_S
        while world.moves.state != "COMPLETE" and now() <= deadline:
            await anyio.sleep(LOOK_S)
            world.liveness.poll()
        world.fleet.start()
        joined_s = now()
        while now() < joined_s + self._plan.bound_s:
            await anyio.sleep(LOOK_S)
            world.liveness.poll()
        world.moves.judge({worker.worker_id: worker.clock.ahead_s for worker in world.fleet.living})

    async def _finish(self, world: World) -> None:
        """The producers stop; everything must be delivered and every closed shard finished."""
        world.stream.produce(0)
        world.ended_s = now()
        while not (world.truth.all_delivered and world.all_finished and _is_stored(world)):
            # Each record that is passed over takes a letter, or a search, of its own.
            if now() > max(world.ended_s, world.deliveries.last_aside_s) + self._plan.bound_s:
                what = f"{world.truth.undelivered} records were never given to a child"
                if world.bank is not None:
                    what += f", {world.bank.missing()} transfers never carried out"
                if world.landing is not None:
                    what += f", not in the log: {world.landing.missing}"
                if not _is_read(world):
                    what += ", the reader has not taken what is in the log"
                raise Violation("not_finished", f"{what}; unfinished shards: {world.unfinished}")
            await anyio.sleep(LOOK_S / 4)
            world.liveness.poll()

    async def _stop_all(self, world: World) -> None:
        stopping = [worker for worker in world.fleet.workers if not worker.life.is_dead]
        for worker in stopping:
            worker.stop()
        for worker in stopping:
            with anyio.move_on_after(_STOP_BOUND_S) as scope:
                await worker.ended.wait()
            if scope.cancelled_caught:
                raise Violation("stop_too_slow", f"{worker.worker_id} still runs {_STOP_BOUND_S:g} s later")

    async def _believed(self, world: World) -> frozenset[str]:
        """Workers that are gone and may be taken for living: whoever sees their row for the first time has only its date."""
        if self._plan.dates_wrong_by_s <= _DATES_RIGHT_S:
            return frozenset()
        table = world.tables.worker_metrics
        if await table.describe() is None:
            table = world.tables.leases
        return frozenset(str(row[table.key_attribute]) for row in await table.scan())

    def _judge_released(self, world: World, believed: frozenset[str]) -> None:
        asked_s = {
            worker.worker_id: worker.stop_asked_at_s or -inf
            for worker in world.fleet.workers
            if worker.ended.is_done and worker.kind is Kind.OURS  # Java leaves its leases to expire
        }
        left_s = {name: at_s for name, at_s in asked_s.items() if name not in believed}
        for key, reader in world.rules.not_released(left_s, self._plan.index_lag_s[1]):
            raise Violation("not_released", f"{key} still belongs to {reader}, who stopped gracefully")

    def _judge(self, world: World, believed: frozenset[str]) -> None:
        """What must be so at the very end."""
        plan = self._plan
        if world.bank is not None:
            world.bank.judge()
        if world.landing is not None:
            world.landing.judge()
        if world.changed is not None:
            world.changed.judge()
        self._judge_released(world, believed)
        if plan.is_quiet and self._trace.warnings:
            raise Violation("not_quiet", f"logged without any fault: {dict(self._trace.warnings)}")
        if plan.repeats_most is not None and world.truth.repeats > plan.repeats_most:
            raise Violation("records_repeated", f"{world.truth.repeats} records were given twice")
        version = world.client_version
        if plan.ends_in and version not in plan.ends_in:
            wanted = " or ".join(sorted(plan.ends_in))
            raise Violation("wrong_version", f"the application is in {version}, not in {wanted}")
        slowest = world.deliveries.latency_most_s
        if plan.latency_most_s is not None and slowest > plan.latency_most_s:
            raise Violation("too_slow", f"a record waited {slowest:.1f} s for its first child")
