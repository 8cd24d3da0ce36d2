"""How far one held lease is and what it waits for: the record that its consumer, its readers and checkpoints write into.

Owns the facts, and what counts as progress. Writing is a few assignments, so that it may stand in the record path;
judging is for `rules`, telling for `watchdog`. Knows no port but a function that tells the time.

What a shard may wait for. Pure values, known to those who wait and to those who tell of it.

What Kinesis last said about one shard.

Written by whatever reads the shard, once for each answer and with plain assignments; looked at by those who tell how
the shard is. Owns no rule.

The board: the leases that this worker works on now, and what its leader has decided lately.

Owns who is on it. Consumers put their lease up and take it down; the watchdog, the metrics and the page look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from kcl_daemon.errors import ChildTimedOut
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber


class WaitReason(Enum):
    """What a shard that makes no progress waits for; every one of them has its own limit and its own advice."""

    STARTING = "starting"
    CHILD = "child"
    RESTART = "restart"
    KINESIS = "kinesis"
    DYNAMODB = "dynamodb"
    PARENT = "parent"
    STREAM = "stream"
    LEASE = "lease"
    NOTHING_NEW = "nothing new"


NEVER_S: Final = float("-inf")
# A shard that is written to all the time is always a little behind. One that is stuck falls further behind.
_AT_TIP_MS: Final = 2_000


class LastFetch:
    """The last answers, over all readers that one lease has had.

    Attributes:
        answered_s: monotonic seconds of the last answer.
        empty_s: of the last answer that said that there is nothing new, or that led nearer to the tip without a record.
        behind_ms: behind the tip, as the last answer told; None: none has told it yet.
        trouble: why nothing comes; None where all is well.
    """

    __slots__ = ("_nearest_ms", "answered_s", "behind_ms", "empty_s", "trouble")

    def __init__(self) -> None:
        self.answered_s = NEVER_S
        self.empty_s = NEVER_S
        self.behind_ms: int | None = None
        self.trouble: str | None = None
        self._nearest_ms: int | None = None

    @property
    def at_tip(self) -> bool:
        """Whether there was nothing more to read at the last answer, or next to nothing."""
        return self.behind_ms is None or self.behind_ms <= _AT_TIP_MS

    def answer(self, *, behind_ms: int | None, empty: bool, now_s: float) -> None:
        """An answer came.

        Args:
            behind_ms: what it told.
            empty: whether it held nothing to deliver.
            now_s: monotonic seconds.
        """
        self.answered_s = now_s
        self.behind_ms = behind_ms
        self.trouble = None
        if not empty:
            self._nearest_ms = None
        elif behind_ms is None or self.at_tip or self._nearest_ms is None or behind_ms < self._nearest_ms:
            # Empty answers that lead nowhere are none: a shard may be stuck behind the tip for ever.
            self.empty_s, self._nearest_ms = now_s, behind_ms


class ChildInfo(Protocol):
    """A child, as far as it is shown."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its stderr, oldest first."""
        ...


class ReaderInfo(Protocol):
    """What reads the shard, as far as it is shown."""

    @property
    def oldest_s(self) -> float | None:
        """When the oldest record that was read and not taken came to the stream, in monotonic seconds; None: there is none."""
        ...


# A child that has lived for so long at the tip has not died of what others died of.
_HEALTHY_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """The failures of a lease's children, for whoever works on it next.

    Args:
        count: in a row, without progress.
        since_s: monotonic seconds of the first of them.
        last: how the last one failed.
        stderr_tail: the last lines of that child.
        moved_s: monotonic seconds of the last progress.
        children: that were started.
        oldest_s: when the oldest record that is not done came to the stream; None: not known.
    """

    count: int
    since_s: float
    last: str
    stderr_tail: tuple[str, ...]
    moved_s: float
    children: int
    oldest_s: float | None


def _no_conversation() -> None:
    """The default of what ends the conversation with the child."""


