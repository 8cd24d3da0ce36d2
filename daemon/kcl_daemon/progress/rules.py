"""PURE: what a shard waits for, when that is too long, and what is said about it.

Each wait has a limit of its own, so that what took long before is not blamed on what comes next. A child that fails, is
started, and fails again waits for nothing long and never gets on: that is judged by the time since it first failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kcl_daemon.progress.cause import Cause
from kcl_daemon.progress.heard import NEVER_S
from kcl_daemon.progress.progress import Progress

AGAIN_S: Final = 600.0
"""What is still stalled is told again after so long."""

ADVICE: Final[Mapping[Cause, str]] = {
    Cause.STARTING: "the child has not answered its first action: read its stderr, and test it with `kcl-daemon "
    "run-child`",
    Cause.CHILD: "the record processor has not answered: read its stderr, and find out what it waits for; "
    "childStuckTimeoutMillis replaces such a child",
    Cause.RESTART: "the child keeps failing at the same place: read `child_failed` and its stderr",
    Cause.KINESIS: "Kinesis does not answer the reads of this shard: check permissions, network and `read_failed`",
    Cause.DYNAMODB: "the lease table does not accept the writes of this shard: check its capacity, permissions and the "
    "network",
    Cause.PARENT: "records are read in order: check the parent shards, which other workers may read",
    Cause.STREAM: "the stream of this lease does not exist: was it deleted? `kcl-daemon leases` shows and removes "
    "leases",
    Cause.LEASE: "a lease handoff makes no progress: check the former child and the lease table",
    Cause.NOTHING_NEW: "nothing to do",
}


class ShardState(Enum):
    """How a held shard is, in a word that programs may rely on."""

    FAILING = "failing"
    """Its children fail one after the other: the second one in a row has."""
    STALLED = "stalled"
    STARTING = "starting"
    WAITING = "waiting"
    READING = "reading"
    CAUGHT_UP = "caught_up"
    FINISHED = "finished"


FAILING_FROM: Final = 2
"""Children may fail for passing reasons; the second one in a row is told of."""
_STATES: Final[Mapping[Cause, ShardState]] = {
    Cause.STARTING: ShardState.STARTING,
    Cause.RESTART: ShardState.STARTING,
    Cause.PARENT: ShardState.WAITING,
    Cause.STREAM: ShardState.WAITING,
    Cause.LEASE: ShardState.WAITING,
    Cause.NOTHING_NEW: ShardState.CAUGHT_UP,
}


def state_of(cause: Cause, *, failures: int, stalled: bool, finished: bool = False) -> ShardState:
    """How a held shard is; trouble first.

    Args:
        cause: what it waits for.
        failures: children that failed since the last progress.
        stalled: whether it makes no progress for too long.
        finished: whether SHARD_END is its checkpoint.
    """
    if failures >= FAILING_FROM:
        return ShardState.FAILING
    if stalled:
        return ShardState.STALLED
    return ShardState.FINISHED if finished else _STATES.get(cause, ShardState.READING)


@dataclass(frozen=True, slots=True)
class Limits:
    """For how long a shard may make no progress, in seconds, by what it waits for. NOTHING_NEW has no limit.

    Args:
        starting_s: a JVM, or Spark, takes its time.
        child_s: longer batches are possible, but worth a word.
        restart_s: since a child first failed, without progress; enough for several.
        kinesis_s: an answer is given up after a minute.
        dynamodb_s: of a checkpoint, or what is written at the end of a shard.
        parent_s: a backlog of the parent is no fault.
        stream_s: to delete and create one takes a minute.
        lease_s: to end a child and pass a lease on.
        answer_s: without an answer for so long nobody can say that there is nothing new.
        child_stuck_s: a child that works for so long and shows nothing for it is replaced; None: for ever.
    """

    starting_s: float = 120.0
    child_s: float = 300.0
    restart_s: float = 180.0
    kinesis_s: float = 60.0
    dynamodb_s: float = 60.0
    parent_s: float = 3600.0
    stream_s: float = 120.0
    lease_s: float = 90.0
    answer_s: float = 35.0
    child_stuck_s: float | None = None

    def of(self, cause: Cause) -> float | None:
        """The limit of a cause; None: it has none."""
        limits: dict[Cause, float | None] = {
            Cause.STARTING: self.starting_s,
            Cause.CHILD: self.child_s,
            Cause.RESTART: self.restart_s,
            Cause.KINESIS: self.kinesis_s,
            Cause.DYNAMODB: self.dynamodb_s,
            Cause.PARENT: self.parent_s,
            Cause.STREAM: self.stream_s,
            Cause.LEASE: self.lease_s,
            Cause.NOTHING_NEW: None,
        }
        return limits[cause]


@dataclass(frozen=True, slots=True)
class Seen:
    """A shard at one moment.

    Args:
        cause: what it waits for.
        detail: more words on it.
        waits_s: for how long it has waited for that.
        idle_s: since the last progress.
        stalled_by: what holds it up, where that takes longer than it may; None: nothing does. Another cause than that of
            this moment where its children fail one after the other.
    """

    cause: Cause
    detail: str
    waits_s: float
    idle_s: float
    stalled_by: Cause | None


def see(progress: Progress, limits: Limits, now_s: float, *, patience_s: float = 0.0) -> Seen:
    """What a shard waits for at this moment, by its record.

    Args:
        progress: the record.
        limits: of the waits.
        now_s: monotonic seconds.
        patience_s: how much longer than these limits it may wait now.
    """
    cause, detail, since_s = _waits_for(progress, limits, now_s, patience_s)
    if progress.failures and cause is not Cause.RESTART:
        detail = f"{detail}; the last child failed: {progress.failure}".removeprefix("; ")
    waits_s, limit_s, stalled_by = now_s - since_s, limits.of(cause), None
    if limit_s is not None and waits_s > limit_s + patience_s:
        stalled_by = cause
    elif progress.failures and now_s - progress.failing_s > limits.restart_s + patience_s:
        stalled_by = Cause.RESTART
    return Seen(cause, detail, waits_s, now_s - progress.progressed_s, stalled_by)


def _waits_for(
    progress: Progress, limits: Limits, now_s: float, patience_s: float
) -> tuple[Cause, str, float]:
    """For what, in more words, and since when: nothing that goes on for ever may begin anew in between."""
    match progress.cause:
        case Cause.KINESIS:
            return _waits_for_records(progress, limits, now_s, patience_s)
        case Cause.CHILD if progress.refused is not None:
            # It may be the child that tries again and again, but it is not the child that is in the way.
            return Cause.DYNAMODB, progress.refused, progress.refused_s
        case Cause.CHILD if progress.at_work_s is not None:
            return Cause.CHILD, progress.detail, progress.at_work_s
        case Cause.DYNAMODB if progress.refused is not None:
            return Cause.DYNAMODB, progress.refused, progress.refused_s
        case cause:
            return cause, progress.detail, progress.since_s


def _waits_for_records(
    progress: Progress, limits: Limits, now_s: float, patience_s: float
) -> tuple[Cause, str, float]:
    heard, since_s = progress.heard, max(progress.hungry_s, progress.progressed_s)
    if heard.trouble is not None:
        return Cause.KINESIS, heard.trouble, since_s
    if now_s - heard.answered_s > limits.answer_s + patience_s:
        return Cause.KINESIS, "no answer", since_s
    if heard.at_tip:
        return Cause.NOTHING_NEW, "", progress.hungry_s
    return Cause.KINESIS, "no records in the answers, although there are some", since_s


def lag_s(progress: Progress, limits: Limits, now_s: float) -> float | None:
    """The age of the oldest record of a shard that is not done; 0: everything is; None: nobody can know yet.

    Of records that are not read yet it is known how far behind the tip the last answer was. While no answer comes, all
    that has come to the stream since the last one may wait there.
    """
    if progress.oldest_s is not None:
        return max(0.0, now_s - progress.oldest_s)
    if progress.at_end:
        return 0.0
    heard = progress.heard
    since_answer_s = now_s - max(heard.answered_s, progress.began_s)
    is_silent = heard.trouble is not None or since_answer_s > limits.answer_s
    if heard.answered_s == NEVER_S:
        may_wait = is_silent and progress.cause not in {Cause.PARENT, Cause.STREAM}
        return since_answer_s if may_wait else None
    behind_s = (heard.behind_ms or 0) / 1000
    return behind_s + since_answer_s if behind_s or is_silent else 0.0


def child_stuck_s(
    progress: Progress, limits: Limits, now_s: float, *, patience_s: float = 0.0
) -> float | None:
    """For how long a child has worked without showing anything for it, where that is too long; else None.

    What a checkpoint that cannot be written costs is not the child's fault.
    """
    if limits.child_stuck_s is None or progress.at_work_s is None or progress.refused is not None:
        return None
    if progress.cause not in {Cause.CHILD, Cause.STARTING} or progress.timed_out is not None:
        return None
    worked_s = now_s - progress.at_work_s
    return worked_s if worked_s > limits.child_stuck_s + patience_s else None


class Say(Enum):
    """What is to be said about a shard now."""

    NOTHING = auto()
    STALLED = auto()
    STILL_STALLED = auto()
    MOVES_AGAIN = auto()


@dataclass(frozen=True, slots=True)
class Told:
    """What was said about a shard that is stalled.

    Args:
        first_s: monotonic seconds of the first word.
        last_s: of the last.
    """

    first_s: float
    last_s: float


def judge(seen: Seen, told: Told | None, now_s: float) -> tuple[Told | None, Say]:
    """What to remember, and what to say: once for each stall, then now and then, and when it is over."""
    if told is None:
        return (None, Say.NOTHING) if seen.stalled_by is None else (Told(now_s, now_s), Say.STALLED)
    if now_s - seen.idle_s > told.first_s:
        return None, Say.MOVES_AGAIN
    if now_s - told.last_s >= AGAIN_S:
        return Told(told.first_s, now_s), Say.STILL_STALLED
    return told, Say.NOTHING
