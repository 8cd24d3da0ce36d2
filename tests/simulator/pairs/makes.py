"""What a value of a factor makes of a plan: settings, behaviour of children, what happens and when.

Knows nothing of which values are played together (`pairs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts, PoisonRecordPolicy
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.shards.lineage import StartAt
from kcl_local.kinesis.arguments import FanOutRules, ReadLimits
from tests.simulator.faults.behaviour import Mischief
from tests.simulator.faults.life import Service
from tests.simulator.faults.network import Trouble
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards, with_aggregates
from tests.simulator.plans.plan import (
    AtPoint,
    CutOff,
    DieAtShardEnd,
    DieAtWrites,
    DieInHandoff,
    Event,
    HoldBack,
    Kind,
    LetGo,
    MigrateTables,
    Plan,
    Planned,
    Roll,
    ShardEndStep,
    Side,
    Split,
    Start,
    StartApart,
    Step,
    StepWallClock,
    StreamAppears,
    StreamDisappears,
)
from tests.simulator.rules.bank import BankPlan
from tests.simulator.rules.items import key_of
from tests.simulator.scenarios.filtered import Kept, KeptKeys
from tests.simulator.scenarios.landing import landing_plan
from tests.simulator.scenarios.many import FOREIGN_EPOCHS
from tests.simulator.scenarios.poison import DEAD_LETTERS

Change = Callable[[Draw, Plan], Plan]

_KEYS: Final = 9
_LANES: Final = 3
# What comes at any moment comes after the first leases were made, and before the calm.
_FIRST_S: Final = 15.0
_POINTS: Final = (
    "after-batch-processed",
    "after-checkpoint-write",
    "after-child-initialized",
    "after-lease-claimed",
    "after-lease-renewed",
    "after-lease-released",
    "after-letter-stored",
    "after-shutdown-requested",
)


def _same(_draw: Draw, plan: Plan) -> Plan:
    return plan


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a factor.

    Args:
        change: makes a plan have it.
        lines: of a properties file that has it.
        seen: what is counted in a run where it happened; empty: a setting, in force all the time.
        lasts_s: there is trouble for so long, at least.
        bound_s: so long a fleet may take to be in order afterwards, at least.
    """

    name: str
    change: Change = _same
    lines: str = ""
    seen: str = ""
    lasts_s: float = 0.0
    bound_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Factor:
    """`of_positions`: it bears on what a checkpoint says, or on where somebody begins."""

    name: str
    values: tuple[Value, ...]
    of_positions: bool = False


def sets(part: str = "", **changes: Any) -> Change:
    """Set fields of a plan, or of a part of it."""

    def change(_draw: Draw, plan: Plan) -> Plan:
        if not part:
            return replace(plan, **changes)
        return replace(plan, **{part: replace(getattr(plan, part), **changes)})

    return change


def behaviour(**changes: Any) -> Change:
    def change(_draw: Draw, plan: Plan) -> Plan:
        assert plan.children_plan.behaviour is not None, "the children are drawn"
        return replace(
            plan,
            children_plan=replace(
                plan.children_plan, behaviour=replace(plan.children_plan.behaviour, **changes)
            ),
        )

    return change


def happen(*makes: Callable[[Draw], Event], count: tuple[int, int] = (1, 3)) -> Change:
    """Some of these at drawn moments."""

    def change(draw: Draw, plan: Plan) -> Plan:
        between_s = (_FIRST_S, plan.calm_at_s - 5.0)
        some = draw.some(lambda: draw.chance.pick(makes)(draw), count=count, between_s=between_s)
        return replace(plan, events=(*plan.events, *some))

    return change


# Sinks and children.


def own_positions(draw: Draw, plan: Plan) -> Plan:
    sleeps_s = tuple(draw.chance.uniform(1.0, 30.0) for _ in range(draw.chance.between(0, 2)))
    return replace(plan, bank=BankPlan(sleeps_s=sleeps_s))


def landing(draw: Draw, plan: Plan) -> Plan:
    return replace(plan, landing=landing_plan(draw.chance, sleeps=(0, 2)))


