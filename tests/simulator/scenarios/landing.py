"""The scenarios of the landing log: its writers die, stop, sleep beyond their leases and wake; its store has trouble."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.balance import ClientVersionConfig
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.records.record_filter import RecordFilter
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief
from tests.simulator.faults.network import Trouble
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards, with_aggregates
from tests.simulator.plans.plan import DieAtWrites, Event, Pause, Plan, Planned, Stop
from tests.simulator.rules.landing import LandingPlan
from tests.simulator.scenarios.filtered import Kept

# A lease lasts ten seconds: who wakes after twelve to twenty finds that another has just begun.
_PAUSES_S: Final = ((1.0, 9.0), (11.0, 20.0), (20.0, 60.0))
_MISCHIEF: Final = (Mischief.EXIT, Mischief.EXIT_LATER, Mischief.DAWDLE, Mischief.HALF_LINE)
_RECORD_BYTES: Final = 40
# A dead worker's leases are found by the second look, of which there is one in 20 s; then all is shared out again.
_BOUND_2X_S: Final = 150.0


def landing(draw: Draw) -> Plan:
    """Children write a landing log while workers and children die, stop and pause, and shards split and merge."""
    return _drawn(draw, faults_s=120.0, pauses=(0, 2), sleeps=(0, 1))


def landing_zombie(draw: Draw) -> Plan:
    """Writers of a landing log stop beyond their leases and wake, often when they are about to write."""
    return _drawn(draw, faults_s=150.0, pauses=(2, 6), sleeps=(2, 8))


def landing_store_trouble(draw: Draw) -> Plan:
    """The store of a landing log is slow, refuses, is full, loses answers, and gives old manifests."""
    plan = _drawn(draw, faults_s=150.0, pauses=(0, 3), sleeps=(0, 3))
    chance = draw.chance
    worst = chance.pick((0.05, 0.15, 0.4))
    moments = [chance.uniform(5.0, 120.0) for _ in range(chance.between(0, 2))]
    assert plan.landing is not None
    trouble = Trouble(
        throttled=chance.uniform(0.0, worst),
        lost=chance.uniform(0.0, worst),
        unanswered=chance.uniform(0.0, worst),
        belated=chance.uniform(0.0, worst),
        slow=chance.uniform(0.0, worst),
    )
    full_s = tuple((moment, moment + chance.pick((3.0, 15.0, 60.0))) for moment in moments)
    return replace(
        plan, landing=replace(plan.landing, trouble=trouble, full_s=full_s, old=chance.pick((0.0, 0.1, 0.5)))
    )


def landing_marks(draw: Draw) -> Plan:
    """A reader believes what hosts state, while they die, stop and pause, shards split and merge, and the store is away."""
    chance = draw.chance
    plan = chance.pick((landing, landing_zombie, landing_store_trouble))(draw)
    assert plan.landing is not None
    stated = replace(
        plan.landing,
        marks=True,
        window_ms=min(plan.landing.window_ms, 5_000),
        max_bytes=max(plan.landing.max_bytes, 10 * _RECORD_BYTES),
        jitter_ms=chance.pick((0, 300, 900)) if not plan.unreadable_s else 0,
        hour_s=3_600.0,
        left_after_s=chance.pick((60.0, 3_600.0)),
    )
    # Shards that nobody writes to are the ones that hold.
    rate = chance.pick((0.2, 2.0, plan.records_per_s))
    return replace(plan, landing=stated, records_per_s=rate, calls_for_empty=True)


def landing_marks_2x(draw: Draw) -> Plan:
    """As `landing_marks`, while each worker takes leases as in KCL 2.x, and who leads by shuffle says which shards there are."""
    plan = landing_marks(draw)
    leases = replace(plan.leases, client_version_config=ClientVersionConfig.V2X)
    return replace(plan, leases=leases, comes_from_2x=True, bound_s=_BOUND_2X_S)


def _drawn(draw: Draw, *, faults_s: float, pauses: tuple[int, int], sleeps: tuple[int, int]) -> Plan:
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=faults_s, bound_s=140.0, shards=(1, 4)), may_stray=False)
    worst = chance.pick((0.0, 0.01, 0.05))
    slowest_s = chance.pick((0.01, 0.1, 1.0))
    fan_out = chance.happens(0.3)
    kept = Kept(digits=chance.pick(("3", "07", "13579"))) if chance.happens(0.25) else None
    return replace(
        plan,
        events=tuple(_events(draw, faults_s, pauses)),
        backlog=chance.pick((0, 200, 1_000)),
        retrieval=replace(
            plan.retrieval,
            max_records=chance.pick((20, 50, 500)),
            mode=RetrievalMode.FANOUT if fan_out else plan.retrieval.mode,
        ),
        dynamodb=mixed_trouble(chance, worst=0.03),
        kinesis=mixed_trouble(chance, worst=0.03),
        keeps=kept,
        delivery=replace(
            plan.delivery, record_filter=None if kept is None else RecordFilter.of(kept.pattern)
        ),
        calls_for_empty=chance.happens(0.5),
        children_plan=ChildrenPlan(
            behaviour=Behaviour(process_s=(slowest_s / 5, slowest_s), takes_frames=chance.happens(0.5)),
            mischief={kind: chance.uniform(0.0, worst) for kind in _MISCHIEF},
        ),
        landing=landing_plan(chance, sleeps=sleeps),
        unreadable_s=chance.pick((0.0, 0.5, 0.9)),
    )


def landing_plan(chance: Chance, *, sleeps: tuple[int, int]) -> LandingPlan:
    """Windows, sizes and hours of every order."""
    return LandingPlan(
        layout=chance.pick(("log", "dated")),
        window_ms=chance.pick((500, 2_000, 5_000, 20_000)),
        max_bytes=_RECORD_BYTES * chance.pick((1, 10, 100, 10_000)),
        memory_bytes=_RECORD_BYTES * chance.pick((20, 200, 100_000)),
        jitter_ms=chance.pick((0, 300, 3_000)),
        looked_at=chance.pick((2_000, 8)),
        hour_s=chance.pick((30.0, 100.0, 3_600.0)),
        outlives=chance.pick((0.0, 0.5)),
        sleeps_s=tuple(chance.uniform(*chance.pick(_PAUSES_S)) for _ in range(chance.between(*sleeps))),
    )


def _events(draw: Draw, faults_s: float, pauses: tuple[int, int]) -> list[Planned]:
    chance = draw.chance
    deaths = chance.between(0, 3)
    at = tuple(chance.between(1, 60) for _ in range(deaths))
    dying = DieAtWrites(at, tuple(chance.happens(0.5) for _ in range(deaths)))

    def pause() -> Event:
        return Pause(
            draw.target(), chance.uniform(*chance.pick(_PAUSES_S)), with_children=chance.happens(0.7)
        )

    def stop() -> Event:
        return Stop(draw.target(), chance.uniform(0.0, 5.0))

    most_s = faults_s - 10.0
    return [
        Planned(0.0, dying),
        *draw.arrivals(draw.workers(2, 4)),
        *reshards(draw, (0, 3), between_s=(10.0, most_s)),
        *draw.some(pause, count=pauses, between_s=(5.0, most_s)),
        *draw.some(lambda: draw.kill(0.5, 5.0, 20.0), count=(0, 3), between_s=(5.0, most_s)),
        *draw.some(stop, count=(0, 2), between_s=(5.0, most_s)),
    ]
