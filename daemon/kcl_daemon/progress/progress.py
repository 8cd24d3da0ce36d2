from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from kcl_daemon.errors import ChildTimedOut
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity
from kcl_daemon.progress.flow import FlowSample, LatencyHistogram, ShardFlow, Uncheckpointed
from kcl_daemon.progress.invariants import Invariants
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber

PAUSED_BY_CHILD: Final = "its child asked for a pause"
NEVER_S: Final = float("-inf")
# A shard with constant traffic is always a little behind; a stuck one falls further behind.
_AT_TIP_MS: Final = 2_000
_HEALTHY_AFTER_S: Final = 60.0
_MAX_MOVES: Final = 100
_MANY: Final = 20
_TIMES_LONGER: Final = 6


class WaitReason(Enum):
    STARTING = "starting"
    CHILD = "child"
    RESTART = "restart"
    KINESIS = "kinesis"
    TRIMMED = "trimmed data"
    DYNAMODB = "dynamodb"
    PARENT = "parent"
    STREAM = "stream"
    LEASE = "lease"
    LANE = "lane"
    LETTERS = "dead letters"
    STORE = "landing store"
    PAUSED = "paused"
    LIMITED = "limited"
    RUN_END = "end of run"
    WINDOW = "batch window"
    NOTHING_NEW = "nothing new"


HELD: Final = frozenset({WaitReason.PAUSED, WaitReason.LIMITED})


@dataclass(eq=False, repr=False, slots=True)
class LastFetch:
    """The last answers of Kinesis for one lease, over all its readers.

    `empty_s`: of the last answer without records that was at the tip or nearer to it than before. `behind_ms` None: not
    reported. `lost`: the trouble is that records were lost. `ahead_s`: how far the last records arrived in the future.
    """

    answered_s: float = NEVER_S
    empty_s: float = NEVER_S
    behind_ms: int | None = None
    trouble: str | None = None
    lost: bool = False
    ahead_s: float = 0.0
    _nearest_ms: int | None = None

    @property
    def at_tip(self) -> bool:
        return self.behind_ms is None or self.behind_ms <= _AT_TIP_MS

    def answer(self, *, behind_ms: int | None, empty: bool, now_s: float) -> None:
        self.answered_s = now_s
        self.behind_ms = behind_ms
        self.trouble, self.lost = None, False
        if not empty:
            self._nearest_ms = None
        elif behind_ms is None or self.at_tip or self._nearest_ms is None or behind_ms < self._nearest_ms:
            # An empty answer that leads no nearer does not count: a shard may be stuck behind the tip.
            self.empty_s, self._nearest_ms = now_s, behind_ms