class LeaseProgress:
    """One held lease at work.

    Progress is a batch done that no child had done before, a checkpoint that moved, an answer with nothing new while
    the child was free, or a wait for parents or stream that is over. A child that is started again and again for the
    same records makes none.

    Attributes:
        cause: what it waits for. `KINESIS` stands for every wait for records; `rules.discover` tells whether there are any.
        detail: more words on it.
        since_s: monotonic seconds since when.
        hungry_s: since when it waits for records and has been given none.
        in_hand_s: when the oldest record of the child's batch came to the stream; None: it has no records.
        at_end: whether the shard has ended and everything in it is done.
        began_s: when the lease was taken.
        heard: what the readers write into.
        records: handed over and done.
        data_bytes: of those.
        failing_s: when the first of these failed.
        failure: how the last of these failed; empty: none did.
        stderr_tail: the last lines of its stderr, the newest at the end.
        next_try_s: when the next child is started; None: one runs, or none will.
        refused: why the last checkpoint could not be written; None where it could.
        refused_s: since when none could.
        child: the child process, None while there is none.
        child_since_s: when it was started.
        children: how many were started.
        at_work_s: since when the child has its last action, or last showed something for it; None: it had none.
        doing: that action.
    """

    __slots__ = (
        "_end_conversation",
        "_failures",
        "_furthest",
        "_left_at_s",
        "_left_s",
        "_monotonic",
        "_moved_s",
        "_reader",
        "_timed_out",
        "at_end",
        "began_s",
        "busy_since_s",
        "cause",
        "child",
        "child_since_s",
        "children",
        "data_bytes",
        "detail",
        "doing",
        "failing_s",
        "failure",
        "last_fetch",
        "next_try_s",
        "oldest_undone_s",
        "records",
        "refused",
        "refused_s",
        "since_s",
        "stderr_tail",
        "without_records_since_s",
    )

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._moved_s = self.since_s = self.without_records_since_s = self.failing_s = self.refused_s = (
            monotonic()
        )
        self._reader: ReaderInfo | None = None
        self.began_s = self.since_s
        self.oldest_undone_s: float | None = None
        self.at_end = False
        self._left_s: float | None = None
        self._left_at_s = NEVER_S
        self._furthest: ExtendedSequenceNumber | None = None
        self._end_conversation: Callable[[], None] = _no_conversation
        self._timed_out: ChildTimedOut | None = None
        self.cause = WaitReason.LEASE
        self.detail = ""
        self.last_fetch = LastFetch()
        self.records = 0
        self.data_bytes = 0
        self._failures = 0
        self.failure = ""
        self.next_try_s: float | None = None
        self.stderr_tail: tuple[str, ...] = ()
        self.refused: str | None = None
        self.child: ChildInfo | None = None
        self.child_since_s = self.since_s
        self.children = 0
        self.busy_since_s: float | None = None
        self.doing = ""

    @property
    def progressed_s(self) -> float:
        """Monotonic seconds of the last progress, or of the beginning."""
        last_fetch = self.last_fetch
        if (
            self.cause is not WaitReason.KINESIS
            or last_fetch.empty_s <= self._moved_s
            or last_fetch.empty_s < self.since_s
        ):
            return self._moved_s
        return last_fetch.empty_s if self._empty_counts else self._moved_s

    @property
    def _empty_counts(self) -> bool:
        """Whether nothing new is progress.

        Where one child fails after the other, empty answers on the way to that are none.
        """
        return not self._failures or self._is_healthy

    @property
    def failures(self) -> int:
        """Children that failed since the last progress."""
        return 0 if self._failures and self._is_healthy else self._failures

    @property
    def _is_healthy(self) -> bool:
        """Whether the child has lived for a while where there is nothing to do: what failed before it is history."""
        if self.child is None or self.cause is not WaitReason.KINESIS or not self.last_fetch.at_tip:
            return False
        return self.last_fetch.empty_s - self.child_since_s >= _HEALTHY_AFTER_S

    def waits(self, cause: WaitReason, detail: str = "") -> None:
        """From now on it waits for this; said again with other words, it still waits since the first time."""
        if cause is not self.cause:
            now_s, self._moved_s = self._monotonic(), self.progressed_s
            self.cause, self.since_s = cause, now_s
        self.detail = detail

    def starts(self) -> None:
        """A child is being started."""
        self.next_try_s = None
        self.waits(WaitReason.STARTING)

    def waits_for_records(self) -> None:
        """The child is free."""
        if self.cause is not WaitReason.KINESIS:
            self.waits(WaitReason.KINESIS)
            self.without_records_since_s = self.since_s

    @property
    def oldest_s(self) -> float | None:
        """When the oldest record that was read and is not done came to the stream, in monotonic seconds; None: all are done.

        A record is done when the child has answered its batch. What a child leaves when it fails is not done until
        another one has been given it.
        """
        if self.oldest_undone_s is not None:
            return self.oldest_undone_s
        read_s = None if self._reader is None else self._reader.oldest_s
        if read_s is None and self.last_fetch.answered_s <= self._left_at_s:
            return self._left_s
        return read_s

    def reading(self, reader: ReaderInfo) -> None:
        """This reads the shard from now on, from the checkpoint."""
        self._reader, self.at_end = reader, False

    def read_to_end(self) -> None:
        """The shard has ended, and everything in it is done."""
        self.at_end = True

    def reading_ended(self) -> None:
        """Nobody reads any more; what was read and is not done is left for the next."""
        self._left_s, self._left_at_s = self.oldest_s, self._monotonic()
        self._reader, self.oldest_undone_s = None, None

    def works(self, doing: str, *, arrived_s: float | None = None) -> None:
        """The child has been given an action.

        Args:
            doing: which.
            arrived_s: when the oldest record that came with it came to the stream; None: there is none.
        """
        self.oldest_undone_s = arrived_s
        if self._failures and self._is_healthy:
            self._forget_failures()
        self._moved_s = self.progressed_s
        self.busy_since_s = self.since_s = self._monotonic()
        self.cause, self.detail, self.doing = WaitReason.CHILD, doing, doing

    def done(self, last: ExtendedSequenceNumber | None, records: int, data_bytes: int) -> None:
        """The child has done a batch that ends at this position; None: an empty one. It waits for records now."""
        now_s = self._monotonic()
        self.cause, self.since_s, self.detail = WaitReason.KINESIS, now_s, ""
        self.oldest_undone_s = None
        self.records += records
        self.data_bytes += data_bytes
        if last is not None:
            self.without_records_since_s = now_s
            self._reached(last, now_s)
        elif self._empty_counts:
            self._progressed(now_s)

    def shard_ended(self) -> None:
        """Everything was done, and the leases of child shards are there; now the child is told."""
        self._reached(SHARD_END, self._monotonic())
        self.works("shardEnded")

    def _reached(self, position: ExtendedSequenceNumber, now_s: float) -> None:
        """Progress, where no child of this lease had come so far."""
        if self._furthest is None or position > self._furthest:
            self._furthest = position
            self._progressed(now_s)

    def moved(self) -> None:
        """A step was made."""
        self._progressed(self._monotonic())

    def _progressed(self, now_s: float) -> None:
        self._moved_s = now_s
        if self._failures:
            self._forget_failures()
        if self.busy_since_s is not None:
            self.busy_since_s = now_s

    def _forget_failures(self) -> None:
        self._failures, self.failure, self.stderr_tail = 0, "", ()

    def checkpoint_started(self) -> None:
        """The child waits until its checkpoint is written."""
        self.waits(WaitReason.DYNAMODB, "a checkpoint is being written")

    def checkpoint_ended(self, *, moved: bool, refused: str | None = None) -> None:
        """It was, or could not be.

        Args:
            moved: whether it is a new one.
            refused: what DynamoDB, or the way there, made of it; None: there was nothing wrong with that.
        """
        if refused is not None and self.refused is None:
            self.refused_s = self.since_s
        self.refused = refused
        if moved:
            self.moved()
        self.waits(WaitReason.CHILD, self.doing)

    def child_started(self, child: ChildInfo, end_conversation: Callable[[], None]) -> None:
        """There is a child; it has not answered anything yet.

        Args:
            child: the child.
            end_conversation: ends what is under way with it; called by `child_stuck`.
        """
        self.child, self.child_since_s = child, self._monotonic()
        self.children += 1
        self._end_conversation, self._timed_out = end_conversation, None
        self.busy_since_s, self.doing = self.child_since_s, "initialize"

    def child_ended(self) -> None:
        """There is no child any more."""
        if self._failures and self._is_healthy:
            self._forget_failures()
        self.child, self._end_conversation = None, _no_conversation
        self.busy_since_s, self.refused = None, None

    def failed(self, error: str, stderr_tail: tuple[str, ...] = ()) -> None:
        """The child failed; the next one is started after a pause.

        Args:
            error: how.
            stderr_tail: its last lines, the newest at the end.
        """
        self.waits(WaitReason.RESTART, error)
        if not self._failures:
            self.failing_s = self.since_s
        self._failures += 1
        self.failure, self.stderr_tail = error, stderr_tail

    @property
    def failure_history(self) -> FailureHistory:
        """What there is to know of them when the lease is given up for them."""
        return FailureHistory(
            self.failures,
            self.failing_s,
            self.failure,
            self.stderr_tail,
            self._moved_s,
            self.children,
            self.oldest_s,
        )

    def continue_after(self, past: FailureHistory) -> None:
        """The lease was given up for its failures, and has come back as it was: nothing is better yet."""
        self._failures, self.failing_s, self._moved_s = past.count, past.since_s, past.moved_s
        self.failure, self.stderr_tail, self.children = past.last, past.stderr_tail, past.children
        self._left_s, self._left_at_s = past.oldest_s, self._monotonic()
        self.waits(WaitReason.RESTART, past.last)

    def pauses(self, seconds: float) -> None:
        """So long until the next child is started."""
        self.next_try_s = self._monotonic() + seconds

    def child_stuck(self, seconds: float) -> None:
        """Have the child ended and replaced, because it has worked for so long without showing anything for it."""
        self._timed_out = ChildTimedOut(self.doing, seconds)
        self._end_conversation()

    @property
    def timed_out(self) -> ChildTimedOut | None:
        """Why the conversation was ended, if `child_stuck` did it."""
        return self._timed_out


