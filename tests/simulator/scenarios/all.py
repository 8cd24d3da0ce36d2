"""The scenarios: each draws a plan from a seed. Numbers of workers and shards, load and moments of faults all vary.

Owns what is worth proving (the needs: no loss, no stall, no double checkpoint, quick recovery). Knows nothing of how a
plan is carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kcl_daemon.config.retrieval import RetrievalMode, RetrievalSettings
from kcl_daemon.shards.lineage import StartAt
from kcl_local.kinesis.arguments import FanOutRules, KinesisOptions
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, When
from tests.simulator.faults.life import Service
from tests.simulator.faults.network import Trouble
from tests.simulator.pairs.scenario import pairs, triples
from tests.simulator.plans.draws import (
    Draw,
    Sizes,
    bad_children,
    cuts,
    mixed_trouble,
    reshards,
    short_iterators,
    with_aggregates,
)
from tests.simulator.plans.plan import (
    AddAttribute,
    DieAtWrites,
    Kill,
    Pause,
    Plan,
    Planned,
    Start,
    StepWallClock,
    Stop,
)
from tests.simulator.plans.point_draws import struck
from tests.simulator.scenarios.aggregates import aggregates
from tests.simulator.scenarios.bank import bank
from tests.simulator.scenarios.changes import dynamodb, dynamodb_day, dynamodb_snapshot, dynamodb_trimmed
from tests.simulator.scenarios.coordination import (
    farewell_killed,
    handoff_killed,
    index_missing,
    leader_paused,
    other_stream,
    restart_in_place,
    standing_by,
    worker_cut_off,
    worker_id_twice,
)
from tests.simulator.scenarios.filtered import aged, filtered, windows
from tests.simulator.scenarios.holds import holds
from tests.simulator.scenarios.landing import (
    landing,
    landing_marks,
    landing_marks_2x,
    landing_store_trouble,
    landing_zombie,
)
from tests.simulator.scenarios.lanes import lanes, lanes_latest, lanes_poison, lanes_reshard
from tests.simulator.scenarios.many import foreign_epochs, many_streams, streams_by_hundreds
from tests.simulator.scenarios.mixed import mixed_fleet, mixed_fleet_later, mixed_fleet_troubled
from tests.simulator.scenarios.one_table import table_migration
from tests.simulator.scenarios.poison import poison_records
from tests.simulator.scenarios.rejects import rejects
from tests.simulator.scenarios.reshaping import (
    cleaned_up,
    leases_deleted,
    reshard_storm,
    reshard_unseen,
    shard_end_killed,
)
from tests.simulator.scenarios.stalls import stalled
from tests.simulator.scenarios.until import until
from tests.simulator.scenarios.upgrades import rolled_back, upgrade_2x

# A child that failed often is restarted after a minute; then it still has to do its work.
_CHILDREN_BOUND_S: Final = 150.0
_CHILD_TIMEOUT_S: Final = 20.0
# A subscription that was cut leaves the shard protected for a while, and a silent one is noticed after half a minute.
_FAN_OUT_BOUND_S: Final = 170.0
# A parent must be read, finished and noticed before its child shard begins; three generations do so in turn.
_RESHARD_BOUND_S: Final = 100.0


def steady(draw: Draw) -> Plan:
    """One worker, no fault: nothing is logged that anybody should look at, nothing is given twice."""
    plan = draw.plan(faults_s=30.0)
    return replace(
        plan,
        events=tuple(draw.arrivals(draw.workers(1, 1))),
        is_quiet=True,
        repeats_most=0,
        latency_most_s=60.0,
    )


def two_workers(draw: Draw) -> Plan:
    """Two workers, the second one joins at any time: leases are shared without loss."""
    plan = draw.plan(faults_s=90.0, shards=(2, 10))
    joins = Planned(draw.chance.uniform(0.0, 80.0), Start())
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 1)), joins),
        is_quiet=True,
        repeats_most=0,
        latency_most_s=60.0,
    )


def worker_killed(draw: Draw) -> Plan:
    """SIGKILL for random workers, the leader among them; some are replaced under new names."""
    plan = draw.plan(faults_s=150.0)
    kills = draw.some(
        lambda: draw.kill(None, 0.5, 2.0, 10.0, 40.0),
        count=(1, 4),
        between_s=(1.0, 140.0),
    )
    return replace(plan, events=(*draw.arrivals(draw.workers(2, 5)), *kills))


def worker_stopped(draw: Draw) -> Plan:
    """Rolling deploy: graceful stops with replacements; children checkpoint when asked to stop, so no record is given twice."""
    plan = draw.plan(faults_s=150.0)
    stops = draw.some(
        lambda: Stop(draw.target(), draw.chance.uniform(0.0, 5.0)), count=(1, 5), between_s=(30.0, 140.0)
    )
    behaviour = Behaviour(
        draw.chance.pick(tuple(When)),
        explicit=draw.chance.happens(0.5),
        process_s=draw.chance.pick(((0.01, 0.1), (0.5, 3.0))),
    )
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 4)), *stops),
        children_plan=ChildrenPlan(behaviour=behaviour),
        repeats_most=0,
    )


def worker_paused(draw: Draw) -> Plan:
    """SIGSTOP for longer than leases last; the worker wakes up believing that it still holds them."""
    plan = draw.plan(faults_s=150.0)
    pauses = draw.some(
        lambda: Pause(draw.target(), draw.chance.pick((2.0, 9.0, 15.0, 45.0, 100.0))),
        count=(1, 5),
        between_s=(5.0, 120.0),
    )
    return replace(plan, events=(*draw.arrivals(draw.workers(2, 4)), *pauses))


def clock_skew(draw: Draw) -> Plan:
    """Dates wrong by minutes, clocks running wrong by up to one part in a hundred, dates that jump."""
    plan = draw.plan(faults_s=150.0)
    steps = draw.some(
        lambda: StepWallClock(draw.target(), draw.chance.uniform(-600.0, 600.0)),
        count=(0, 4),
        between_s=(1.0, 140.0),
    )
    kills = draw.some(lambda: draw.kill(5.0), count=(0, 1), between_s=(20.0, 120.0))
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(2, 4)), *steps, *kills),
        skew_s=draw.chance.pick((30.0, 90.0, 600.0)),
        drift=draw.chance.pick((1e-3, 1e-2)),
    )


def table_trouble(draw: Draw) -> Plan:
    """DynamoDB throttles, is slow, fails, or is out of reach for some workers."""
    plan = draw.plan(faults_s=180.0)
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 4)), *cuts(draw, Service.DYNAMODB, (0, 3))),
        dynamodb=mixed_trouble(draw.chance, worst=0.15),
        index_lag_s=draw.chance.pick(((0.0, 0.1), (0.1, 5.0))),
    )


def ambiguous_writes(draw: Draw) -> Plan:
    """Writes that take effect although their caller was told otherwise, some of them much later."""
    plan = draw.plan(faults_s=180.0)
    chance = draw.chance
    trouble = Trouble(
        unanswered=chance.uniform(0.02, 0.2),
        belated=chance.uniform(0.02, 0.2),
        lost=chance.uniform(0.0, 0.05),
        latency_s=chance.pick(((0.002, 0.02), (0.05, 0.8))),
    )
    kills = draw.some(lambda: draw.kill(0.5, 10.0), count=(0, 2), between_s=(20.0, 150.0))
    return replace(plan, events=(*draw.arrivals(draw.workers(2, 4)), *kills), dynamodb=trouble)


def kinesis_trouble(draw: Draw) -> Plan:
    """Kinesis throttles, is slow, fails; iterators expire."""
    plan = draw.plan(faults_s=150.0)
    trouble = replace(mixed_trouble(draw.chance, worst=0.25), expired=draw.chance.uniform(0.0, 0.2))
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), *cuts(draw, Service.KINESIS, (0, 2))),
        kinesis=trouble,
        stream=short_iterators(draw.chance),
    )


def fan_out(draw: Draw) -> Plan:
    """Shards are read by subscriptions that end early, are cut in the middle and are taken over by others; some split."""
    chance = draw.chance
    plan = draw.plan(faults_s=150.0, bound_s=_FAN_OUT_BOUND_S, shards=(1, 6))
    options = FanOutRules(
        creating_s=chance.pick((0.0, 4.0)),
        idle_s=chance.pick((5.0, 1.0)),
        lasts_s=chance.pick((300.0, 40.0, 12.0)),
        event_bytes_max=chance.pick((2**20, 3000)),
    )
    events = [
        *draw.arrivals(draw.workers(1, 3)),
        *reshards(draw, (0, 3)),
        *cuts(draw, Service.KINESIS, (0, 2)),
        *draw.some(lambda: draw.kill(0.5, 5.0), count=(0, 2), between_s=(10.0, 140.0)),
        *draw.some(lambda: Stop(draw.target(), chance.uniform(0.0, 5.0)), count=(0, 2), between_s=(10.0, 140.0)),
        *draw.some(lambda: Pause(draw.target(), chance.uniform(1.0, 40.0)), count=(0, 1), between_s=(10.0, 100.0)),
    ]  # fmt: skip
    return replace(
        plan,
        events=tuple(events),
        kinesis=replace(mixed_trouble(chance, worst=0.1), cut=chance.pick((0.0, 0.02, 0.2))),
        stream=KinesisOptions(fan_out=options),
        retrieval=RetrievalSettings(mode=RetrievalMode.FANOUT),
        children_plan=bad_children(chance, worst=0.01),
        child_timeout_s=_CHILD_TIMEOUT_S,
    )


def children_trouble(draw: Draw) -> Plan:
    """Children that exit, hang, print garbage, answer wrongly, ignore EOF and SIGTERM."""
    plan = draw.plan(faults_s=150.0, bound_s=_CHILDREN_BOUND_S)
    return replace(
        plan,
        events=tuple(draw.arrivals(draw.workers(1, 3))),
        children_plan=bad_children(draw.chance),
        child_timeout_s=_CHILD_TIMEOUT_S,
    )


def from_latest(draw: Draw) -> Plan:
    """Reading begins at the latest record; from the first one given on, children that fail cost none."""
    plan = draw.plan(faults_s=150.0, bound_s=_CHILDREN_BOUND_S)
    return replace(
        plan,
        start_at=StartAt.LATEST,
        events=(Planned(0.0, Start()),),
        children_plan=bad_children(draw.chance),
        kinesis=replace(mixed_trouble(draw.chance, worst=0.05), expired=draw.chance.uniform(0.0, 0.1)),
        stream=short_iterators(draw.chance),
        child_timeout_s=_CHILD_TIMEOUT_S,
    )


def reshard(draw: Draw) -> Plan:
    """Splits and merges while the fleet works, up to three generations deep."""
    plan = draw.plan(faults_s=150.0, bound_s=_RESHARD_BOUND_S, shards=(1, 6))
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), *reshards(draw, (1, 6))),
        is_quiet=True,
        repeats_most=0,
    )


def reshard_killed(draw: Draw) -> Plan:
    """The same while workers are killed and stopped."""
    plan = draw.plan(faults_s=170.0, bound_s=_RESHARD_BOUND_S, shards=(1, 6))
    leaving = draw.some(
        lambda: draw.kill(3.0) if draw.chance.happens(0.5) else Stop(draw.target(), 3.0),
        count=(1, 4),
        between_s=(10.0, 160.0),
    )
    return replace(plan, events=(*draw.arrivals(draw.workers(2, 4)), *reshards(draw, (2, 6)), *leaving))


def bootstrap_killed(draw: Draw) -> Plan:
    """On an empty table each worker dies at one of its first writes, before or after it took effect."""
    plan = draw.plan(faults_s=120.0)
    deaths = draw.chance.between(1, 8)
    at = tuple(draw.chance.between(1, 25) for _ in range(deaths))
    before = tuple(draw.chance.happens(0.5) for _ in range(deaths))
    return replace(plan, events=(Planned(0.0, DieAtWrites(at, before)), *draw.arrivals(draw.workers(1, 3))))


def all_down(draw: Draw) -> Plan:
    """All workers die or stop, the stream is resharded meanwhile, new ones come."""
    plan = draw.plan(faults_s=200.0, bound_s=_RESHARD_BOUND_S, shards=(1, 6))
    chance = draw.chance
    workers = draw.workers(1, 3)
    down_s, up_s = chance.uniform(20.0, 60.0), chance.uniform(100.0, 170.0)
    leave = [
        Planned(down_s + chance.uniform(0.0, 3.0), Kill(0) if chance.happens(0.6) else Stop(0))
        for _ in range(workers)
    ]
    back = [Planned(up_s + chance.uniform(0.0, 10.0), Start()) for _ in range(chance.between(1, 3))]
    changes = reshards(draw, (0, 4), between_s=(down_s, up_s + 20.0))
    return replace(plan, events=(*draw.arrivals(workers), *leave, *changes, *back))


def everything(draw: Draw) -> Plan:
    """All of it at once."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=240.0, bound_s=_CHILDREN_BOUND_S, shards=(1, 6)))
    events = [
        *draw.arrivals(draw.workers(2, 5)),
        *reshards(draw, (0, 4)),
        *cuts(draw, Service.DYNAMODB, (0, 2)),
        *cuts(draw, Service.KINESIS, (0, 2)),
        *draw.some(lambda: draw.kill(0.5, 5.0, 20.0), count=(0, 3), between_s=(1.0, 230.0)),
        *draw.some(lambda: Stop(draw.target(), chance.uniform(0.0, 5.0)), count=(0, 2), between_s=(1.0, 230.0)),
        *draw.some(lambda: Pause(draw.target(), chance.uniform(1.0, 60.0)), count=(0, 3), between_s=(1.0, 200.0)),
        *draw.some(AddAttribute, count=(0, 2), between_s=(40.0, 200.0)),
    ]  # fmt: skip
    return replace(
        plan,
        events=tuple(events),
        dynamodb=replace(
            mixed_trouble(chance, worst=0.06),
            unanswered=chance.uniform(0, 0.06),
            belated=chance.uniform(0, 0.06),
        ),
        kinesis=replace(mixed_trouble(chance, worst=0.08), expired=chance.uniform(0.0, 0.05)),
        stream=short_iterators(chance),
        children_plan=bad_children(chance, worst=0.01),
        child_timeout_s=_CHILD_TIMEOUT_S,
        skew_s=chance.pick((1.0, 120.0)),
        drift=chance.pick((1e-4, 1e-2)),
    )


