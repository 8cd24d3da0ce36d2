"""Reports leases that are stalled, and ends children that are stuck.

Each wait has its own limit. A child that keeps restarting never waits long: for it the time since its first failure counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.ports import Clock, Log
from kcl_daemon.progress.flow import FlowMeter, FlowRates, RecentLatency
from kcl_daemon.progress.progress import HELD, NEVER_S, ActiveLease, ActiveLeases, LeaseProgress, WaitReason

REPORT_EVERY_S: Final = 600.0

ADVICE: Final[Mapping[WaitReason, str]] = {
    WaitReason.STARTING: "the child has not answered its first action: read its stderr, and test it with `kcl-daemon "
    "run-child`",
    WaitReason.CHILD: "the record processor has not answered: read its stderr, and find out what it waits for; "
    "childStuckTimeoutMillis replaces such a child",
    WaitReason.RESTART: "the child keeps failing at the same place: read `child_failed` and its stderr",
    WaitReason.KINESIS: "Kinesis does not answer the reads of this shard: check permissions, network and `read_failed`",
    WaitReason.TRIMMED: "records were lost before they were read, and onTrimmed is `stop`: see `position_trimmed`",
    WaitReason.DYNAMODB: "the lease table does not accept the writes of this shard: check its capacity, permissions and the "
    "network",
    WaitReason.PARENT: "records are read in order: check the parent shards, which other workers may read",
    WaitReason.STREAM: "the stream of this lease does not exist: was it deleted? `kcl-daemon leases` shows and removes "
    "leases",
    WaitReason.LEASE: "a lease handoff makes no progress: check the former child and the lease table",
    WaitReason.LANE: "the other lanes cannot go on before this one: its child is slow, fails, or does not checkpoint; see what it "
    "says, and shardConcurrencyWindowBytes",
    WaitReason.LETTERS: "records that are not processed cannot be stored, and the shard waits until they are: check "
    "permissions, network, free space and size limits of deadLetterDestination; see `dead_letter_not_stored`",
    WaitReason.STORE: "the landing store takes no segments, and no record is lost: make room, or correct permissions or network; "
    "it goes on by itself; see `landing_store_waits`",
    WaitReason.PAUSED: "nothing to do, or end the pause with `kcl-daemon resume`",
    WaitReason.LIMITED: "nothing to do, or end the limit with `kcl-daemon limit off`",
    WaitReason.RUN_END: "nothing to do: it is read up to runUntil, and waits for the other shards",
    WaitReason.WINDOW: "nothing to do: it is delivered when batchWindowMillis is over",
    WaitReason.NOTHING_NEW: "nothing to do",
}
FAILING_FROM: Final = 2
TICK_S: Final = 2.0
_LATE_S: Final = 1.0
_LATE_REPORT_EVERY_S: Final = 60.0
# For so long a pause of the whole process is added to every limit: after it every lease looks stalled.
_CATCH_UP_S: Final = 60.0
# Of the failover time; a lease renewed on time is at most half as old.
_RENEWAL_LATE: Final = 0.7
# Of the retention.
_NEAR: Final = 0.75
_TOLD_AGAIN_S: Final = 3600.0
AHEAD_S: Final = 2.0
CLOCK_WRONG_S: Final = 30.0


class ShardState(Enum):
    """Programs may rely on the words."""

    FAILING = "failing"
    """At least two children in a row have failed."""
    STALLED = "stalled"
    STARTING = "starting"
    WAITING = "waiting"
    READING = "reading"
    PAUSED = "paused"
    """By an operator, or because its child asked for it."""
    CAUGHT_UP = "caught_up"
    FINISHED = "finished"


_STATES: Final[Mapping[WaitReason, ShardState]] = {
    WaitReason.STARTING: ShardState.STARTING,
    WaitReason.RESTART: ShardState.STARTING,
    WaitReason.PARENT: ShardState.WAITING,
    WaitReason.STREAM: ShardState.WAITING,
    WaitReason.LEASE: ShardState.WAITING,
    WaitReason.PAUSED: ShardState.PAUSED,
    WaitReason.RUN_END: ShardState.CAUGHT_UP,
    WaitReason.NOTHING_NEW: ShardState.CAUGHT_UP,
}


def state_of(cause: WaitReason, *, failures: int, stalled: bool, finished: bool = False) -> ShardState:
    if failures >= FAILING_FROM:
        return ShardState.FAILING
    if stalled:
        return ShardState.STALLED
    return ShardState.FINISHED if finished else _STATES.get(cause, ShardState.READING)


@dataclass(frozen=True, slots=True)
class StallLimits:
    """How long a shard may make no progress, by wait reason.

    Args:
        restart_s: since the first failure without progress.
        usual_s: instead of `child_s`, see `child_limit_s`.
        answer_s: without an answer for so long a shard is not caught up.
        child_stuck_s: after it a child without progress is replaced; None: never.
        store_trouble: why the landing store holds children back; None: it does not.
    """

    starting_s: float = 120.0
    child_s: float = 300.0
    usual_s: float = 90.0
    restart_s: float = 180.0
    kinesis_s: float = 60.0
    dynamodb_s: float = 60.0
    parent_s: float = 3600.0
    stream_s: float = 120.0
    lease_s: float = 90.0
    letters_s: float = 60.0
    answer_s: float = 35.0
    child_stuck_s: float | None = None
    store_s: float = 60.0
    store_trouble: Callable[[], str | None] = lambda: None


def stall_limit_s(limits: StallLimits, cause: WaitReason) -> float | None:
    return {
        WaitReason.STARTING: limits.starting_s,
        WaitReason.CHILD: limits.child_s,
        WaitReason.RESTART: limits.restart_s,
        WaitReason.KINESIS: limits.kinesis_s,
        WaitReason.TRIMMED: limits.kinesis_s,
        WaitReason.DYNAMODB: limits.dynamodb_s,
        WaitReason.PARENT: limits.parent_s,
        WaitReason.STREAM: limits.stream_s,
        WaitReason.LEASE: limits.lease_s,
        WaitReason.LETTERS: limits.letters_s,
        WaitReason.STORE: limits.store_s,
    }.get(cause)


@dataclass(frozen=True, slots=True)
class StallStatus:
    cause: WaitReason
    detail: str
    waits_s: float
    idle_s: float
    stalled_by: WaitReason | None


def stall_status(
    progress: LeaseProgress, limits: StallLimits, now_s: float, *, timeout_s: float = 0.0
) -> StallStatus:
    """`timeout_s` is added to each limit. A shard that waits for a lane stands still if both do."""
    slow_lane = progress.slow_lane if (storing := _storing_lane(progress)) is None else storing
    if storing is not None or (progress.cause is WaitReason.LANE and slow_lane in progress.lanes):
        lane = stall_status(progress.lanes[slow_lane].progress, limits, now_s, timeout_s=timeout_s)
        held_by = "" if storing is not None else progress.detail
        blocked = (lane.stalled_by or lane.cause).value
        words = f"lane {slow_lane}", held_by, f"which waits for {blocked}", lane.detail
        # That the shard still reads is no progress of the letter that holds its checkpoint back.
        idle_s = lane.idle_s if lane.cause is WaitReason.LETTERS else now_s - progress.progressed_s
        limit_s = lane.stalled_by and stall_limit_s(limits, lane.stalled_by)
        stalled_by = WaitReason.LANE if limit_s is not None and idle_s > limit_s + timeout_s else None
        detail = ", ".join(word for word in words if word)
        return StallStatus(WaitReason.LANE, detail, lane.waits_s, idle_s, stalled_by)
    cause, detail, since_s = _waits_for(progress, limits, now_s, timeout_s)
    if progress.failures and cause is not WaitReason.RESTART:
        detail = f"{detail}; the last child failed: {progress.failure}".removeprefix("; ")
    waits_s, limit_s, stalled_by = now_s - since_s, stall_limit_s(limits, cause), None
    if cause is WaitReason.CHILD:
        limit_s = progress.child_limit_s(limits.child_s, limits.usual_s)
    if limit_s is not None and waits_s > limit_s + timeout_s:
        stalled_by = cause
    elif (
        progress.failures and cause not in HELD and now_s - progress.failing_s > limits.restart_s + timeout_s
    ):
        stalled_by = WaitReason.RESTART
    return StallStatus(cause, detail, waits_s, now_s - progress.progressed_s, stalled_by)


def _storing_lane(progress: LeaseProgress) -> int | None:
    """The lane that stores a dead letter, of a shard that waits for records."""
    if progress.cause is not WaitReason.KINESIS:
        return None
    lanes = progress.lanes.items()
    return next((number for number, lane in lanes if lane.progress.cause is WaitReason.LETTERS), None)


def _waits_for(
    progress: LeaseProgress, limits: StallLimits, now_s: float, timeout_s: float
) -> tuple[WaitReason, str, float]:
    since_s = progress.since_s if progress.busy_since_s is None else progress.busy_since_s
    match progress.cause:
        case WaitReason.KINESIS:
            return _waits_for_records(progress, limits, now_s, timeout_s)
        case WaitReason.CHILD if progress.refused is not None:
            # The child may retry, but it is not the cause.
            return WaitReason.DYNAMODB, progress.refused, progress.refused_s
        case WaitReason.CHILD | WaitReason.STARTING if (trouble := limits.store_trouble()) is not None:
            return WaitReason.STORE, trouble, since_s
        case WaitReason.CHILD:
            return WaitReason.CHILD, progress.detail, since_s
        case WaitReason.DYNAMODB if progress.refused is not None:
            return WaitReason.DYNAMODB, progress.refused, progress.refused_s
        case cause:
            return cause, progress.detail, progress.since_s


def _waits_for_records(
    progress: LeaseProgress, limits: StallLimits, now_s: float, timeout_s: float
) -> tuple[WaitReason, str, float]:
    last_fetch, since_s = progress.last_fetch, max(progress.without_records_since_s, progress.progressed_s)
    if last_fetch.trouble is not None:
        return WaitReason.TRIMMED if last_fetch.lost else WaitReason.KINESIS, last_fetch.trouble, since_s
    if now_s - last_fetch.answered_s > limits.answer_s + timeout_s:
        return WaitReason.KINESIS, "no answer", since_s
    if progress.window_until_s is not None:
        left_s = max(0.0, progress.window_until_s - now_s)
        return WaitReason.WINDOW, f"{left_s:.0f} s are left", progress.without_records_since_s
    if last_fetch.at_tip:
        return WaitReason.NOTHING_NEW, "", progress.without_records_since_s
    return WaitReason.KINESIS, "no records in the answers, although there are some", since_s


def lag_s(progress: LeaseProgress, limits: StallLimits, now_s: float) -> float | None:
    """The age of the oldest record not done; None: unknown yet.

    Of records not read yet it is what the last answer said, and grows while no answer comes.
    """
    if progress.oldest_s is not None:
        return max(0.0, now_s - progress.oldest_s)
    if progress.at_end:
        return 0.0
    last_fetch = progress.last_fetch
    since_answer_s = now_s - max(last_fetch.answered_s, progress.began_s)
    is_silent = last_fetch.trouble is not None or since_answer_s > limits.answer_s
    if last_fetch.answered_s == NEVER_S:
        may_wait = is_silent and progress.cause not in {WaitReason.PARENT, WaitReason.STREAM}
        return since_answer_s if may_wait else None
    behind_s = (last_fetch.behind_ms or 0) / 1000
    return behind_s + since_answer_s if behind_s or is_silent else 0.0


def uncheckpointed_s(watched: ActiveLease, undone_s: float | None, now_s: float) -> float | None:
    """The age of the oldest record that the stored checkpoint does not cover, `undone_s` at least; None: unknown yet."""
    oldest_s = watched.progress.uncheckpointed.oldest_s(watched.lease.checkpoint)
    return undone_s if oldest_s is None else max(undone_s or 0.0, now_s - oldest_s)


def child_stuck_s(
    progress: LeaseProgress, limits: StallLimits, now_s: float, *, timeout_s: float = 0.0
) -> float | None:
    """How long a child has worked without progress, if too long; a refused checkpoint is not its fault."""
    if limits.child_stuck_s is None or progress.busy_since_s is None or progress.refused is not None:
        return None
    if progress.cause not in {WaitReason.CHILD, WaitReason.STARTING} or progress.timed_out is not None:
        return None
    worked_s = now_s - progress.busy_since_s
    return worked_s if worked_s > limits.child_stuck_s + timeout_s else None


class StallReport(Enum):
    NOTHING = auto()
    STALLED = auto()
    STILL_STALLED = auto()
    RESUMED = auto()


@dataclass(frozen=True, slots=True)
class LastReport:
    first_s: float
    last_s: float


def next_report(
    status: StallStatus, last_report: LastReport | None, now_s: float
) -> tuple[LastReport | None, StallReport]:
    if last_report is None and status.stalled_by is None:
        return None, StallReport.NOTHING
    if last_report is None:
        return LastReport(now_s, now_s), StallReport.STALLED
    if now_s - status.idle_s > last_report.first_s:
        return None, StallReport.RESUMED
    if now_s - last_report.last_s >= REPORT_EVERY_S:
        return LastReport(last_report.first_s, now_s), StallReport.STILL_STALLED
    return last_report, StallReport.NOTHING


@dataclass(slots=True)
class _Measured:
    progress: LeaseProgress
    meter: FlowMeter
    latency: RecentLatency
    rates: FlowRates


class Watchdog:
    def __init__(
        self,
        *,
        active_leases: ActiveLeases,
        limits: StallLimits,
        failover_s: float,
        clock: Clock,
        log: Log,
        retention_s: Callable[[Lease], float | None] = lambda _lease: None,
        clock_ahead_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`retention_s`: of the stream of a lease."""
        self._retention_s = retention_s
        self.clock_ahead_s = clock_ahead_s
        self._told_s: dict[tuple[str, LeaseKey | None], float] = {}
        self.active_leases = active_leases
        self.limits = limits
        self.loop_lag_s = 0.0
        self._renewal_late_s = _RENEWAL_LATE * failover_s
        self._clock = clock
        self._log = log
        self._reports: dict[tuple[LeaseKey, int | None], tuple[ActiveLease, LastReport]] = {}
        self._measured: dict[LeaseKey, _Measured] = {}
        self._lags: deque[tuple[float, float]] = deque()
        self._renewals_late = False

    async def run(self) -> None:
        while True:
            due_s = self._clock.monotonic() + TICK_S
            await self._clock.sleep(TICK_S)
            self.tick(lag_s=max(0.0, self._clock.monotonic() - due_s))

    def tick(self, *, lag_s: float) -> None:
        """`lag_s` is how late the tick is."""
        now_s = self._clock.monotonic()
        self._record_loop_lag(lag_s, now_s)
        timeout_s = self._timeout_s(now_s)
        shards = self.active_leases.shards
        self._drop_released(shards)
        for watched in shards:
            self._measure(watched, now_s)
            self._check(watched, now_s, timeout_s)
            if watched.progress.cause in HELD:
                self._check_retention(watched, now_s)
            for lane in watched.progress.lanes.values():
                # To have no records, or to be at the end before the others, is normal for a lane: it ends a stall.
                rests = lane.progress.cause in {WaitReason.KINESIS, WaitReason.LEASE}
                if not rests or self.is_stalled(lane):
                    self._check(lane, now_s, timeout_s)
        self._check_renewals(shards, now_s)
        self._check_clock(now_s)

    def is_stalled(self, watched: ActiveLease) -> bool:
        return self._reports.get((watched.key, watched.progress.lane), (None,))[0] is watched

    def stalled_by(self, watched: ActiveLease, now_s: float) -> WaitReason | None:
        """What has kept it from making progress for longer than it may; None: it is not stalled."""
        if not self.is_stalled(watched):
            return None
        status = stall_status(watched.progress, self.limits, now_s)
        return status.stalled_by or status.cause

    def rates(self, key: LeaseKey) -> FlowRates:
        """Zeros until something was measured."""
        return found.rates if (found := self._measured.get(key)) else FlowRates()

    def p50_and_p99(self, key: LeaseKey) -> tuple[float | None, float | None]:
        """As `RecentLatency` has them; None: nothing was finished."""
        found = self._measured.get(key)
        return (None, None) if found is None else found.latency.p50_and_p99(self._clock.monotonic())

    def _drop_released(self, shards: tuple[ActiveLease, ...]) -> None:
        up = {watched.key for watched in shards}
        self._measured = {key: measured for key, measured in self._measured.items() if key in up}
        self._told_s = {told: at_s for told, at_s in self._told_s.items() if told[1] is None or told[1] in up}
        self._reports = {key: report for key, report in self._reports.items() if key[0] in up}

    def _check(self, watched: ActiveLease, now_s: float, timeout_s: float) -> None:
        key = watched.key, watched.progress.lane
        last_report = self._reports[key][1] if self.is_stalled(watched) else None
        status = stall_status(watched.progress, self.limits, now_s, timeout_s=timeout_s)
        last_report, report = next_report(status, last_report, now_s)
        if last_report is None:
            self._reports.pop(key, None)
        else:
            self._reports[key] = (watched, last_report)
        if report is not StallReport.NOTHING:
            self._log_report(report, watched, status)
        worked_s = child_stuck_s(watched.progress, self.limits, now_s, timeout_s=timeout_s)
        if worked_s is not None:
            self._log_of(watched).warning(
                "child_stuck",
                action=watched.progress.doing,
                worked_s=round(worked_s, 1),
                advice="it is stopped and replaced because of childStuckTimeoutMillis; the new child begins at "
                "the checkpoint",
            )
            watched.progress.child_stuck(worked_s)

    def _check_retention(self, watched: ActiveLease, now_s: float) -> None:
        retention_s, old_s = self._retention_s(watched.lease), lag_s(watched.progress, self.limits, now_s)
        if retention_s is None or old_s is None or old_s < _NEAR * retention_s:
            return
        if not self._is_due("held_near_retention", watched.key, now_s):
            return
        self._log_of(watched).warning(
            "held_near_retention",
            cause=watched.progress.cause.value,
            detail=watched.progress.detail,
            oldest_s=round(old_s),
            retention_s=round(retention_s),
            advice="records are lost when they are older than the retention: end the pause or limit with `kcl-daemon resume` or "
            "`kcl-daemon limit off`, or raise the retention of the stream",
        )

    def _log_report(self, report: StallReport, watched: ActiveLease, status: StallStatus) -> None:
        log = self._log_of(watched)
        if report is StallReport.RESUMED:
            log.info("shard_moves_again", cause=status.cause.value)
            return
        # The first report may be about a passing problem; a wait for a parent is no fault of this shard.
        cause = status.stalled_by or status.cause
        is_lasting = report is StallReport.STILL_STALLED and cause is not WaitReason.PARENT
        (log.error if is_lasting else log.warning)(
            "shard_stalled",
            cause=cause.value,
            detail=status.detail,
            waited_s=round(status.waits_s, 1),
            no_progress_s=round(status.idle_s, 1),
            advice=ADVICE[cause],
        )

    def _log_of(self, watched: ActiveLease) -> Log:
        lease = watched.lease
        named = {} if lease.stream is None else {"stream": str(lease.stream)}
        child, lane = watched.progress.child, watched.progress.lane
        return self._log.bind(
            **named,
            shard_id=lease.shard_id,
            **({} if lane is None else {"lane": lane}),
            **({} if child is None else {"pid": child.pid}),
        )

    def _measure(self, watched: ActiveLease, now_s: float) -> None:
        progress = watched.progress
        latency, found = progress.latency, self._measured.get(watched.key)
        if found is None or found.progress is not progress:
            found = _Measured(progress, FlowMeter(), RecentLatency(latency, now_s), FlowRates())
            self._measured[watched.key] = found
        if found.meter.is_due(now_s):
            found.meter.add(progress.sample(now_s), finished_s=latency.finished_s, newest_s=latency.newest_s)
            found.rates = found.meter.rates(waiting=bool(lag_s(progress, self.limits, now_s)))
            found.latency.rotate(now_s)

    def _check_clock(self, now_s: float) -> None:
        ahead_s = self.clock_ahead_s() or 0.0
        if abs(ahead_s) > CLOCK_WRONG_S and self._is_due("clock_is_wrong", None, now_s):
            self._log.warning(
                "clock_is_wrong",
                ahead_s=round(ahead_s, 1),
                advice="by the answers of AWS, the date of this host is wrong: set its clock (NTP)",
            )

    def _is_due(self, event: str, key: LeaseKey | None, now_s: float, every_s: float = _TOLD_AGAIN_S) -> bool:
        if now_s - self._told_s.get((event, key), NEVER_S) < every_s:
            return False
        self._told_s[event, key] = now_s
        return True

    def _record_loop_lag(self, lag_s: float, now_s: float) -> None:
        self.loop_lag_s = lag_s
        if lag_s <= _LATE_S:
            return
        self._lags.append((now_s, lag_s))
        if self._is_due("event_loop_late", None, now_s, _LATE_REPORT_EVERY_S):
            self._log.warning(
                "event_loop_late",
                late_s=round(lag_s, 1),
                advice="the daemon did not run for this long: was it paused, or is there too little CPU? "
                "Leases that are not renewed in time are lost",
            )

    def _timeout_s(self, now_s: float) -> float:
        while self._lags and now_s - self._lags[0][0] >= _CATCH_UP_S:
            self._lags.popleft()
        return sum(lag_s for _, lag_s in self._lags)

    def _check_renewals(self, shards: tuple[ActiveLease, ...], now_s: float) -> None:
        ages_s = (now_s - watched.moved_s for watched in shards if watched.lost is None)
        late = [age_s for age_s in ages_s if age_s > self._renewal_late_s]
        if bool(late) == self._renewals_late:
            return
        self._renewals_late = bool(late)
        if late:
            self._log.warning(
                "leases_not_renewed",
                count=len(late),
                oldest_s=round(max(late), 1),
                advice="they are lost if this continues: check the capacity of the lease table and the network",
            )
        else:
            self._log.info("leases_renewed_again")
