"""Everything that bears on records, as factors of two to five values each: properties, surroundings, and what goes wrong.

Owns which values there are, their lines of a properties file, and by what it is seen that each really happened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.balance import ShardSyncStrategy
from kcl_daemon.config.children import PoisonRecordPolicy
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.shards.lineage import StartAt
from tests.simulator.faults.behaviour import Mischief, When
from tests.simulator.faults.life import Service
from tests.simulator.pairs import makes
from tests.simulator.pairs.makes import Factor, Value
from tests.simulator.plans.plan import (
    Pause,
    Start,
    Stop,
)
from tests.simulator.scenarios.changes import quick_changes, quick_snapshot
from tests.simulator.scenarios.poison import DEAD_LETTERS

_NO_KCL: Final = "executableName = child"
_LETTERS: Final = "deadLetterDestination = sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/letters"

FACTORS: Final[tuple[Factor, ...]] = (
    Factor("backlog", (Value("none", makes.sets(backlog=0)), Value("some", makes.sets(backlog=400)))),
    Factor("keys", (Value("many"), Value("few", lambda _draw, plan: replace(plan, keys=min(plan.keys, 4))))),
    Factor(
        "sink",
        (
            Value("plain", lines=_NO_KCL),
            Value("own positions", makes.own_positions, _NO_KCL, seen="child began at its own position"),
            Value("landing", makes.landing, "landing = file:/var/landing", seen="segment landed"),
        ),
        of_positions=True,
    ),
    Factor(
        "lanes",
        (
            Value("one"),
            Value("by key", makes.lanes(ShardOrder.KEY), "shardConcurrency = 3", "child with lanes"),
            Value(
                "remembered",
                makes.lanes(ShardOrder.KEY, remembers=True),
                "shardConcurrency = 3\nshardConcurrencyRemembers = true",
                "child with lanes",
            ),
            Value(
                "in any order",
                makes.lanes(ShardOrder.NONE),
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
            Value("latest", makes.sets(start_at=StartAt.LATEST), "initialPositionInStream = LATEST"),
        ),
        of_positions=True,
    ),
    Factor(
        "job",
        (
            Value("endless"),
            Value(
                "to a time",
                makes.job("time", "time"),
                "runUntil = 2026-11-26T00:00:00Z",
                "job ended",
                bound_s=200.0,
            ),
            Value("to the tip", makes.job("tip", "tip"), "runUntil = tip", "job ended", bound_s=200.0),
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
            Value("many", makes.many, "streamNames = a, b", bound_s=90.0),
            Value(
                "after a Java program",
                makes.foreign,
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
            Value("Java beside", makes.java, seen="Java worker read", lasts_s=220.0, bound_s=500.0),
            Value("earlier ones", makes.earlier, seen="worker apart"),
        ),
    ),
    Factor(
        "tables",
        (
            Value("three"),
            Value(
                "one",
                makes.sets(tables=TablesSettings(layout=TableLayout.SINGLE)),
                "metadataTableLayout = SINGLE",
            ),
            Value("a move", makes.move, "migrateAllEntitiesToLeaseTable = true", "table move", lasts_s=330.0),
        ),
    ),
    Factor(
        "letters",
        (
            Value("none"),
            Value("stored", makes.sets("failures", dead_letters=DEAD_LETTERS.dead_letters), _LETTERS),
            Value("away", makes.away, _LETTERS, "letter refused while the store was away", bound_s=200.0),
        ),
        of_positions=True,
    ),
    Factor(
        "poison",
        (
            Value("none"),
            Value(
                "to letters",
                makes.poison(PoisonRecordPolicy.DEADLETTER),
                "poisonRecordPolicy = DEADLETTER",
                "poison set aside",
                bound_s=300.0,
            ),
            Value(
                "skipped",
                makes.poison(PoisonRecordPolicy.SKIP),
                "poisonRecordPolicy = SKIP",
                "poison set aside",
                bound_s=300.0,
            ),
        ),
        of_positions=True,
    ),
    Factor(
        "attempts", (Value("any"), Value("4", makes.sets("failures", attempts=4), "maxRecordAttempts = 4"))
    ),
    Factor(
        "age",
        (
            Value("any"),
            Value("limited", makes.age, "maxRecordAgeMillis = 20000", "record expired", bound_s=200.0),
        ),
        of_positions=True,
    ),
    Factor(
        "rejects",
        (Value("none"), Value("some", makes.rejects, seen="record rejected", bound_s=150.0)),
        of_positions=True,
    ),
    Factor(
        "reading",
        (
            Value(
                "each second",
                makes.sets("retrieval", idle_time_between_reads_ms=1_500),
                "retrievalMode = POLLING",
            ),
            Value(
                "auto",
                makes.sets("retrieval", idle_time_between_reads_ms=None),
                "retrievalMode = POLLING\nidleTimeBetweenReadsInMillis = auto",
            ),
            Value("fan-out", makes.fan_out, "retrievalMode = FANOUT", "subscribed", bound_s=170.0),
        ),
        of_positions=True,
    ),
    Factor(
        "near the tip",
        (
            Value("as often"),
            Value(
                "less often",
                makes.sets("retrieval", reduced_tps_within_ms=3_000),
                "millisBehindLatestThresholdForReducedTps = 3000",
            ),
        ),
    ),
    Factor(
        "window",
        (
            Value("none"),
            Value("size", makes.sets("delivery", batch_max_records=20), "batchMaxRecords = 20"),
            Value("time", makes.window, "batchWindowMillis = 500\nbatchMaxRecords = 30"),
        ),
        of_positions=True,
    ),
    Factor(
        "filter",
        (
            Value("none"),
            Value(
                "some records", makes.filtered, 'recordFilter = {"partitionKey": ["a"]}', "record left out"
            ),
        ),
        of_positions=True,
    ),
    Factor(
        "holds",
        (
            Value("none"),
            Value("pause", makes.hold(limited=False), seen="hold by an operator"),
            Value("limit", makes.hold(limited=True), seen="hold by an operator"),
        ),
    ),
    Factor(
        "child asks for pauses",
        (
            Value("never"),
            Value("sometimes", makes.sets("children_plan", pauses=0.1), seen="child asked for a pause"),
        ),
    ),
    Factor(
        "start of children",
        (
            Value("at once", lines="childPreload = true"),
            Value("slow", makes.sets("children_plan", import_s=(4.0, 6.0)), seen="slow start of a child"),
            Value(
                "slow, nobody stands by",
                lambda draw, plan: makes.sets("leases", standby_ms=0)(
                    draw, makes.sets("children_plan", import_s=(4.0, 6.0))(draw, plan)
                ),
                "childStandbyMillis = 0",
                "slow start of a child",
            ),
        ),
    ),
    Factor(
        "records as",
        (
            Value("lines", makes.behaviour(takes_frames=False)),
            Value("frames", makes.behaviour(takes_frames=True), seen="child takes frames"),
        ),
    ),
    Factor(
        "checkpoints",
        (
            Value("each batch", makes.behaviour(when=When.EACH_BATCH)),
            Value("each third", makes.behaviour(when=When.EVERY_NTH, every=3)),
            Value("in the middle", makes.behaviour(when=When.MIDDLE_OF_BATCH)),
            Value("at the end", makes.behaviour(when=When.AT_END_ONLY)),
        ),
        of_positions=True,
    ),
    Factor(
        "checkpoint by",
        (Value("latest", makes.behaviour(explicit=False)), Value("number", makes.behaviour(explicit=True))),
    ),
    Factor(
        "children",
        (
            Value("good"),
            Value(
                "ending",
                makes.mischief(
                    Mischief.EXIT, Mischief.EXIT_LATER, Mischief.HALF_LINE_AND_EXIT, start_fails=0.1
                ),
                seen="child did something wrong",
                bound_s=150.0,
            ),
            Value(
                "hanging",
                makes.mischief(Mischief.HANG, Mischief.DAWDLE, stubborn=0.3),
                seen="child did something wrong",
                bound_s=150.0,
            ),
            Value(
                "talking",
                makes.mischief(
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
        (
            Value("for ever"),
            Value("for 30 s", makes.sets(child_stuck_s=30.0), "childStuckTimeoutMillis = 30000"),
        ),
    ),
    Factor(
        "empty calls",
        (
            Value("no"),
            Value(
                "yes",
                makes.sets(calls_for_empty=True),
                "callProcessRecordsEvenForEmptyRecordList = true",
                "empty batch",
            ),
        ),
    ),
    Factor(
        "kills",
        (
            Value("none"),
            Value("any moment", makes.happen(lambda draw: draw.kill(0.5, 5.0, 20.0)), seen="worker killed"),
            Value("at writes", makes.die_at_writes, seen="worker killed at a write"),
            Value("at points", makes.die_at_points, seen="at a point"),
            Value("in handoffs", makes.die_in_handoffs, seen="worker killed in a handoff"),
        ),
        of_positions=True,
    ),
    Factor(
        "pauses",
        (
            Value("none"),
            Value(
                "workers",
                makes.happen(
                    lambda draw: Pause(draw.target(), draw.chance.pick((3.0, 12.0, 25.0))), count=(1, 2)
                ),
                seen="worker paused",
            ),
            Value(
                "with children",
                makes.happen(
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
                makes.happen(lambda draw: Stop(draw.target(), draw.chance.uniform(0.0, 5.0))),
                seen="worker stopped",
            ),
        ),
    ),
    Factor(
        "joins",
        (Value("none"), Value("some", makes.happen(lambda _draw: Start(), count=(1, 2)))),
    ),
    Factor(
        "handoff",
        (
            Value("graceful"),
            Value(
                "at once",
                makes.sets("leases", graceful_handoff=False),
                "isGracefulLeaseHandoffEnabled = false",
            ),
        ),
    ),
    Factor(
        "reshards",
        (
            Value("none"),
            Value("some", makes.reshape, seen="shard closed", bound_s=120.0),
            Value("cut short", makes.die_at_shard_ends, seen="worker killed at a shard end", bound_s=150.0),
        ),
        of_positions=True,
    ),
    Factor(
        "finished leases",
        (
            Value("kept a while"),
            Value(
                "cleared at once",
                makes.sets(
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
                makes.sets("shard_settings", sync_strategy=ShardSyncStrategy.PERIODIC, audit_ms=5_000),
                "shardSyncStrategyType = PERIODIC",
            ),
        ),
    ),
    Factor(
        "clocks",
        (
            Value("right", makes.sets(skew_s=0.0, drift=0.0)),
            Value("wrong", makes.sets(skew_s=90.0, drift=1e-2)),
            Value("jumping", makes.steps_of_clocks, seen="clock jumped"),
        ),
    ),
    Factor(
        "Kinesis",
        (
            Value("calm"),
            Value("troubled", makes.kinesis, seen="trouble of kinesis"),
            Value("read by others", makes.read_by_others, seen="trouble of kinesis"),
            Value("cut off", makes.cut(Service.KINESIS), seen="worker cut off"),
        ),
    ),
    Factor(
        "DynamoDB",
        (
            Value("calm"),
            Value("troubled", makes.dynamodb, seen="trouble of dynamodb"),
            Value("ambiguous", makes.ambiguous, seen="trouble of dynamodb"),
            Value("cut off", makes.cut(Service.DYNAMODB), seen="worker cut off"),
        ),
    ),
    Factor("owner index", (Value("there"), Value("late", makes.index_late))),
    Factor(
        "answers of Kinesis",
        (
            Value("whole", makes.sets("retrieval", max_records=10_000)),
            Value("small", makes.sets("retrieval", max_records=40), "maxRecords = 40"),
        ),
    ),
    Factor(
        "read ahead",
        (
            Value("four", makes.sets("retrieval", prefetch_batches=4)),
            Value("none", makes.sets("retrieval", prefetch_batches=0), "maxPendingProcessRecordsInput = 0"),
        ),
    ),
    Factor(
        "records",
        (
            Value("plain"),
            Value("aggregates", makes.aggregates, seen="record inside an aggregate"),
        ),
        of_positions=True,
    ),
    Factor("records readable", (Value("at once"), Value("late", makes.sets(unreadable_s=0.5)))),
)
