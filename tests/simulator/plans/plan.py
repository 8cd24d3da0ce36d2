"""What a run consists of, as plain values: so many workers, this load, these faults at these moments.

Owns the vocabulary of scenarios. Knows nothing of how a plan is carried out (`runner`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from kcl_daemon.config.balance import BalanceSettings, ClientVersionConfig, LeaseSettings, ShardSettings
from kcl_daemon.config.children import ConcurrencySettings, FailureSettings
from kcl_daemon.config.retrieval import DeliverySettings, RetrievalSettings
from kcl_daemon.config.streams import StreamsSettings
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.fleet.client_version import ClientVersion
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.shards.lineage import StartAt
from kcl_local.kinesis.arguments import DEFAULTS, KinesisOptions
from tests.simulator.faults.behaviour import ChildrenPlan
from tests.simulator.faults.life import Service
from tests.simulator.faults.network import CALM, Trouble
from tests.simulator.fleet.aggregates import AggregatesPlan
from tests.simulator.rules.bank import BankPlan
from tests.simulator.rules.landing import LandingPlan

# What a fleet on plain settings may take to recover: leader lease, fail-over and a few looks.
BOUND_S: Final = 60.0


class Who(Enum):
    """A worker that is not known before the run."""

    LEADER = auto()


# A living worker: the leader, or by place among those that live then (modulo their number).
Target = Who | int


class Kind(Enum):
    """Which daemon a worker runs."""

    OURS = auto()
    JAVA = auto()  # a model of it: `java_worker`
    ASTRAY = auto()  # ours, with a file that names another stream


@dataclass(frozen=True, slots=True)
class Start:
    """A new worker joins. Those that replace it later are of the same kind."""

    kind: Kind = Kind.OURS


class Where(Enum):
    """Where a replacement starts."""

    ELSEWHERE = auto()  # on a host of its own
    IN_PLACE = auto()  # by the supervisor of the host, which goes on
    AFTER_REBOOT = auto()  # on the same host and volume, which lost power
    CLONE = auto()  # on another host with a copy of the volume


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL; a replacement starts after that long, None: never. It may have the old name."""

    target: Target
    replaced_after_s: float | None = None
    keeps_name: bool = False
    where: Where = Where.ELSEWHERE


@dataclass(frozen=True, slots=True)
class StartOnClone:
    """A new worker joins on a host with a copy of the volume of a host whose worker lives."""

    target: Target


@dataclass(frozen=True, slots=True)
class StartNamesake:
    """A second process with the name of one that lives; on its host, or on another."""

    target: Target
    same_host: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """A graceful stop; a replacement starts after that long, None: never. It never has the old name: both may live."""

    target: Target
    replaced_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, and SIGCONT after that long. Its children may go on, or stop and wake with it."""

    target: Target
    for_s: float
    with_children: bool = False


@dataclass(frozen=True, slots=True)
class CutOff:
    """A worker does not reach a service for that long."""

    target: Target
    service: Service
    for_s: float


@dataclass(frozen=True, slots=True)
class StepWallClock:
    """A worker's date jumps."""

    target: Target
    seconds: float


@dataclass(frozen=True, slots=True)
class DieAtWrites:
    """Every worker started from now on dies at one of its first writes; a new one follows a moment later.

    Args:
        at: for each worker in turn, which of its writes it does not survive; those after them live.
        before: for each, whether that write still takes effect (False) or not (True).
    """

    at: tuple[int, ...]
    before: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """An open shard is split."""

    rank: int


@dataclass(frozen=True, slots=True)
class Merge:
    """An open shard is merged with its neighbour."""

    rank: int


@dataclass(frozen=True, slots=True)
class Scale:
    """The service doubles the open shards, or halves them, all at once."""

    up: bool


class Step(Enum):
    """How far a hand-off has come, by the write that shows it."""

    ASKED = auto()  # the leader has named the next owner
    CHECKPOINTED = auto()  # the old owner has stored a checkpoint since
    PASSED_ON = auto()  # the old owner has let go
    CLAIMED = auto()  # the new owner has written the row for the first time


class Side(Enum):
    """Who takes part in a hand-off."""

    OLD_OWNER = auto()
    NEW_OWNER = auto()
    LEADER = auto()