def lanes(order: ShardOrder, *, remembers: bool = False) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        window_bytes = draw.chance.pick((4_000, 40_000, 8 * 1024**2))
        return replace(
            plan,
            concurrency=ConcurrencySettings(LaneCounts(_LANES), order, window_bytes, remembers=remembers),
        )

    return change


def mischief(*kinds: Mischief, stubborn: float = 0.0, start_fails: float = 0.0) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        mischief = {kind: draw.chance.uniform(0.005, 0.02) for kind in kinds}
        # A child that ends by itself at one record again and again makes that record a bad one.
        failures = replace(plan.failures, poison_tries=max(plan.failures.poison_tries, 4))
        return replace(
            plan,
            failures=failures,
            children_plan=replace(
                plan.children_plan, mischief=mischief, stubborn=stubborn, start_fails=start_fails
            ),
        )

    return change


# Streams.


def many(draw: Draw, plan: Plan) -> Plan:
    names = tuple(f"stream-{number}" for number in range(4))
    settings = replace(plan.streams_settings, refresh_ms=draw.chance.pick((2_000, 10_000)))
    plan = replace(
        plan, streams=names, streams_settings=settings, shards=draw.sizes.shards or min(plan.shards, 2)
    )
    if plan.jobs:
        return happen(lambda draw: StreamDisappears(draw.chance.between(1, 3)))(draw, plan)
    if plan.start_at is StartAt.LATEST:
        return plan
    return happen(
        lambda draw: StreamAppears(draw.chance.between(1, 3), draw.chance.between(1, 2)),
        lambda draw: StreamDisappears(draw.chance.between(1, 3)),
        count=(1, 3),
    )(draw, plan)


def foreign(draw: Draw, plan: Plan) -> Plan:
    plan = many(draw, plan)
    epochs = tuple(draw.chance.pick(FOREIGN_EPOCHS) for _ in plan.streams)
    return replace(plan, java_epochs=epochs, backlog=max(plan.backlog, 60))


def filtered(draw: Draw, plan: Plan) -> Plan:
    """By data; where there are changes of a table, whose data differ by form, by key."""
    keys = tuple(f"key-{number}" for number in draw.chance.pick(((1, 2, 5), (0, 3, 4, 6, 8))))
    kept: Kept | KeptKeys = draw.chance.pick((Kept(digits="13579"), Kept(digits="07", but=True), Kept(keys)))
    if plan.changes is not None:
        items = (
            key_of(f"table-{table}/{item}")
            for table in range(plan.changes.tables)
            for item in range(0, plan.changes.items, 2)
        )
        kept = KeptKeys((*keys, *items))
    delivery = replace(plan.delivery, record_filter=RecordFilter.of(kept.pattern))
    return replace(plan, keeps=kept, delivery=delivery, keys=min(plan.keys, _KEYS))


def window(draw: Draw, plan: Plan) -> Plan:
    chance = draw.chance
    delivery = replace(
        plan.delivery,
        batch_window_ms=chance.pick((500, 3_000, 10_000)),
        batch_max_records=chance.pick((None, 30)),
        batch_max_bytes=chance.pick((None, 400)),
    )
    return replace(plan, delivery=delivery)


# What becomes of records that are not delivered.


def age(draw: Draw, plan: Plan) -> Plan:
    failures = replace(plan.failures, max_age_ms=draw.chance.pick((12_000, 25_000)))
    return replace(plan, failures=failures, backlog=min(plan.backlog, 60))


def away(draw: Draw, plan: Plan) -> Plan:
    begins_s = sorted(draw.chance.uniform(0.0, plan.calm_at_s - 40.0) for _ in range(2))
    away_s = tuple((begin_s, begin_s + draw.chance.uniform(15.0, 40.0)) for begin_s in begins_s)
    failures = replace(plan.failures, dead_letters=DEAD_LETTERS.dead_letters)
    return replace(plan, failures=failures, letters_away_s=away_s)


