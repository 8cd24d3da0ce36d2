"""Everything that bears on records, as factors of two to five values each: properties, surroundings, and what goes wrong.

Owns what each value makes of a plan, its lines of a properties file, and by what it is seen that it really happened. Knows
nothing of which values are played together (`pairs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from kcl_daemon.config.balance import ShardSyncStrategy
from kcl_daemon.config.children import ConcurrencySettings, LaneCounts, PoisonRecordPolicy
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.records.lane_window import ShardOrder
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.shards.lineage import StartAt
from kcl_local.kinesis.arguments import FanOutRules, ReadLimits
from tests.simulator.faults.habits import Mischief, When
from tests.simulator.faults.life import Service
from tests.simulator.faults.network import Trouble
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards, with_aggregates
from tests.simulator.plans.plan import (
    AtPoint,
    CutOff,
    DieAtShardEnd,
    DieAtWrites,
    DieInHandoff,
    Happening,
    HoldBack,
    Kind,
    LetGo,
    MigrateTables,
    Pause,
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
    Stop,
    StreamAppears,
    StreamDisappears,
)
from tests.simulator.rules.bank import BankPlan
from tests.simulator.rules.items import key_of
from tests.simulator.scenarios.changes import quick_changes, quick_snapshot
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


def _set(part: str = "", **changes: Any) -> Change:
    """Set fields of a plan, or of a part of it."""

    def change(_draw: Draw, plan: Plan) -> Plan:
        if not part:
            return replace(plan, **changes)
        return replace(plan, **{part: replace(getattr(plan, part), **changes)})

    return change


def _habits(**changes: Any) -> Change:
    def change(_draw: Draw, plan: Plan) -> Plan:
        assert plan.nursery.habits is not None, "the children are drawn"
        return replace(plan, nursery=replace(plan.nursery, habits=replace(plan.nursery.habits, **changes)))

    return change


def _happen(*makes: Callable[[Draw], Happening], count: tuple[int, int] = (1, 3)) -> Change:
    """Some of these at drawn moments."""

    def change(draw: Draw, plan: Plan) -> Plan:
        between_s = (_FIRST_S, plan.calm_at_s - 5.0)
        some = draw.some(lambda: draw.chance.pick(makes)(draw), count=count, between_s=between_s)
        return replace(plan, happenings=(*plan.happenings, *some))

    return change


# Sinks and children.


def _own_positions(draw: Draw, plan: Plan) -> Plan:
    sleeps_s = tuple(draw.chance.uniform(1.0, 30.0) for _ in range(draw.chance.between(0, 2)))
    return replace(plan, bank=BankPlan(sleeps_s=sleeps_s))


def _landing(draw: Draw, plan: Plan) -> Plan:
    return replace(plan, landing=landing_plan(draw.chance, sleeps=(0, 2)))


def _lanes(order: ShardOrder, *, remembers: bool = False) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        window_bytes = draw.chance.pick((4_000, 40_000, 8 * 1024**2))
        return replace(
            plan,
            concurrency=ConcurrencySettings(LaneCounts(_LANES), order, window_bytes, remembers=remembers),
        )

    return change


def _mischief(*kinds: Mischief, stubborn: float = 0.0, start_fails: float = 0.0) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        mischief = {kind: draw.chance.uniform(0.005, 0.02) for kind in kinds}
        # A child that ends by itself at one record again and again makes that record a bad one.
        failures = replace(plan.failures, poison_tries=max(plan.failures.poison_tries, 4))
        return replace(
            plan,
            failures=failures,
            nursery=replace(plan.nursery, mischief=mischief, stubborn=stubborn, start_fails=start_fails),
        )

    return change


# Streams.


def _many(draw: Draw, plan: Plan) -> Plan:
    names = tuple(f"stream-{number}" for number in range(4))
    settings = replace(plan.streams_settings, refresh_ms=draw.chance.pick((2_000, 10_000)))
    plan = replace(plan, streams=names, streams_settings=settings, shards=min(plan.shards, 2))
    if plan.start_at is StartAt.LATEST or plan.jobs:  # a job waits for a stream that is gone, as any run does
        return plan
    return _happen(
        lambda draw: StreamAppears(draw.chance.between(1, 3), draw.chance.between(1, 2)),
        lambda draw: StreamDisappears(draw.chance.between(1, 3)),
        count=(1, 3),
    )(draw, plan)


def _foreign(draw: Draw, plan: Plan) -> Plan:
    plan = _many(draw, plan)
    epochs = tuple(draw.chance.pick(FOREIGN_EPOCHS) for _ in plan.streams)
    return replace(plan, java_epochs=epochs, backlog=max(plan.backlog, 60))


def _filter(draw: Draw, plan: Plan) -> Plan:
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


def _window(draw: Draw, plan: Plan) -> Plan:
    chance = draw.chance
    delivery = replace(
        plan.delivery,
        batch_window_ms=chance.pick((500, 3_000, 10_000)),
        batch_max_records=chance.pick((None, 30)),
        batch_max_bytes=chance.pick((None, 400)),
    )
    return replace(plan, delivery=delivery)


# What becomes of records that are not delivered.


def _age(draw: Draw, plan: Plan) -> Plan:
    failures = replace(plan.failures, max_age_ms=draw.chance.pick((12_000, 25_000)))
    return replace(plan, failures=failures, backlog=min(plan.backlog, 60))


def _away(draw: Draw, plan: Plan) -> Plan:
    begins_s = sorted(draw.chance.uniform(0.0, plan.calm_at_s - 40.0) for _ in range(2))
    away_s = tuple((begin_s, begin_s + draw.chance.uniform(15.0, 40.0)) for begin_s in begins_s)
    failures = replace(plan.failures, dead_letters=DEAD_LETTERS.dead_letters)
    return replace(plan, failures=failures, letters_away_s=away_s)


def _poison(policy: PoisonRecordPolicy) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        failures = replace(plan.failures, poison=policy, poison_tries=draw.chance.pick((1, 2)))
        nursery = replace(plan.nursery, poison_every=draw.chance.pick((60, 110)))
        return replace(plan, failures=failures, nursery=nursery, backlog=min(plan.backlog, 60))

    return change


def _rejects(draw: Draw, plan: Plan) -> Plan:
    nursery = replace(plan.nursery, reject_every=draw.chance.pick((7, 30)))
    return replace(plan, nursery=nursery, backlog=min(plan.backlog, 60))


# The fleet.


def _hold(*, limited: bool) -> Change:
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
        return replace(plan, happenings=(*plan.happenings, *holds, Planned(90.0, LetGo())))

    return change


def _job(*ends: str) -> Change:
    def change(draw: Draw, plan: Plan) -> Plan:
        chance = draw.chance
        jobs = tuple(None if end == "tip" else chance.uniform(10.0, 50.0) for end in ends)
        starts = [each for each in plan.happenings if isinstance(each.what, Start)]
        others = tuple(each for each in plan.happenings if not isinstance(each.what, Start))
        return replace(plan, happenings=others, jobs=jobs, job_workers=max(len(starts), 1))

    return change


def _java(draw: Draw, plan: Plan) -> Plan:
    comes = Planned(draw.chance.uniform(40.0, 70.0), Start(Kind.JAVA))
    names = draw.chance.happens(0.5)
    return replace(plan, happenings=(*plan.happenings, comes), java_names_entities=names)


def _earlier(draw: Draw, plan: Plan) -> Plan:
    """Workers that neither stand by nor have lanes, and one that does not know the single table."""
    lanes = plan.concurrency.lanes.default
    apart = StartApart(
        supports=False, leaves_after_s=draw.chance.uniform(20.0, 60.0), dies=draw.chance.happens(0.5)
    )
    return replace(
        plan,
        every_third_waits=True,
        lane_counts=(1, lanes) if lanes > 1 else (),
        happenings=(
            *plan.happenings,
            *(Planned(draw.chance.uniform(5.0, 40.0), Start()) for _ in range(2 if not plan.jobs else 0)),
            Planned(draw.chance.uniform(5.0, 60.0), apart),
        ),
    )


def _move(draw: Draw, plan: Plan) -> Plan:
    moves = Planned(draw.chance.uniform(150.0, 200.0), MigrateTables(draw.chance.uniform(2.0, 20.0)))
    tables = TablesSettings(
        deploy_bake_s=draw.chance.between(20, 40), complete_bake_s=draw.chance.between(20, 40)
    )
    return replace(
        plan,
        tables=tables,
        happenings=(*plan.happenings, moves),
        moves_tables=True,
        records_per_s=min(plan.records_per_s, 1.5),
    )


def _die_at_writes(draw: Draw, plan: Plan) -> Plan:
    chance = draw.chance
    deaths = chance.between(1, 4)
    at = tuple(chance.between(3, 60) for _ in range(deaths))
    dying = Planned(0.0, DieAtWrites(at, tuple(chance.happens(0.5) for _ in range(deaths))))
    return replace(plan, happenings=(dying, *plan.happenings))


def _die_at_points(draw: Draw, plan: Plan) -> Plan:
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


def _die_in_handoffs(draw: Draw, plan: Plan) -> Plan:
    chance = draw.chance
    deaths = [
        Planned(
            chance.uniform(0.0, 60.0),
            DieInHandoff(
                chance.pick(tuple(Step)), chance.pick(tuple(Side)), chance.pick((0.0, 0.02, 0.5, 2.0)), 3.0
            ),
        )
        for _ in range(2)
    ]
    joins = [Planned(chance.uniform(20.0, 70.0), Start()) for _ in range(2)]
    return replace(plan, happenings=(*plan.happenings, *deaths, *joins))


def _reshape(draw: Draw, plan: Plan) -> Plan:
    most_s = plan.calm_at_s - 20.0
    if plan.changes is None:
        some = reshards(draw, (1, 4), between_s=(5.0, most_s))
    else:
        some = draw.some(
            lambda: (Roll if draw.chance.happens(0.6) else Split)(draw.chance.between(0, 100)),
            count=(1, 4),
            between_s=(5.0, most_s),
        )
    return replace(plan, happenings=(*plan.happenings, *some))


def _die_at_shard_ends(draw: Draw, plan: Plan) -> Plan:
    deaths = [
        Planned(0.0, DieAtShardEnd(draw.chance.pick(tuple(ShardEndStep)), draw.chance.between(1, 2), 3.0))
        for _ in range(2)
    ]
    return _reshape(draw, _reshape(draw, replace(plan, happenings=(*plan.happenings, *deaths))))


def _steps_of_clocks(draw: Draw, plan: Plan) -> Plan:
    plan = replace(plan, skew_s=30.0, drift=1e-3)
    most_s = 60.0 if plan.moves_tables else 600.0  # the row of a dead worker counts until its date
    return _happen(lambda draw: StepWallClock(draw.target(), draw.chance.uniform(-most_s, most_s)))(
        draw, plan
    )


def _kinesis(draw: Draw, plan: Plan) -> Plan:
    trouble = replace(
        mixed_trouble(draw.chance, worst=0.1),
        expired=draw.chance.uniform(0.0, 0.1),
        cut=draw.chance.pick((0.02, 0.1)),
    )
    stream = replace(plan.stream, iterator_ttl_s=draw.chance.pick((300.0, 20.0)))
    return replace(plan, kinesis=trouble, stream=stream)


def _read_by_others(_draw: Draw, plan: Plan) -> Plan:
    """Another application reads the same stream, as a replay does: what it leaves is less."""
    return replace(
        plan, stream=replace(plan.stream, limits=ReadLimits(reads_per_s=3)), kinesis=Trouble(throttled=0.2)
    )


def _dynamodb(draw: Draw, plan: Plan) -> Plan:
    return replace(plan, dynamodb=replace(mixed_trouble(draw.chance, worst=0.05), slow=0.01))


def _ambiguous(draw: Draw, plan: Plan) -> Plan:
    trouble = Trouble(unanswered=draw.chance.uniform(0.02, 0.06), belated=draw.chance.uniform(0.02, 0.06))
    return replace(plan, dynamodb=trouble)


def _cut(service: Service) -> Change:
    return _happen(
        lambda draw: CutOff(draw.target(), service, draw.chance.pick((5.0, 15.0, 30.0))), count=(1, 2)
    )


def _aggregates(draw: Draw, plan: Plan) -> Plan:
    """Odd ones, and records of other shards, only where each child is one of ours that does no more than count."""
    counts = plan.bank is None and plan.landing is None and not plan.jobs
    has_java = any(isinstance(each.what, Start) and each.what.kind is Kind.JAVA for each in plan.happenings)
    return with_aggregates(draw, plan, seeds=1.0, may_stray=counts, are_of_kpl=has_java or not counts)


def _index_late(draw: Draw, plan: Plan) -> Plan:
    return replace(plan, index_ready_at_s=draw.chance.uniform(30.0, 80.0))


def _fan_out(draw: Draw, plan: Plan) -> Plan:
    rules = FanOutRules(
        creating_s=draw.chance.pick((0.0, 4.0)), idle_s=1.0, lasts_s=draw.chance.pick((300.0, 25.0))
    )
    retrieval = replace(plan.retrieval, mode=RetrievalMode.FANOUT)
    return replace(plan, stream=replace(plan.stream, fan_out=rules), retrieval=retrieval)


_NO_KCL: Final = "executableName = child"
_LETTERS: Final = "deadLetterDestination = sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/letters"

FACTORS: Final[tuple[Factor, ...]] = (
    Factor("backlog", (Value("none", _set(backlog=0)), Value("some", _set(backlog=400)))),
    Factor("keys", (Value("many"), Value("few", lambda _draw, plan: replace(plan, keys=min(plan.keys, 4))))),
    Factor(
        "sink",
        (
            Value("plain", lines=_NO_KCL),
            Value("own positions", _own_positions, _NO_KCL, seen="child began at its own position"),
            Value("landing", _landing, "landing = file:/var/landing", seen="segment landed"),
        ),
        of_positions=True,
    ),
    Factor(
        "lanes",
        (
            Value("one"),
            Value("by key", _lanes(ShardOrder.KEY), "shardConcurrency = 3", "child with lanes"),
            Value(
                "remembered",
                _lanes(ShardOrder.KEY, remembers=True),
                "shardConcurrency = 3\nshardConcurrencyRemembers = true",
                "child with lanes",
            ),
            Value(
                "in any order",
                _lanes(ShardOrder.NONE),
                "shardConcurrency = 3\nshardOrder = NONE",
                "child with lanes",
            ),
        ),
        of_positions=True,
    ),
    Factor(
        "start",
        (
            Value("horizon", lines="initialPositionInStream = TRIM_HORIZON"),
            Value("latest", _set(start_at=StartAt.LATEST), "initialPositionInStream = LATEST"),
        ),
        of_positions=True,
    ),
    Factor(
        "job",
        (
            Value("endless"),
            Value(
                "to a time",
                _job("time", "time"),
                "runUntil = 2026-11-26T00:00:00Z",
                "job ended",
                bound_s=200.0,
            ),
            Value("to the tip", _job("tip", "tip"), "runUntil = tip", "job ended", bound_s=200.0),
        ),
        of_positions=True,
    ),
    Factor(
        "source",
        (
            Value("kinesis", lines="streamName = orders"),
            Value("tables", quick_changes, "tableName.source = orders", "change delivered", bound_s=150.0),
            Value(
                "snapshot",
                quick_snapshot,
                "tableName.source = orders\nsnapshot = true",
                "item scanned",
                bound_s=150.0,
            ),
        ),
        of_positions=True,
    ),
    Factor(
        "streams",
        (
            Value("one"),
            Value("many", _many, "streamNames = a, b", bound_s=90.0),
            Value(
                "after a Java program",
                _foreign,
                "streamNames = a, b",
                "lease of a Java program",
                bound_s=90.0,
            ),
        ),
        of_positions=True,
    ),
    Factor(
        "workers",
        (
            Value("ours"),
            Value("Java beside", _java, seen="Java worker read", lasts_s=220.0, bound_s=500.0),
            Value("earlier ones", _earlier, seen="worker apart"),
        ),
    ),
    Factor(
        "tables",
        (
            Value("three"),
            Value(
                "one", _set(tables=TablesSettings(layout=TableLayout.SINGLE)), "metadataTableLayout = SINGLE"
            ),
            Value("a move", _move, "migrateAllEntitiesToLeaseTable = true", "table move", lasts_s=330.0),
        ),
    ),
    Factor(
        "letters",
        (
            Value("none"),
            Value("stored", _set("failures", dead_letters=DEAD_LETTERS.dead_letters), _LETTERS),
            Value("away", _away, _LETTERS, "letter refused while the store was away", bound_s=200.0),
        ),
        of_positions=True,
    ),
    Factor(
        "poison",
        (
            Value("none"),
            Value(
                "to letters",
                _poison(PoisonRecordPolicy.DEADLETTER),
                "poisonRecordPolicy = DEADLETTER",
                "poison set aside",
                bound_s=300.0,
            ),
            Value(
                "skipped",
                _poison(PoisonRecordPolicy.SKIP),
                "poisonRecordPolicy = SKIP",
                "poison set aside",
                bound_s=300.0,
            ),
        ),
        of_positions=True,
    ),
    Factor("attempts", (Value("any"), Value("4", _set("failures", attempts=4), "maxRecordAttempts = 4"))),
    Factor(
        "age",
        (
            Value("any"),
            Value("limited", _age, "maxRecordAgeMillis = 20000", "record expired", bound_s=200.0),
        ),
        of_positions=True,
    ),
    Factor(
        "rejects",
        (Value("none"), Value("some", _rejects, seen="record rejected", bound_s=150.0)),
        of_positions=True,
    ),
    Factor(
        "reading",
        (
            Value(
                "each second", _set("retrieval", idle_time_between_reads_ms=1_500), "retrievalMode = POLLING"
            ),
            Value(
                "auto",
                _set("retrieval", idle_time_between_reads_ms=None),
                "retrievalMode = POLLING\nidleTimeBetweenReadsInMillis = auto",
            ),
            Value("fan-out", _fan_out, "retrievalMode = FANOUT", "subscribed", bound_s=170.0),
        ),
        of_positions=True,
    ),
    Factor(
        "near the tip",
        (
            Value("as often"),
            Value(
                "less often",
                _set("retrieval", reduced_tps_within_ms=3_000),
                "millisBehindLatestThresholdForReducedTps = 3000",
            ),
        ),
    ),
    Factor(
        "window",
        (
            Value("none"),
            Value("size", _set("delivery", batch_max_records=20), "batchMaxRecords = 20"),
            Value("time", _window, "batchWindowMillis = 500\nbatchMaxRecords = 30"),
        ),
        of_positions=True,
    ),
    Factor(
        "filter",
        (
            Value("none"),
            Value("some records", _filter, 'recordFilter = {"partitionKey": ["a"]}', "record left out"),
        ),
        of_positions=True,
    ),
    Factor(
        "holds",
        (
            Value("none"),
            Value("pause", _hold(limited=False), seen="hold by an operator"),
            Value("limit", _hold(limited=True), seen="hold by an operator"),
        ),
    ),
    Factor(
        "child asks for pauses",
        (Value("never"), Value("sometimes", _set("nursery", pauses=0.1), seen="child asked for a pause")),
    ),
    Factor(
        "start of children",
        (
            Value("at once", lines="childPreload = true"),
            Value("slow", _set("nursery", import_s=(4.0, 6.0)), seen="slow start of a child"),
            Value(
                "slow, nobody stands by",
                lambda draw, plan: _set("leases", standby_ms=0)(
                    draw, _set("nursery", import_s=(4.0, 6.0))(draw, plan)
                ),
                "childStandbyMillis = 0",
                "slow start of a child",
            ),
        ),
    ),
    Factor(
        "records as",
        (
            Value("lines", _habits(takes_frames=False)),
            Value("frames", _habits(takes_frames=True), seen="child takes frames"),
        ),
    ),
    Factor(
        "checkpoints",
        (
            Value("each batch", _habits(when=When.EACH_BATCH)),
            Value("each third", _habits(when=When.EVERY_NTH, every=3)),
            Value("in the middle", _habits(when=When.MIDDLE_OF_BATCH)),
            Value("at the end", _habits(when=When.AT_END_ONLY)),
        ),
        of_positions=True,
    ),
    Factor(
        "checkpoint by", (Value("latest", _habits(explicit=False)), Value("number", _habits(explicit=True)))
    ),
    Factor(
        "children",
        (
            Value("good"),
            Value(
                "ending",
                _mischief(Mischief.EXIT, Mischief.EXIT_LATER, Mischief.HALF_LINE_AND_EXIT, start_fails=0.1),
                seen="child did something wrong",
                bound_s=150.0,
            ),
            Value(
                "hanging",
                _mischief(Mischief.HANG, Mischief.DAWDLE, stubborn=0.3),
                seen="child did something wrong",
                bound_s=150.0,
            ),
            Value(
                "talking",
                _mischief(
                    Mischief.GARBAGE,
                    Mischief.ECHO,
                    Mischief.FOREIGN_CHECKPOINT,
                    Mischief.MALFORMED_CHECKPOINT,
                    Mischief.SECOND_STATUS,
                    Mischief.HALF_LINE,
                ),
                seen="child did something wrong",
                bound_s=150.0,
            ),
        ),
    ),
    Factor(
        "children stuck",
        (Value("for ever"), Value("for 30 s", _set(child_stuck_s=30.0), "childStuckTimeoutMillis = 30000")),
    ),
    Factor(
        "empty calls",
        (
            Value("no"),
            Value(
                "yes",
                _set(calls_for_empty=True),
                "callProcessRecordsEvenForEmptyRecordList = true",
                "empty batch",
            ),
        ),
    ),
    Factor(
        "kills",
        (
            Value("none"),
            Value("any moment", _happen(lambda draw: draw.kill(0.5, 5.0, 20.0)), seen="worker killed"),
            Value("at writes", _die_at_writes, seen="worker killed at a write"),
            Value("at points", _die_at_points, seen="at a point"),
            Value("in hand-overs", _die_in_handoffs, seen="worker killed in a handoff"),
        ),
        of_positions=True,
    ),
    Factor(
        "pauses",
        (
            Value("none"),
            Value(
                "workers",
                _happen(lambda draw: Pause(draw.target(), draw.chance.pick((3.0, 12.0, 25.0))), count=(1, 2)),
                seen="worker paused",
            ),
            Value(
                "with children",
                _happen(
                    lambda draw: Pause(
                        draw.target(), draw.chance.pick((3.0, 12.0, 25.0)), with_children=True
                    ),
                    count=(1, 2),
                ),
                seen="worker paused",
            ),
        ),
    ),
    Factor(
        "stops",
        (
            Value("none"),
            Value(
                "rolling",
                _happen(lambda draw: Stop(draw.target(), draw.chance.uniform(0.0, 5.0))),
                seen="worker stopped",
            ),
        ),
    ),
    Factor(
        "joins",
        (Value("none"), Value("some", _happen(lambda _draw: Start(), count=(1, 2)))),
    ),
    Factor(
        "hand-over",
        (
            Value("graceful"),
            Value("at once", _set("leases", graceful_handoff=False), "isGracefulLeaseHandoffEnabled = false"),
        ),
    ),
    Factor(
        "reshards",
        (
            Value("none"),
            Value("some", _reshape, seen="shard closed", bound_s=120.0),
            Value("cut short", _die_at_shard_ends, seen="worker killed at a shard end", bound_s=150.0),
        ),
        of_positions=True,
    ),
    Factor(
        "finished leases",
        (
            Value("kept a while"),
            Value(
                "cleared at once",
                _set(
                    "shard_settings",
                    audit_ms=2_000,
                    cleanup_ms=1_000,
                    cleanup_completed_ms=1,
                    cleanup_garbage_ms=1_000,
                ),
                "leaseCleanupIntervalMillis = 1000",
            ),
        ),
    ),
    Factor(
        "shard sync",
        (
            Value("at shard ends"),
            Value(
                "periodic",
                _set("shard_settings", sync_strategy=ShardSyncStrategy.PERIODIC, audit_ms=5_000),
                "shardSyncStrategyType = PERIODIC",
            ),
        ),
    ),
    Factor(
        "clocks",
        (
            Value("right", _set(skew_s=0.0, drift=0.0)),
            Value("wrong", _set(skew_s=90.0, drift=1e-2)),
            Value("jumping", _steps_of_clocks, seen="clock jumped"),
        ),
    ),
    Factor(
        "Kinesis",
        (
            Value("calm"),
            Value("troubled", _kinesis, seen="trouble of kinesis"),
            Value("read by others", _read_by_others, seen="trouble of kinesis"),
            Value("cut off", _cut(Service.KINESIS), seen="worker cut off"),
        ),
    ),
    Factor(
        "DynamoDB",
        (
            Value("calm"),
            Value("troubled", _dynamodb, seen="trouble of dynamodb"),
            Value("ambiguous", _ambiguous, seen="trouble of dynamodb"),
            Value("cut off", _cut(Service.DYNAMODB), seen="worker cut off"),
        ),
    ),
    Factor("owner index", (Value("there"), Value("late", _index_late))),
    Factor(
        "answers of Kinesis",
        (
            Value("whole", _set("retrieval", max_records=10_000)),
            Value("small", _set("retrieval", max_records=40), "maxRecords = 40"),
        ),
    ),
    Factor(
        "read ahead",
        (
            Value("four", _set("retrieval", prefetch_batches=4)),
            Value("none", _set("retrieval", prefetch_batches=0), "maxPendingProcessRecordsInput = 0"),
        ),
    ),
    Factor(
        "records",
        (
            Value("plain"),
            Value("aggregates", _aggregates, seen="record inside an aggregate"),
        ),
        of_positions=True,
    ),
    Factor("records readable", (Value("at once"), Value("late", _set(unreadable_s=0.5)))),
)