@dataclass(frozen=True, slots=True)
class DieInHandoff:
    """The next hand-off that gets so far costs one side its life; a new worker follows.

    Args:
        step: how far.
        side: who dies.
        after_s: how long after that write.
        replaced_after_s: when the new worker starts.
    """

    step: Step
    side: Side
    after_s: float
    replaced_after_s: float


class ShardEndStep(Enum):
    """How far the end of a shard has come, by the write that shows it."""

    CHILD_CREATED = auto()  # each child lease is a step of its own
    CHILDREN_NAMED = auto()
    FINISHED = auto()
    RELEASED = auto()


@dataclass(frozen=True, slots=True)
class DieAtShardEnd:
    """The next worker that gets so far at the end of a shard dies with that write; a new worker follows.

    Args:
        step: how far.
        nth: at the how-many-th such write from now.
        replaced_after_s: when the new worker starts.
    """

    step: ShardEndStep
    nth: int
    replaced_after_s: float


@dataclass(frozen=True, slots=True)
class DeleteLease:
    """A person deletes the lease of an open shard."""

    rank: int


@dataclass(frozen=True, slots=True)
class StreamAppears:
    """One of many streams is created, if it is not there."""

    number: int
    shards: int


@dataclass(frozen=True, slots=True)
class StreamDisappears:
    """One of many streams is deleted, if it is there, with whatever nobody has read of it."""

    number: int


@dataclass(frozen=True, slots=True)
class SwitchStream:
    """The stream of a table is switched off; later on again, as a new one."""

    table: int
    on: bool


@dataclass(frozen=True, slots=True)
class Roll:
    """An open shard of a table's stream ends, and one follows it."""

    rank: int


class Epoch(Enum):
    """What a Java program of many streams has put into its lease keys as the time at which a stream was created."""

    NOBODY = 0  # no such program has read the stream
    CREATED = auto()  # what Kinesis tells
    ONE = auto()
    MADE_UP = auto()
    STARTED = auto()  # when the program started, in seconds
    MILLISECONDS = auto()  # the same in milliseconds


@dataclass(frozen=True, slots=True)
class AddAttribute:
    """Somebody else's attribute appears on every lease row, as a later version may add one."""


@dataclass(frozen=True, slots=True)
class AddRows:
    """A later version writes rows and attributes that nobody here knows, a second leader row among them (kcl#1736)."""


@dataclass(frozen=True, slots=True)
class HoldBack:
    """An operator pauses, or limits to so many records a second: an open shard, or all (`rank` None).

    Args:
        for_s: it ends by itself; None: it does not.
    """

    rank: int | None
    limit: float | None
    for_s: float | None


@dataclass(frozen=True, slots=True)
class LetGo:
    """An operator ends all pauses and limits."""


class Steering(Enum):
    """What a person does to the client version, as `kcl-daemon migrate` does it."""

    ROLL_BACK = auto()
    ROLL_FORWARD = auto()


@dataclass(frozen=True, slots=True)
class Configure:
    """Every worker started from now on has this `clientVersionConfig`."""

    config: ClientVersionConfig


@dataclass(frozen=True, slots=True)
class MigrateTables:
    """Once all know the single table, every worker is deployed anew with `migrateAllEntitiesToLeaseTable`, one by one.

    Args:
        apart_s: the time between two of them.
    """

    apart_s: float


@dataclass(frozen=True, slots=True)
class StartApart:
    """A worker that has not been set to move tables joins for a while.

    Args:
        supports: whether it tells that it knows the single table, as workers up to KCL 3.4 do not.
        leaves_after_s: for how long it stays.
        dies: it is killed, not stopped.
    """

    supports: bool
    leaves_after_s: float
    dies: bool


Event = (
    Start
    | StartOnClone
    | StartNamesake
    | Kill
    | Stop
    | Pause
    | CutOff
    | StepWallClock
    | DieAtWrites
    | DieInHandoff
    | Split
    | Merge
    | Scale
    | DieAtShardEnd
    | DeleteLease
    | AddAttribute
    | AddRows
    | StreamAppears
    | StreamDisappears
    | SwitchStream
    | Roll
    | Steering
    | Configure
    | MigrateTables
    | StartApart
    | HoldBack
    | LetGo
)