def poison(policy: PoisonRecordPolicy) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        failures = replace(plan.failures, poison=policy, poison_tries=draw.chance.pick((1, 2)))
        children_plan = replace(plan.children_plan, poison_every=draw.chance.pick((60, 110)))
        return replace(plan, failures=failures, children_plan=children_plan, backlog=min(plan.backlog, 60))

    return change


def rejects(draw: Draw, plan: Plan) -> Plan:
    children_plan = replace(plan.children_plan, reject_every=draw.chance.pick((7, 30)))
    return replace(plan, children_plan=children_plan, backlog=min(plan.backlog, 60))


# The fleet.


def hold(*, limited: bool) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        chance = draw.chance
        holds = [
            Planned(
                chance.uniform(_FIRST_S, 40.0),
                HoldBack(
                    rank=chance.pick((None, chance.between(0, 100))),
                    limit=chance.uniform(1.0, 10.0) if limited else None,
                    for_s=chance.pick((None, chance.uniform(20.0, 60.0))),
                ),
            )
            for _ in range(chance.between(1, 2))
        ]
        return replace(plan, events=(*plan.events, *holds, Planned(90.0, LetGo())))

    return change


def job(*ends: str) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        chance = draw.chance
        jobs = tuple(None if end == "tip" else chance.uniform(10.0, 50.0) for end in ends)
        starts = [each for each in plan.events if isinstance(each.what, Start)]
        others = tuple(each for each in plan.events if not isinstance(each.what, Start))
        return replace(plan, events=others, jobs=jobs, job_workers=max(len(starts), 1))

    return change


def java(draw: Draw, plan: Plan) -> Plan:
    comes = Planned(draw.chance.uniform(40.0, 70.0), Start(Kind.JAVA))
    names = draw.chance.happens(0.5)
    return replace(plan, events=(*plan.events, comes), java_names_entities=names)


def earlier(draw: Draw, plan: Plan) -> Plan:
    """Workers that neither stand by nor have lanes, and one that does not know the single table."""
    lanes = plan.concurrency.lanes.default
    apart = StartApart(
        supports=False, leaves_after_s=draw.chance.uniform(20.0, 60.0), dies=draw.chance.happens(0.5)
    )
    return replace(
        plan,
        every_third_waits=True,
        lane_counts=(1, lanes) if lanes > 1 else (),
        events=(
            *plan.events,
            *(Planned(draw.chance.uniform(5.0, 40.0), Start()) for _ in range(2 if not plan.jobs else 0)),
            Planned(draw.chance.uniform(5.0, 60.0), apart),
        ),
    )


def move(draw: Draw, plan: Plan) -> Plan:
    moves = Planned(draw.chance.uniform(150.0, 200.0), MigrateTables(draw.chance.uniform(2.0, 20.0)))
    tables = TablesSettings(
        deploy_bake_s=draw.chance.between(20, 40), complete_bake_s=draw.chance.between(20, 40)
    )
    return replace(
        plan,
        tables=tables,
        events=(*plan.events, moves),
        moves_tables=True,
        records_per_s=min(plan.records_per_s, 1.5),
    )


def die_at_writes(draw: Draw, plan: Plan) -> Plan:
    chance = draw.chance
    deaths = chance.between(1, 4)
    at = tuple(chance.between(3, 60) for _ in range(deaths))
    dying = Planned(0.0, DieAtWrites(at, tuple(chance.happens(0.5) for _ in range(deaths))))
    return replace(plan, events=(dying, *plan.events))


def die_at_points(draw: Draw, plan: Plan) -> Plan:
    chance = draw.chance
    points = tuple(
        AtPoint(
            chance.pick(_POINTS),
            nth=chance.pick((1, 2, 3, 8, 20)),
            pause_s=None if chance.happens(0.8) else chance.pick((3.0, 12.0, 25.0)),
            with_children=chance.happens(0.5),
            replaced_after_s=chance.pick((0.5, 3.0, 15.0)),
            keeps_name=chance.happens(0.3),
        )
        for _ in range(4)
    )
    return replace(plan, points=points)