class ChildInfo(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def stderr_tail(self) -> tuple[str, ...]: ...


class ReaderInfo(Protocol):
    @property
    def oldest_s(self) -> float | None:
        """Arrival of the oldest record read but not taken; None: no record."""
        ...

    @property
    def waiting(self) -> tuple[int, int]:
        """Records, and bytes of their data."""
        ...


@dataclass(eq=False, slots=True)
class SetAsideCounts:
    """Of all lanes of a shard; `last` is why the last record was not processed."""

    by_cause: dict[str, int] = field(default_factory=dict[str, int])
    last: str = ""

    def add(self, cause: str, count: int, reason: str) -> None:
        self.by_cause[cause] = self.by_cause.get(cause, 0) + count
        self.last = reason


class LaneWindowInfo(Protocol):
    """What a shard with several children keeps for them; pairs are records and bytes. Lanes are numbered from 0."""

    @property
    def lane_count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def holds_mark(self) -> int | None:
        """Which one holds the checkpoint back."""
        ...

    @property
    def slowest(self) -> int | None: ...

    def first_key_hash(self, lane: int) -> int | None: ...

    def not_done(self, lane: int) -> tuple[int, int]: ...

    @property
    def waiting(self) -> tuple[int, int]:
        """What no child has processed; its bytes about."""
        ...


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """`oldest_s`: of the oldest record not done; None: unknown."""

    count: int
    since_s: float
    last: str
    stderr_tail: tuple[str, ...]
    moved_s: float
    children: int
    oldest_s: float | None


def _no_conversation() -> None: ...


@dataclass(eq=False, repr=False, slots=True)
class LeaseProgress:
    """The progress of one held lease, or of a lane of it.

    Progress is a batch that no earlier child had done, a new checkpoint, an empty answer while the child was
    free, or the end of a wait for parents or stream. A child that restarts again and again for the same
    records makes none.

    Attributes:
        cause: `KINESIS` covers every wait for records; `stall_status` tells whether there are any.
        oldest_undone_s: arrival of the oldest record in the child's batch; None: no records.
        next_try_s: when the next child starts; None: one runs, or none will.
        busy_since_s: since when the child works on its action without progress; None: idle.
        lane: None: the shard.
        lanes: those that were started.
        slow_lane: the one it waits for, while `cause` is `LANE`.
        window: None: the shard has one child.
        set_aside: shared by the lanes of a shard, as `latency`.
        answers: batches done, of `largest` records and in `longest_s` without progress at most.
        window_until_s: when what was gathered for a batch is delivered; None: nothing was.
        held_back_s: since when the same record of a lane holds the checkpoint back; None: none does.
    """

    _monotonic: Callable[[], float]
    answers: int = 0
    at_end: bool = False
    began_s: float = field(init=False)
    busy_since_s: float | None = None
    cause: WaitReason = WaitReason.LEASE
    child: ChildInfo | None = None
    child_since_s: float = field(init=False)
    children: int = 0
    data_bytes: int = 0
    detail: str = ""
    doing: str = ""
    failing_s: float = field(init=False)
    failure: str = ""
    flow: ShardFlow = field(default_factory=ShardFlow)
    held_back_s: float | None = None
    invariants: Invariants = field(init=False)
    lane: int | None = None
    lanes: dict[int, ActiveLease] = field(default_factory=dict[int, "ActiveLease"])
    largest: int = 0
    last_fetch: LastFetch = field(default_factory=LastFetch)
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    longest_s: float = 0.0
    next_try_s: float | None = None
    oldest_undone_s: float | None = None
    records: int = 0
    refused: str | None = None
    refused_s: float = field(init=False)
    set_aside: SetAsideCounts = field(default_factory=SetAsideCounts)
    since_s: float = field(init=False)
    slow_lane: int = 0
    stderr_tail: tuple[str, ...] = ()
    uncheckpointed: Uncheckpointed = field(default_factory=Uncheckpointed)
    window: LaneWindowInfo | None = None
    window_until_s: float | None = None
    without_records_since_s: float = field(init=False)
    _end_conversation: Callable[[], None] = _no_conversation
    _failures: int = 0
    _furthest: ExtendedSequenceNumber | None = None
    _left_at_s: float = NEVER_S
    _left_s: float | None = None
    _moved_s: float = field(init=False)
    _reader: ReaderInfo | None = None
    _records_since_s: float | None = None
    _stored_for: tuple[WaitReason, str, float] | None = None
    _timed_out: ChildTimedOut | None = None
    _with_child: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.invariants = Invariants(self._monotonic)
        self._moved_s = self.since_s = self.began_s = self.child_since_s = self._monotonic()
        self.without_records_since_s = self.failing_s = self.refused_s = self.since_s

    @property
    def progressed_s(self) -> float:
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
        return not self._failures or self._is_healthy

    @property
    def failures(self) -> int:
        return 0 if self._failures and self._is_healthy else self._failures

    @property
    def _is_healthy(self) -> bool:
        if self.child is None or self.cause is not WaitReason.KINESIS or not self.last_fetch.at_tip:
            return False
        return self.last_fetch.empty_s - self.child_since_s >= _HEALTHY_AFTER_S

    def waits(self, cause: WaitReason, detail: str = "") -> None:
        if cause is not self.cause:
            now_s, self._moved_s = self._monotonic(), self.progressed_s
            self._leave(now_s)
            self.cause, self.since_s = cause, now_s
            self.invariants.note("wait", cause.value, detail)
        self.detail = detail

    def _leave(self, now_s: float) -> None:
        """Time in which it had to wait does not count against a child."""
        if self.cause in HELD:
            self.failing_s += now_s - self.since_s

    def starts(self) -> None:
        self.next_try_s = None
        self.waits(WaitReason.STARTING)

    def gave_records(self) -> None:
        self.without_records_since_s = self._monotonic()

    def waits_for_lane(self, number: int, detail: str) -> None:
        self.slow_lane = number
        self.waits(WaitReason.LANE, detail)

    def waits_for_records(self) -> None:
        if self.cause is not WaitReason.KINESIS:
            self.waits(WaitReason.KINESIS)
            self.without_records_since_s = self.since_s

    @property
    def oldest_s(self) -> float | None:
        """Arrival of the oldest record read but not done, also by a failed child; None: all are done."""
        read_s = None if self._reader is None else self._reader.oldest_s
        left_s = self._left_s if read_s is None and self.last_fetch.answered_s <= self._left_at_s else None
        # What a lane has lost with its child is read again, and may be older than what the others have.
        return min(
            (each for each in (self.oldest_undone_s, read_s, left_s) if each is not None), default=None
        )

    def reading(self, reader: ReaderInfo) -> None:
        self._reader, self.at_end = reader, False

    def read_to_end(self) -> None:
        self.at_end = True

    def reading_ended(self, stored: ExtendedSequenceNumber) -> None:
        """`stored` is the checkpoint: what it does not cover comes again."""
        left = (self.oldest_s, self.uncheckpointed.oldest_s(stored))
        self._left_s = min((each for each in left if each is not None), default=None)
        self._left_at_s = self._monotonic()
        self._reader = None
        self.gave_all()

    def takes(self, records: int, data_bytes: int, arrived_s: float | None) -> None:
        """Its child is given these, in parts perhaps, until `gave_all`."""
        self._with_child, self.oldest_undone_s = (records, data_bytes), arrived_s

    def gave_all(self) -> None:
        self._with_child, self.oldest_undone_s = (0, 0), None

    @property
    def waiting(self) -> tuple[int, int]:
        """Records with the child, its lanes or its reader, and the bytes of their data."""
        records, data_bytes = self._with_child
        for each in (self._reader, self.window):
            if each is not None:
                more, more_bytes = each.waiting
                records, data_bytes = records + more, data_bytes + more_bytes
        return records, data_bytes

    def busy_s(self, now_s: float) -> float:
        since_s = self._records_since_s
        return self.flow.busy_s + (0.0 if since_s is None else now_s - since_s)

    def sample(self, now_s: float) -> FlowSample:
        flow = self.flow
        busy_s = {each.progress.lane: each.progress.busy_s(now_s) for each in self.lanes.values()}
        return FlowSample(
            now_s,
            flow.read_records,
            flow.read_bytes,
            self.records,
            self.data_bytes,
            busy_s or {None: self.busy_s(now_s)},
            flow.refused_s,
            flow.memory_s,
        )

    def works(self, doing: str, *, arrived_s: float | None = None) -> None:
        """`arrived_s`: of its first record; None: it has none."""
        self.oldest_undone_s = arrived_s
        if self._failures and self._is_healthy:
            self._forget_failures()
        self._moved_s, now_s = self.progressed_s, self._monotonic()
        self._leave(now_s)
        self.busy_since_s = self.since_s = now_s
        self._records_since_s = None if arrived_s is None else now_s
        self.cause, self.detail, self.doing = WaitReason.CHILD, doing, doing

    def _rests(self, now_s: float) -> None:
        if self._records_since_s is not None:
            self.flow.busy_s += now_s - self._records_since_s
            self._records_since_s = None

    def done(
        self,
        last: ExtendedSequenceNumber | None,
        records: int,
        data_bytes: int,
        *,
        span_s: float = 0.0,
        stored: ExtendedSequenceNumber | None = None,
    ) -> None:
        """`last` None: an empty batch. `span_s`: between its first and last arrival. `stored`: the checkpoint."""
        now_s = self._monotonic()
        self._took(now_s)
        self.answers, self.largest = self.answers + bool(records), max(self.largest, records)
        self.cause, self.since_s, self.detail = WaitReason.KINESIS, now_s, ""
        self._rests(now_s)
        if records and self.oldest_undone_s is not None:
            self.latency.finished(now_s, self.oldest_undone_s, span_s, records)
            if last is not None and stored is not None:
                self.uncheckpointed.delivered(last, self.oldest_undone_s, stored)
        left = self._with_child[0] - records
        if left > 0:  # the batch is given in parts
            self._with_child = left, self._with_child[1] - data_bytes
        else:
            self.gave_all()
        self.records += records
        self.data_bytes += data_bytes
        if last is not None:
            self.without_records_since_s = now_s
            self._reached(last, now_s)
        elif self._empty_counts:
            self._progressed(now_s)

    def passed(self, position: ExtendedSequenceNumber) -> None:
        """No other record up to there is for the child."""
        self._reached(position, self._monotonic())

    def shard_ended(self) -> None:
        self._reached(SHARD_END, self._monotonic())
        self.works("shardEnded")

    def _reached(self, position: ExtendedSequenceNumber, now_s: float) -> None:
        """Progress only if no child of this lease had come so far."""
        if self._furthest is None or position > self._furthest:
            self._furthest = position
            self._progressed(now_s)

    def moved(self) -> None:
        self._progressed(self._monotonic())

    def child_limit_s(self, first_s: float, usual_s: float) -> float:
        """Less for a batch that is like many before it."""
        if self._records_since_s is None or self.answers < _MANY or self._with_child[0] > self.largest:
            return first_s
        return min(first_s, max(usual_s, _TIMES_LONGER * self.longest_s))

    def _took(self, now_s: float) -> None:
        if self._records_since_s is not None and self.busy_since_s is not None:
            self.longest_s = max(self.longest_s, now_s - self.busy_since_s)

    def _progressed(self, now_s: float) -> None:
        self._took(now_s)
        self._moved_s = now_s
        if self._failures:
            self._forget_failures()
        if self.busy_since_s is not None:
            self.busy_since_s = now_s

    def _forget_failures(self) -> None:
        self._failures, self.failure, self.stderr_tail = 0, "", ()

    def checkpoint_started(self) -> None:
        self.waits(WaitReason.DYNAMODB, "a checkpoint is being written")

    def checkpoint_ended(self, *, moved: bool, refused: str | None = None) -> None:
        """`refused` is the error of the write, if any."""
        if refused is not None and self.refused is None:
            self.refused_s = self.since_s
        self.refused = refused
        if moved:
            self.moved()
        self.waits(WaitReason.CHILD, self.doing)

    def storing(self, detail: str) -> None:
        """Dead letters, until `stored`; meanwhile the child is not busy."""
        if self._stored_for is None:
            self._stored_for = self.cause, self.detail, self._monotonic()
        self.waits(WaitReason.LETTERS, detail)

    def stored(self) -> None:
        assert self._stored_for is not None, "it has begun"
        (cause, detail, since_s), self._stored_for = self._stored_for, None
        waited_s = self._monotonic() - since_s
        if self.busy_since_s is not None:
            self.busy_since_s += waited_s
        if self._records_since_s is not None:
            self._records_since_s += waited_s
        self.waits(cause, detail)

    def child_started(self, child: ChildInfo, end_conversation: Callable[[], None]) -> None:
        self.child, self.child_since_s = child, self._monotonic()
        self.children += 1
        self._end_conversation, self._timed_out = end_conversation, None
        self.busy_since_s, self.doing = self.child_since_s, "initialize"

    def child_ended(self) -> None:
        if self._failures and self._is_healthy:
            self._forget_failures()
        self._rests(self._monotonic())
        self.child, self._end_conversation = None, _no_conversation
        self.busy_since_s, self.refused = None, None

    def failed(self, error: str, stderr_tail: tuple[str, ...] = ()) -> None:
        self.waits(WaitReason.RESTART, error)
        if not self._failures:
            self.failing_s = self.since_s
        self._failures += 1
        self.failure, self.stderr_tail = error, stderr_tail

    @property
    def failure_history(self) -> FailureHistory:
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
        """The lease was released for its failures and came back unchanged: keep counting."""
        self._failures, self.failing_s, self._moved_s = past.count, past.since_s, past.moved_s
        self.failure, self.stderr_tail, self.children = past.last, past.stderr_tail, past.children
        self._left_s, self._left_at_s = past.oldest_s, self._monotonic()
        self.waits(WaitReason.RESTART, past.last)

    def pauses(self, seconds: float) -> None:
        self.next_try_s = self._monotonic() + seconds

    def child_stuck(self, seconds: float) -> None:
        self._timed_out = ChildTimedOut(self.doing, seconds)
        self._end_conversation()

    @property
    def timed_out(self) -> ChildTimedOut | None:
        return self._timed_out


class ActiveLease(Protocol):
    """A lost lease may still have a child to end."""

    @property
    def key(self) -> LeaseKey: ...

    @property
    def lease(self) -> Lease: ...

    @property
    def moved_s(self) -> float:
        """Just before the last write that took effect."""
        ...

    @property
    def lost(self) -> str | None: ...

    @property
    def progress(self) -> LeaseProgress: ...


@dataclass(frozen=True, slots=True)
class AssignmentDecision:
    at_s: float
    key: LeaseKey
    reason: str


class ActiveLeases:
    def __init__(self) -> None:
        self._active: dict[LeaseKey, ActiveLease] = {}
        self.latencies: dict[StreamIdentity | None, LatencyHistogram] = {}
        """Of all shards of a stream since the start; None: the only stream."""
        self._moves: deque[AssignmentDecision] = deque(maxlen=_MAX_MOVES)

    def add(self, watched: ActiveLease) -> None:
        self._active[watched.key] = watched
        of_all = self.latencies.setdefault(watched.lease.stream, LatencyHistogram())
        watched.progress.latency.of_all = of_all

    def remove(self, watched: ActiveLease) -> None:
        if self._active.get(watched.key) is watched:
            del self._active[watched.key]

    def decided(self, key: LeaseKey, reason: str, at_s: float) -> None:
        self._moves.append(AssignmentDecision(at_s, key, reason))

    @property
    def shards(self) -> tuple[ActiveLease, ...]:
        return tuple(self._active.values())

    @property
    def moves(self) -> tuple[AssignmentDecision, ...]:
        """The last hundred decisions, newest first."""
        return tuple(reversed(self._moves))