def points(draw: Draw) -> Plan:
    """Workers die, or stop for longer than a lease, between two writes, at points that the daemon's code names."""
    return struck(draw, SCENARIOS)


SCENARIOS: Final[dict[str, Callable[[Draw], Plan]]] = {
    scenario.__name__: scenario
    for scenario in (
        steady,
        two_workers,
        worker_killed,
        worker_stopped,
        worker_paused,
        clock_skew,
        table_trouble,
        ambiguous_writes,
        kinesis_trouble,
        fan_out,
        children_trouble,
        from_latest,
        poison_records,
        filtered,
        bank,
        landing,
        landing_zombie,
        landing_store_trouble,
        landing_marks,
        landing_marks_2x,
        windows,
        aged,
        aggregates,
        lanes,
        lanes_reshard,
        lanes_latest,
        lanes_poison,
        rejects,
        holds,
        reshard,
        reshard_killed,
        bootstrap_killed,
        all_down,
        leader_paused,
        worker_cut_off,
        handoff_killed,
        farewell_killed,
        standing_by,
        restart_in_place,
        worker_id_twice,
        other_stream,
        index_missing,
        upgrade_2x,
        rolled_back,
        table_migration,
        reshard_storm,
        reshard_unseen,
        shard_end_killed,
        leases_deleted,
        cleaned_up,
        many_streams,
        streams_by_hundreds,
        foreign_epochs,
        dynamodb,
        dynamodb_day,
        dynamodb_snapshot,
        dynamodb_trimmed,
        mixed_fleet,
        mixed_fleet_troubled,
        mixed_fleet_later,
        stalled,
        until,
        everything,
        points,
        pairs,
        triples,
    )
}


LONG: Final = frozenset({"streams_by_hundreds", "dynamodb_day"})
"""Each takes as long as ten others and more; `many_streams` and `dynamodb` show the same with fewer shards."""


def draw_plan(scenario: str, seed: int, sizes: Sizes | None = None) -> Plan:
    """The plan of a scenario for a seed; the same in every process.

    Raises:
        KeyError: there is no such scenario.
    """
    draw = Draw(Chance(f"{scenario}/{seed}/plan"), sizes or Sizes(), seed)
    return SCENARIOS[scenario](draw)