_MAX_MOVES: Final = 100


class ActiveLease(Protocol):
    """A held lease, as far as it is watched; one that was lost may still have a child to end."""

    @property
    def key(self) -> LeaseKey:
        """Its lease key."""
        ...

    @property
    def lease(self) -> Lease:
        """As last known to be stored."""
        ...

    @property
    def moved_s(self) -> float:
        """Monotonic seconds just before the last write that took effect."""
        ...

    @property
    def lost(self) -> str | None:
        """Why it is not held any more, None while it is."""
        ...

    @property
    def progress(self) -> LeaseProgress:
        """How far it is."""
        ...


@dataclass(frozen=True, slots=True)
class AssignmentDecision:
    """One lease given to somebody by this worker as leader.

    Args:
        at_s: monotonic seconds.
        key: of the lease.
        reason: in words.
    """

    at_s: float
    key: LeaseKey
    reason: str


class ActiveLeases:
    """What this worker does now. Everything happens on the loop."""

    def __init__(self) -> None:
        self._active: dict[LeaseKey, ActiveLease] = {}
        self._moves: deque[AssignmentDecision] = deque(maxlen=_MAX_MOVES)

    def add(self, watched: ActiveLease) -> None:
        """A consumer begins; one of the same lease that is about to end is not shown any more."""
        self._active[watched.key] = watched

    def remove(self, watched: ActiveLease) -> None:
        """Its consumer has ended."""
        if self._active.get(watched.key) is watched:
            del self._active[watched.key]

    def decided(self, key: LeaseKey, reason: str, at_s: float) -> None:
        """As leader we gave a lease to somebody."""
        self._moves.append(AssignmentDecision(at_s, key, reason))

    @property
    def shards(self) -> tuple[ActiveLease, ...]:
        """What is up now."""
        return tuple(self._active.values())

    @property
    def moves(self) -> tuple[AssignmentDecision, ...]:
        """The last hundred decisions, newest first."""
        return tuple(reversed(self._moves))