def die_in_handoffs(draw: Draw, plan: Plan) -> Plan:
    chance = draw.chance
    deaths = [
        Planned(
            chance.uniform(0.0, 20.0),
            DieInHandoff(
                chance.pick(tuple(Step)), chance.pick(tuple(Side)), chance.pick((0.0, 0.02, 0.5, 2.0)), 3.0
            ),
        )
        for _ in range(2)
    ]
    joins = [Planned(chance.uniform(20.0, 70.0), Start()) for _ in range(2)]
    return replace(plan, events=(*plan.events, *deaths, *joins))


def reshape(draw: Draw, plan: Plan) -> Plan:
    most_s = plan.calm_at_s - 20.0
    if plan.changes is None:
        some = reshards(draw, (1, 4), between_s=(5.0, most_s))
    else:
        some = draw.some(
            lambda: (Roll if draw.chance.happens(0.6) else Split)(draw.chance.between(0, 100)),
            count=(1, 4),
            between_s=(5.0, most_s),
        )
    return replace(plan, events=(*plan.events, *some))


def die_at_shard_ends(draw: Draw, plan: Plan) -> Plan:
    deaths = [
        Planned(0.0, DieAtShardEnd(draw.chance.pick(tuple(ShardEndStep)), draw.chance.between(1, 2), 3.0))
        for _ in range(2)
    ]
    return reshape(draw, reshape(draw, replace(plan, events=(*plan.events, *deaths))))


def steps_of_clocks(draw: Draw, plan: Plan) -> Plan:
    plan = replace(plan, skew_s=30.0, drift=1e-3)
    return happen(lambda draw: StepWallClock(draw.target(), draw.chance.uniform(-600.0, 600.0)))(draw, plan)


def kinesis(draw: Draw, plan: Plan) -> Plan:
    trouble = replace(
        mixed_trouble(draw.chance, worst=0.1),
        expired=draw.chance.uniform(0.0, 0.1),
        cut=draw.chance.pick((0.02, 0.1)),
    )
    stream = replace(plan.stream, iterator_ttl_s=draw.chance.pick((300.0, 20.0)))
    return replace(plan, kinesis=trouble, stream=stream)


def read_by_others(_draw: Draw, plan: Plan) -> Plan:
    """Another application reads the same stream, as a replay does: what it leaves is less."""
    return replace(
        plan, stream=replace(plan.stream, limits=ReadLimits(reads_per_s=3)), kinesis=Trouble(throttled=0.2)
    )


def dynamodb(draw: Draw, plan: Plan) -> Plan:
    return replace(plan, dynamodb=replace(mixed_trouble(draw.chance, worst=0.05), slow=0.01))


def ambiguous(draw: Draw, plan: Plan) -> Plan:
    trouble = Trouble(unanswered=draw.chance.uniform(0.02, 0.06), belated=draw.chance.uniform(0.02, 0.06))
    return replace(plan, dynamodb=trouble)


def cut(service: Service) -> Change:
    return happen(
        lambda draw: CutOff(draw.target(), service, draw.chance.pick((5.0, 15.0, 30.0))), count=(1, 2)
    )


def aggregates(draw: Draw, plan: Plan) -> Plan:
    """Odd ones, and records of other shards, only where each child is one of ours that does no more than count."""
    counts = plan.bank is None and plan.landing is None and not plan.jobs
    has_java = any(isinstance(each.what, Start) and each.what.kind is Kind.JAVA for each in plan.events)
    return with_aggregates(draw, plan, seeds=1.0, may_stray=counts, are_of_kpl=has_java or not counts)


def index_late(draw: Draw, plan: Plan) -> Plan:
    return replace(plan, index_ready_at_s=draw.chance.uniform(30.0, 80.0))


def fan_out(draw: Draw, plan: Plan) -> Plan:
    rules = FanOutRules(
        creating_s=draw.chance.pick((0.0, 4.0)), idle_s=1.0, lasts_s=draw.chance.pick((300.0, 25.0))
    )
    retrieval = replace(plan.retrieval, mode=RetrievalMode.FANOUT)
    return replace(plan, stream=replace(plan.stream, fan_out=rules), retrieval=retrieval)