@dataclass(frozen=True, slots=True)
class AtPoint:
    """What befalls a worker between two writes: SIGKILL, or SIGSTOP with SIGCONT after `pause_s`.

    Args:
        point: of the daemon's code, by its name (`kcl_daemon.faults`).
        nth: the worker that is the so-many-th to come there in the run.
        pause_s: None: it is killed.
        with_children: they stop and wake with it.
        replaced_after_s: when a new worker starts after a kill.
        keeps_name: the new one has the old name.
    """

    point: str
    nth: int
    pause_s: float | None
    with_children: bool = False
    replaced_after_s: float = 3.0
    keeps_name: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """Something that happens at a virtual time."""

    at_s: float
    what: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPlan:
    """DynamoDB tables whose changes the children get.

    Args:
        tables: how many there are.
        items: how many keys each has.
        follows: the workers are given the tables, and read one stream of each after the other; else the ARNs of the first.
        form: of the records.
        life_s: how long a shard takes changes until the next one follows it.
        kept_s: how long changes, and lists of shards, last.
        late_s: for how long at most the lists miss a new shard or the end of one.
        empty_every: each so-many-th answer has nothing, whatever there is; 0: none.
        snapshot: all items are read first.
        segments: in so many parts.
        read_units: of all of them together, each second.
        continues_trimmed: whether reading goes on behind what is lost; None: as the daemon does by itself.
        is_whole: the daemon may not lose anything; else it was away for too long.
        is_copied: what was delivered, change by change, makes a copy of the tables in the end.
        open_most: the lease table may have three times the open shards; else three times the listed ones.
    """

    tables: int = 1
    items: int = 40
    follows: bool = True
    form: ChangeForm = ChangeForm.PLAIN
    life_s: float = 14_400.0
    kept_s: float = 86_400.0
    late_s: float = 0.0
    empty_every: int = 0
    snapshot: bool = False
    segments: int | None = None
    read_units: int = 500
    continues_trimmed: bool | None = None
    is_whole: bool = True
    is_copied: bool = False
    open_most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run.

    Args:
        shards: of the stream at its start.
        records_per_s: written, over all shards.
        start_at: initial position of the workers.
        backlog: records that are there before the first worker.
        record_bytes: size of a record's data; 0: a few bytes.
        aggregates: what producers put together; None: nothing.
        chooses_shards: the service chooses the shards, whatever the keys are (`RecordDistributionStrategy` AUTO).
        skew: 0: over all shards as chance will have it; 1: evenly, without chance; above: the first shards get most.
        events: in any order.
        points: what befalls workers between two writes.
        dynamodb: trouble until `calm_at_s`.
        index_lag_s: how far the owner index is behind its table, from and to.
        kinesis: trouble until `calm_at_s`.
        stream: settings of the model of Kinesis: limits, life of iterators.
        index_ready_at_s: until then the owner index cannot be asked.
        leases: settings of the workers.
        retrieval: settings of the workers.
        shard_settings: settings of the workers.
        calls_for_empty: whether children are given empty batches, and told until when they have all.
        unreadable_s: how long a record has its date before it can be read.
        children_plan: what children are like; they behave from `calm_at_s` on.
        calm_at_s: from now on nothing goes wrong any more.
        ends_at_s: producers stop.
        ends_early: they stop before, when all has been well for a while after `calm_at_s`.
        bound_s: how long the fleet may take to be in order after `calm_at_s`, and to finish after `ends_at_s`.
        skew_s: dates are wrong by up to this.
        drift: clocks run wrong by up to this part.
        child_timeout_s: how long a child may take for one answer; None: for ever.
        is_quiet: no warning and no error may be logged.
        repeats_most: how many records may be given to children more than once; None: any.
        latency_most_s: how long a record may wait for its first child; None: any time.
        comes_from_2x: the lease table exists, without its index, and workers may take leases from living ones.
        index_build_s: how long an added index is built, from and to.
        tables: settings of the workers.
        balance: settings of the workers.
        moves_tables: in the end everything is in the lease table, and a worker that joins then finds it there.
        ends_in: the client versions that it may come to in the end; none: any.
        streams: names of many streams that the workers are to read, whether they are there or not; none: there is one.
        streams_settings: settings of the workers; without a list or a filter they are given the names.
        java_epochs: a Java program has read many streams before, and stopped; of each of them, in turn, what it put into
            its lease keys.
        failures: settings of the workers.
        letters_away_s: from when to when no letter can be stored.
        concurrency: settings of the workers.
        lane_counts: workers differ in the number of their lanes; each has one of these, 1 among them. Empty: as `concurrency` says.
        keys: how many partition keys the records have.
        delivery: settings of the workers.
        keeps: of a key and data in base64, whether a record is for the children; None: all are.
        java_names_entities: Java workers write what 3.5 writes into separate tables, else what 3.4 writes.
        java_reports_cpu: Java workers report CPU figures.
        astray_shards: of the other stream, which workers that are astray read; 0: there is none.
        child_stuck_s: how long a child may work without a new checkpoint; None: for ever.
        read_again_s: what a worker read that was killed and replaced in place is read again after so long; None: any time.
        led_again_s: the same for a leader.
        handoff_gap_most_s: how long a shard may stand still at a planned hand-off between workers that stand by; None:
            any time.
        every_third_waits: every third worker does not stand by.
        jobs: where jobs end that follow each other, seconds after the start of each; None: at the tip. Empty: the fleet runs
            until it is stopped.
        job_workers: how many workers each job starts with.
        bank: children carry out transfers; None: they do nothing with their records.
        landing: children write their records into a landing log; None: they do not.
        changes: DynamoDB tables are read, beside `streams` if there are any.
        names_stand_alone: from a while after `calm_at_s` on, of processes with the same worker id only one works.
    """

    shards: int
    records_per_s: float
    events: tuple[Planned, ...]
    calm_at_s: float
    ends_at_s: float
    ends_early: bool = False
    points: tuple[AtPoint, ...] = ()
    start_at: StartAt = StartAt.TRIM_HORIZON
    backlog: int = 0
    record_bytes: int = 0
    skew: float = 0.0
    aggregates: AggregatesPlan | None = None
    chooses_shards: bool = False
    dynamodb: Trouble = CALM
    index_lag_s: tuple[float, float] = (0.005, 0.1)
    index_ready_at_s: float = 0.0
    kinesis: Trouble = CALM
    stream: KinesisOptions = DEFAULTS
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    shard_settings: ShardSettings = field(default_factory=ShardSettings)
    calls_for_empty: bool = False
    unreadable_s: float = 0.0
    children_plan: ChildrenPlan = field(default_factory=ChildrenPlan)
    bound_s: float = BOUND_S
    skew_s: float = 1.0
    drift: float = 1e-4
    child_timeout_s: float | None = None
    is_quiet: bool = False
    repeats_most: int | None = None
    latency_most_s: float | None = None
    comes_from_2x: bool = False
    index_build_s: tuple[float, float] = (0.0, 0.0)
    tables: TablesSettings = field(default_factory=TablesSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    moves_tables: bool = False
    ends_in: frozenset[ClientVersion] = frozenset()
    streams: tuple[str, ...] = ()
    streams_settings: StreamsSettings = field(default_factory=StreamsSettings)
    java_epochs: tuple[Epoch, ...] = ()
    failures: FailureSettings = field(default_factory=FailureSettings)
    letters_away_s: tuple[tuple[float, float], ...] = ()
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    lane_counts: tuple[int, ...] = ()
    keys: int = 1 << 40
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    keeps: Callable[[str | None, str], bool] | None = None
    java_names_entities: bool = False
    java_reports_cpu: bool = False
    astray_shards: int = 0
    child_stuck_s: float | None = None
    read_again_s: float | None = None
    led_again_s: float | None = None
    handoff_gap_most_s: float | None = None
    every_third_waits: bool = False
    names_stand_alone: bool = False
    jobs: tuple[float | None, ...] = ()
    job_workers: int = 1
    bank: BankPlan | None = None
    landing: LandingPlan | None = None
    changes: ChangesPlan | None = None

    @property
    def dates_wrong_by_s(self) -> float:
        """By at most so much, after all jumps."""
        jumps = (each.what.seconds for each in self.events if isinstance(each.what, StepWallClock))
        return self.skew_s + sum(map(abs, jumps))
