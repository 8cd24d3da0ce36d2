"""Scenarios of shards: reshards without end, their ends cut short, rows deleted by hand and by the clean-up.

Owns these draws; `scenarios` lists them with the others. Knows nothing of how a plan is carried out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.balance import ShardSettings, ShardSyncStrategy
from tests.simulator.chance import Chance
from tests.simulator.plans.draws import Draw, mixed_trouble
from tests.simulator.plans.plan import (
    DeleteLease,
    DieAtShardEnd,
    Event,
    Kill,
    Merge,
    Plan,
    Planned,
    ShardEndStep,
    Split,
    Start,
    Stop,
)

GENERATIONS: Final = 6
# Six generations wait for one another; each must be read, finished, noticed and given to somebody.
_BOUND_S: Final = 150.0
_SHARDS: Final = (1, 3)


def _cleanup(chance: Chance) -> ShardSettings:
    """Clean-up and audits at intervals that a run lives to see; the figures of the defaults now and then."""
    return ShardSettings(
        sync_strategy=chance.pick(
            (ShardSyncStrategy.SHARD_END, ShardSyncStrategy.SHARD_END, ShardSyncStrategy.PERIODIC)
        ),
        audit_ms=chance.pick((2_000, 10_000)),
        audit_confidence=chance.pick((1, 3)),
        cleanup_ms=chance.pick((1_000, 5_000)),
        cleanup_completed_ms=chance.pick((1_000, 20_000)),
        cleanup_garbage_ms=chance.pick((1_000, 30_000)),
        waiting_generations_most=chance.pick((None, 0, 1)),
    )


def _waves(draw: Draw, from_s: float, to_s: float) -> list[Planned]:
    """Reshards one generation after the other, with or without time enough in between to follow."""
    chance = draw.chance
    moments = sorted(chance.uniform(from_s, to_s) for _ in range(chance.between(2, GENERATIONS)))
    return [
        Planned(moment + 0.01 * number, (Split if chance.happens(0.55) else Merge)(chance.between(0, 100)))
        for moment in moments
        for number in range(chance.between(1, 2))
    ]


def _leave(draw: Draw, count: tuple[int, int], between_s: tuple[float, float]) -> list[Planned]:
    return draw.some(
        lambda: draw.kill(0.5, 5.0) if draw.chance.happens(0.6) else Stop(draw.target(), 3.0),
        count=count,
        between_s=between_s,
    )


def _plan(draw: Draw, *, faults_s: float) -> Plan:
    plan = draw.plan(faults_s=faults_s, bound_s=_BOUND_S, shards=_SHARDS)
    return replace(plan, records_per_s=min(plan.records_per_s, 3.0), backlog=min(plan.backlog, 500))


def reshard_storm(draw: Draw) -> Plan:
    """Up to six generations of splits and merges while workers die and stop, with trouble now and then."""
    plan = _plan(draw, faults_s=160.0)
    return replace(
        plan,
        events=(
            *draw.arrivals(draw.workers(2, 4)),
            *_waves(draw, 5.0, 130.0),
            *_leave(draw, (1, 4), (10.0, 150.0)),
        ),
        dynamodb=mixed_trouble(draw.chance, worst=draw.chance.pick((0.0, 0.03))),
        shard_settings=_cleanup(draw.chance) if draw.chance.happens(0.5) else ShardSettings(),
    )


def reshard_unseen(draw: Draw) -> Plan:
    """All workers are down while the stream is resharded, some generations deep; with closed shards from the start."""
    plan = _plan(draw, faults_s=170.0)
    chance = draw.chance
    workers = draw.workers(1, 3)
    down_s, up_s = chance.uniform(10.0, 40.0), chance.uniform(80.0, 140.0)
    leave = [
        Planned(down_s + chance.uniform(0.0, 3.0), Kill(0) if chance.happens(0.6) else Stop(0))
        for _ in range(workers)
    ]
    back = [Planned(up_s + chance.uniform(0.0, 10.0), Start()) for _ in range(chance.between(1, 3))]
    before = [Planned(0.0, Split(chance.between(0, 100)))] if chance.happens(0.5) else []
    return replace(
        plan,
        events=(*before, *draw.arrivals(workers), *leave, *_waves(draw, down_s, up_s), *back),
        shard_settings=_cleanup(chance) if chance.happens(0.5) else ShardSettings(),
    )


def shard_end_killed(draw: Draw) -> Plan:
    """A worker dies between each two writes at the end of a shard: child leases, their names, SHARD_END, release."""
    plan = _plan(draw, faults_s=170.0)
    chance = draw.chance
    deaths = [
        Planned(
            0.0,
            DieAtShardEnd(
                chance.pick(tuple(ShardEndStep)),
                nth=chance.between(1, 3),
                replaced_after_s=chance.pick((0.5, 5.0, 15.0)),
            ),
        )
        for _ in range(chance.between(2, 6))
    ]
    return replace(
        plan,
        events=(*deaths, *draw.arrivals(draw.workers(1, 3)), *_waves(draw, 5.0, 130.0)),
        shard_settings=_cleanup(chance) if chance.happens(0.5) else ShardSettings(),
    )


def leases_deleted(draw: Draw) -> Plan:
    """Somebody deletes leases of open shards by hand, some of which are split before the auditor brings them back."""
    # Without clean-up: where a finished parent is forgotten, KCL's rule reads it anew, beside its other child.
    plan = _plan(draw, faults_s=170.0)
    chance = draw.chance
    deleted: list[Event] = [DeleteLease(chance.between(0, 100)) for _ in range(chance.between(1, 3))]
    splits: list[Event] = [Split(chance.between(0, 100)) for _ in range(chance.between(0, 3))]
    events = [Planned(chance.uniform(20.0, 110.0), what) for what in (*deleted, *splits)]
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), *events, *_leave(draw, (0, 2), (10.0, 150.0))),
        shard_settings=replace(
            _cleanup(chance), sync_strategy=ShardSyncStrategy.SHARD_END, cleanup_finished=False
        ),
    )


def cleaned_up(draw: Draw) -> Plan:
    """Finished leases are cleared away as fast as it goes, while the stream is resharded; nothing is logged that matters."""
    plan = _plan(draw, faults_s=150.0)
    settings = ShardSettings(
        audit_ms=2_000, cleanup_ms=1_000, cleanup_completed_ms=1, cleanup_garbage_ms=1_000
    )
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), *_waves(draw, 5.0, 120.0)),
        shard_settings=settings,
        is_quiet=True,
        repeats_most=0,
    )
