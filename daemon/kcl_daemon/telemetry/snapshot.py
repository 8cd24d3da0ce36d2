"""What a worker and its Spark engine or lander do at one moment, for the page, the metrics and the commands.

Durations are seconds before the snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio

from kcl_daemon import __version__
from kcl_daemon.capacity.figures import Capacity
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.hold_words import hold_text, not_held
from kcl_daemon.leases.holds import Hold
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.worker_row import CPU, WorkerRow
from kcl_daemon.ports import Clock, Log
from kcl_daemon.progress.latency import LatencyHistogram
from kcl_daemon.progress.progress import ActiveLease, ActiveLeases, LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import (
    AHEAD_S,
    FAILING_FROM,
    ShardState,
    lag_s,
    stall_status,
    state_of,
    uncheckpointed_s,
)
from kcl_daemon.telemetry.helper_views import HelperSource, LandingView, SparkView, no_helper
from kcl_daemon.text import masked, on_one_line
from kcl_daemon.worker import Worker


@dataclass(frozen=True, slots=True)
class ChildView:
    """`restarts` counts earlier children since the lease was taken; `stderr` ends with the newest line."""

    pid: int
    rss_bytes: int | None
    running_s: float
    restarts: int
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneView:
    """One of several children of a shard; `records` and `kept_bytes` are those that it has not checkpointed.

    The other fields are those of `ShardView`.
    """

    number: int
    records: int
    kept_bytes: int
    cause: WaitReason
    waits_s: float
    detail: str
    stalled: bool
    child: ChildView | None
    failures: int
    restarts: int
    last_error: str
    stderr_tail: tuple[str, ...]
    next_try_s: float | None


@dataclass(frozen=True, slots=True)
class LanesView:
    """The children of a shard with `shardConcurrency` above 1.

    Args:
        lanes: those that were started, of `count`.
        slowest: the lane that holds the checkpoint back; None: none does.
        key_hash: of its first record that is not done, 8 hex digits; None: its data is not kept.
        held_s: how long this record has held it back.
        window_bytes: kept for all lanes.
    """

    count: int
    slowest: int | None
    key_hash: str | None
    held_s: float | None
    window_bytes: int
    lanes: tuple[LaneView, ...]

    @property
    def of_slowest(self) -> LaneView | None:
        return next((each for each in self.lanes if each.number == self.slowest), None)


@dataclass(frozen=True, slots=True)
class ShardView:
    """One lease that this worker holds; `stream` and `stream_id` are None in single-stream mode.

    Args:
        idle_s: since the last batch, checkpoint or empty answer.
        behind_ms: of the last Kinesis answer, whatever became of its records.
        records: processed since the lease was taken, as `data_bytes`; `read_records` and `read_bytes` were read for it.
        failures: failed children since the last progress.
        stream_id: `account:name:creationEpoch`.
        state: None from an older daemon.
        lag_s: age of the oldest unfinished record; 0: none; None: unknown.
        uncheckpointed_s: age of the oldest record that the stored checkpoint does not cover, as `lag_s`.
        p50_s: from arrival to finished, in the last two and a half to five minutes, as `p99_s`; None: nothing was finished.
        speed: seconds of the stream finished in a second; None: unknown.
        waiting_records: read and not finished, as `waiting_bytes`.
        ahead_s: how far in the future the last records arrived, by this host's clock; ages are too small by as much.
        restarts: as in `ChildView`.
        last_error: of the last failed child, as `stderr_tail`.
        next_try_s: until the next child starts; None: one runs, or none will.
        lanes: None: the shard has one child. Else `child` is None, `restarts` counts those of all lanes, and what
            is said of waits and failures may be that of one lane.
        set_aside: records that were not processed since the lease was taken, by cause; `last_set_aside` says why.
    """

    key: str
    shard_id: str
    stream: str | None
    parents: tuple[str, ...]
    cause: WaitReason
    waits_s: float
    detail: str
    idle_s: float
    stalled: bool
    behind_ms: int | None
    checkpoint: str
    records: int
    data_bytes: int
    bytes_per_s: float
    child: ChildView | None
    failures: int = 0
    stream_id: str | None = None
    state: ShardState | None = None
    lag_s: float | None = None
    restarts: int = 0
    last_error: str = ""
    stderr_tail: tuple[str, ...] = ()
    next_try_s: float | None = None
    lanes: LanesView | None = None
    set_aside: dict[str, int] = field(default_factory=dict[str, int])
    last_set_aside: str = ""
    uncheckpointed_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    speed: float | None = None
    records_per_s: float = 0.0
    in_records_per_s: float = 0.0
    in_bytes_per_s: float = 0.0
    read_records: int = 0
    read_bytes: int = 0
    waiting_records: int = 0
    waiting_bytes: int = 0
    ahead_s: float = 0.0

    @property
    def children(self) -> tuple[ChildView, ...]:
        of_lanes = () if self.lanes is None else self.lanes.lanes
        return tuple(each for each in (self.child, *(lane.child for lane in of_lanes)) if each is not None)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease of the application, as of the last table read.

    `children` are known once the shard has ended.
    """

    key: str
    shard_id: str
    stream: str | None
    owner: str | None
    checkpoint: str
    parents: tuple[str, ...]
    children: tuple[str, ...]
    next_owner: str | None
    stream_id: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """`leases` counts unfinished leases that it reads; `reported_s` is the time since the report changed."""

    worker_id: str
    leases: int
    cpu_percent: float | None
    reported_s: float | None
    cpu_failed: bool = False


@dataclass(frozen=True, slots=True)
class MoveView:
    """A decision of the leader, such as `shardId-7: w-3 -> w-9, cpu 81 % -> 44 %`."""

    ago_s: float
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class HoldView:
    """A pause, or a limit (`per_second` over all its shards); `text` has it all in words."""

    text: str
    is_pause: bool
    stream_id: str | None
    lease_key: str | None
    by: str
    reason: str
    since_ms: int
    until_ms: int | None
    unit: str | None
    per_second: float


@dataclass(frozen=True, slots=True)
class LatencyView:
    """From arrival to finished; `shard_id` None: of all shards of a stream since the start. It may still change."""

    shard_id: str | None
    stream_id: str | None
    histogram: LatencyHistogram


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker at one moment.

    Args:
        started: tables and streams are ready.
        leaderless_s: how long no leader is known.
        renewed_s: since all leases were renewed; None: no leases.
        fleet: all leases; empty until this worker reads the table, as leader or for a viewer.
        fleet_age_s: age of `fleet` and `workers`; None: never read.
        loop_lag_s: delay of the event loop.
        spark: None: no engine, or it is silent; as `landing` for the lander.
        place: stream, region and account; empty from an older daemon.
        at_ms: epoch milliseconds; 0 from an older daemon.
        holds: pauses and limits in force, of the whole application.
        violations: invariants that did not hold, since the start; `last_violation` is text.
        capacity: of the leader, as last made or read; None: not known yet.
        latencies: only for metrics; they are not in documents.
    """

    application: str
    worker_id: str
    version: str
    uptime_s: float
    started: bool
    stopping: bool
    leads: bool
    leader: str | None
    leaderless_s: float | None
    renewed_s: float | None
    shards: tuple[ShardView, ...]
    fleet: tuple[LeaseView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    moves: tuple[MoveView, ...] = ()
    fleet_age_s: float | None = None
    loop_lag_s: float = 0.0
    spark: SparkView | None = None
    landing: LandingView | None = None
    place: str = ""
    at_ms: int = 0
    holds: tuple[HoldView, ...] = ()
    violations: int = 0
    last_violation: str = ""
    capacity: Capacity | None = None
    latencies: tuple[LatencyView, ...] = ()

    @property
    def capacity_age_s(self) -> float:
        """By the clocks of the leader and of this worker."""
        return 0.0 if self.capacity is None else max(0.0, (self.at_ms - self.capacity.at_ms) / 1000)


class SnapshotSource(Protocol):
    """Call both methods in the event loop's thread."""

    def now(self) -> Snapshot:
        """The fleet is as last read; no I/O, never waits, never raises."""
        ...

    async def asked(self) -> Snapshot:
        """For a viewer: a worker that is not the leader first reads the tables, every few seconds at most.

        On an AWS error the fleet stays as old as `fleet_age_s` says. May be cancelled.
        """
        ...

    async def asked_capacity(self) -> Snapshot:
        """As `asked`, but only `capacity` is read."""
        ...


def lease_view(lease: Lease) -> LeaseView:
    return LeaseView(
        key=lease.lease_key,
        shard_id=lease.shard_id,
        stream=None if lease.stream is None else lease.stream.name,
        owner=lease.actual_owner,
        checkpoint=str(lease.checkpoint),
        parents=tuple(sorted(lease.parent_shard_ids)),
        children=tuple(sorted(lease.child_shard_ids)),
        next_owner=None if lease.checkpoint_owner is None else lease.lease_owner,
        stream_id=None if lease.stream is None else str(lease.stream),
    )


def worker_views(
    rows: Iterable[WorkerRow],
    leases: Iterable[Lease],
    reported_s: Callable[[WorkerId], float | None],
    *,
    also: Iterable[WorkerId] = (),
) -> tuple[WorkerView, ...]:
    """All workers that report or own an unfinished lease, and `also` these."""
    held = Counter(lease.actual_owner for lease in leases if not lease.is_finished)
    latest = {row.worker_id: row.metrics.get(CPU, ())[-1:] for row in rows}

    def view(worker: WorkerId) -> WorkerView:
        (cpu,) = latest.get(worker) or (None,)
        failed = cpu is not None and cpu < 0
        return WorkerView(worker, held[worker], None if failed else cpu, reported_s(worker), failed)

    return tuple(view(name) for name in sorted({*latest, *filter(None, held), *also}))


# A viewer's poll must not always cost a scan.
_READ_EVERY_S: Final = 5.0
_READ_WITHIN_S: Final = 5.0
_LINE_CHARACTERS: Final = 500


_LASTS_S: Final = 15.0
# This many reads take about two milliseconds.
_READS_MOST: Final = 64


def resident_bytes(pid: int) -> int | None:
    """None if the process is gone, or another user's and the system does not tell."""
    import psutil  # takes time to load; not every daemon is looked at

    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


class ResidentMemory:
    """The more processes there are, the older the figures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._figures: dict[int, tuple[float, int | None]] = {}

    def of(self, pids: Iterable[int]) -> dict[int, int | None]:
        """None for a process until it is read."""
        now_s = self._clock.monotonic()
        wanted = set(pids)
        self._figures = {pid: figure for pid, figure in self._figures.items() if pid in wanted}
        ages = {pid: self._figures[pid][0] if pid in self._figures else float("-inf") for pid in wanted}
        due = sorted((pid for pid in wanted if now_s - ages[pid] >= _LASTS_S), key=lambda pid: ages[pid])
        for pid in due[:_READS_MOST]:
            self._figures[pid] = (now_s, resident_bytes(pid))
        return {pid: self._figures[pid][1] if pid in self._figures else None for pid in wanted}


class Snapshots:
    def __init__(
        self,
        worker: Worker,
        *,
        application: str,
        worker_id: WorkerId,
        clock: Clock,
        log: Log,
        helper: HelperSource = no_helper,
        place: Callable[[], str] = str,
    ) -> None:
        self._worker = worker
        self._application = application
        self._worker_id = worker_id
        self._clock = clock
        self._log = log
        self._helper = helper
        self._place = place
        self._began_s = clock.monotonic()
        self._memory = ResidentMemory(clock)
        self._viewer = worker.monitor.another()
        self._reading = anyio.Lock()
        self._tried_s: dict[str, float] = {}
        self._tails = _StderrLines()
        self._leases_shown: tuple[list[Lease], tuple[LeaseView, ...]] = ([], ())

    def now(self) -> Snapshot:
        worker, now_s = self._worker, self._clock.monotonic()
        active_leases, elector = worker.watchdog.active_leases, worker.elector
        shards = active_leases.shards
        elects = worker.switcher.assigns
        monitor = self._monitor
        held_s = [now_s - watched.moved_s for watched in shards if watched.lost is None]
        helper = self._helper()
        return Snapshot(
            application=self._application,
            worker_id=self._worker_id,
            version=__version__,
            uptime_s=now_s - self._began_s,
            started=self._worker.started.is_set(),
            stopping=self._worker.stopping,
            leads=elector.is_leader,
            leader=elector.leader,
            leaderless_s=elector.leaderless_s if elects and elector.leader_is_missing else None,
            renewed_s=max(held_s, default=None),
            shards=self._shards(shards, now_s),
            fleet=() if monitor is None else self._leases(monitor),
            workers=() if monitor is None else self._workers(monitor),
            moves=tuple(MoveView(now_s - move.at_s, move.key, move.reason) for move in active_leases.moves),
            fleet_age_s=None if monitor is None else monitor.age_s,
            loop_lag_s=worker.watchdog.loop_lag_s,
            spark=helper if isinstance(helper, SparkView) else None,
            landing=helper if isinstance(helper, LandingView) else None,
            place=self._place(),
            at_ms=self._clock.wall_ms(),
            holds=tuple(_hold_view(hold, monitor) for hold in worker.consumers.holds.holds),
            violations=worker.violations,
            last_violation=worker.last_violation,
            capacity=worker.capacity.capacity,
            latencies=tuple(_latencies(active_leases)),
        )

    async def asked(self) -> Snapshot:
        if self._worker.monitor.age_s is not None or not self._worker.started.is_set():
            return await self.asked_capacity()
        async with self._reading:
            await self._read("fleet", self._read_fleet)
        return self.now()

    async def _read_fleet(self) -> None:
        await self._viewer.poll()
        await self._worker.capacity.read()

    async def asked_capacity(self) -> Snapshot:
        if self._worker.started.is_set() and not self._worker.elector.is_leader:
            async with self._reading:
                await self._read("capacity", self._worker.capacity.read)
        return self.now()

    async def _read(self, what: str, read: Callable[[], Awaitable[None]]) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._tried_s.get(what, float("-inf")) < _READ_EVERY_S:
            return
        self._tried_s[what] = now_s
        with self._clock.move_on_after(_READ_WITHIN_S):
            try:
                await read()
            except AwsError as error:
                self._log.debug("fleet_not_read", what=what, error=str(error))

    @property
    def _monitor(self) -> FleetMonitor | None:
        """The leader's monitor, else the one read for a viewer."""
        monitor = self._worker.monitor
        if monitor.age_s is not None:
            return monitor
        return None if self._viewer.age_s is None else self._viewer

    def _leases(self, monitor: FleetMonitor) -> tuple[LeaseView, ...]:
        if self._leases_shown[0] is not monitor.leases:
            self._leases_shown = (monitor.leases, tuple(map(lease_view, monitor.leases)))
        return self._leases_shown[1]

    def _workers(self, monitor: FleetMonitor) -> tuple[WorkerView, ...]:
        return worker_views(monitor.workers, monitor.leases, monitor.reported_s)

    def _shards(self, shards: tuple[ActiveLease, ...], now_s: float) -> tuple[ShardView, ...]:
        known = [each for shard in shards for each in (shard, *shard.progress.lanes.values())]
        pids = [each.progress.child.pid for each in known if each.progress.child is not None]
        memory = self._memory.of(pids)
        self._tails.keep({*pids, *map(_name, known)})
        return tuple(self._shard(watched, memory, now_s) for watched in shards)

    def _shard(self, watched: ActiveLease, memory: dict[int, int | None], now_s: float) -> ShardView:
        watchdog, lease, progress = self._worker.watchdog, watched.lease, watched.progress
        worst = self._worst(watched, now_s)
        seen = stall_status(worst.progress, watchdog.limits, now_s)
        of_lane = "" if worst is watched else f"lane {worst.progress.lane}: "
        stalled, failures = watchdog.is_stalled(worst), worst.progress.failures
        rates, ahead_s = watchdog.rates(watched.key), progress.last_fetch.ahead_s
        (p50_s, p99_s), waiting = watchdog.p50_and_p99(watched.key), progress.waiting
        undone_s = lag_s(progress, watchdog.limits, now_s)
        return ShardView(
            key=watched.key,
            shard_id=lease.shard_id,
            stream=None if lease.stream is None else lease.stream.name,
            parents=tuple(sorted(lease.parent_shard_ids)),
            cause=seen.cause,
            waits_s=seen.waits_s,
            detail=_shown(f"{of_lane}{seen.detail}"),
            idle_s=now_s - progress.progressed_s,
            stalled=stalled,
            behind_ms=progress.last_fetch.behind_ms,
            checkpoint=str(lease.checkpoint),
            records=progress.records,
            data_bytes=progress.data_bytes,
            bytes_per_s=rates.out_bytes,
            child=self._child(progress, memory, now_s),
            failures=failures,
            stream_id=None if lease.stream is None else str(lease.stream),
            state=state_of(seen.cause, failures=failures, stalled=stalled, finished=lease.is_finished),
            lag_s=undone_s,
            restarts=sum(_restarts(each) for each in (watched, *progress.lanes.values())),
            last_error=_shown(worst.progress.failure) if failures else "",
            stderr_tail=self._failed_tail(worst),
            next_try_s=_next_try_s(worst, now_s),
            lanes=self._lanes(progress, memory, now_s),
            set_aside=dict(progress.set_aside.by_cause),
            last_set_aside=_shown(progress.set_aside.last),
            uncheckpointed_s=uncheckpointed_s(watched, undone_s, now_s),
            p50_s=p50_s,
            p99_s=p99_s,
            speed=rates.speed,
            records_per_s=rates.out_records,
            in_records_per_s=rates.in_records,
            in_bytes_per_s=rates.in_bytes,
            read_records=progress.flow.read_records,
            read_bytes=progress.flow.read_bytes,
            waiting_records=waiting[0],
            waiting_bytes=waiting[1],
            ahead_s=ahead_s if ahead_s > AHEAD_S else 0.0,
        )

    def _worst(self, shard: ActiveLease, now_s: float) -> ActiveLease:
        """A lane in more trouble than its shard, or that works while the shard has nothing new."""

        def trouble(each: ActiveLease) -> tuple[bool, bool]:
            return each.progress.failures >= FAILING_FROM, self._worker.watchdog.is_stalled(each)

        lanes, window = shard.progress.lanes, shard.progress.window
        worst = max((shard, *lanes.values()), key=trouble)
        slowest = None if window is None or window.slowest is None else lanes.get(window.slowest)
        if worst is not shard or slowest is None or slowest.progress.cause is WaitReason.KINESIS:
            return worst
        cause = stall_status(shard.progress, self._worker.watchdog.limits, now_s).cause
        return slowest if cause is WaitReason.NOTHING_NEW else shard

    def _failed_tail(self, watched: ActiveLease) -> tuple[str, ...]:
        progress = watched.progress
        return self._tails.shown(_name(watched), progress.stderr_tail if progress.failures else ())

    def _lanes(
        self, progress: LeaseProgress, memory: dict[int, int | None], now_s: float
    ) -> LanesView | None:
        window = progress.window
        if window is None:
            return None
        slowest = window.holds_mark
        key_hash = None if slowest is None else window.first_key_hash(slowest)
        return LanesView(
            count=window.lane_count,
            slowest=slowest,
            key_hash=None if key_hash is None else f"{key_hash:08x}",
            held_s=None if progress.held_back_s is None else now_s - progress.held_back_s,
            window_bytes=window.size_bytes,
            lanes=tuple(
                self._lane(number, lane, window.not_done(number), memory, now_s)
                for number, lane in sorted(progress.lanes.items())
            ),
        )

    def _lane(
        self,
        number: int,
        lane: ActiveLease,
        not_done: tuple[int, int],
        memory: dict[int, int | None],
        now_s: float,
    ) -> LaneView:
        watchdog, progress = self._worker.watchdog, lane.progress
        seen = stall_status(progress, watchdog.limits, now_s)
        return LaneView(
            number=number,
            records=not_done[0],
            kept_bytes=not_done[1],
            cause=seen.cause,
            waits_s=seen.waits_s,
            detail=_shown(seen.detail),
            stalled=watchdog.is_stalled(lane),
            child=self._child(progress, memory, now_s),
            failures=progress.failures,
            restarts=_restarts(lane),
            last_error=_shown(progress.failure) if progress.failures else "",
            stderr_tail=self._failed_tail(lane),
            next_try_s=_next_try_s(lane, now_s),
        )

    def _child(
        self, progress: LeaseProgress, memory: dict[int, int | None], now_s: float
    ) -> ChildView | None:
        child = progress.child
        if child is None:
            return None
        return ChildView(
            pid=child.pid,
            rss_bytes=memory.get(child.pid),
            running_s=now_s - progress.child_since_s,
            restarts=progress.children - 1,
            stderr=self._tails.shown(child.pid, child.stderr_tail),
        )


def _latencies(active_leases: ActiveLeases) -> Iterator[LatencyView]:
    for stream, histogram in active_leases.latencies.items():
        yield LatencyView(None, None if stream is None else str(stream), histogram)
    for each in active_leases.shards:
        stream = each.lease.stream
        stream_id = None if stream is None else str(stream)
        yield LatencyView(each.lease.shard_id, stream_id, each.progress.latency)


def _hold_view(hold: Hold, monitor: FleetMonitor | None) -> HoldView:
    rows = {} if monitor is None else {row.worker_id: row for row in monitor.workers}
    unheld = "" if monitor is None else not_held(hold, monitor.leases, rows)
    return HoldView(
        _shown(hold_text(hold, unheld)),
        hold.is_pause,
        hold.stream,
        hold.lease_key,
        hold.by,
        _shown(hold.reason),
        hold.since_ms,
        hold.until_ms,
        None if hold.unit is None else hold.unit.value,
        hold.amount,
    )


def _name(watched: ActiveLease) -> str:
    lane = watched.progress.lane
    return watched.key if lane is None else f"{watched.key} lane {lane}"


def _restarts(watched: ActiveLease) -> int:
    return max(0, watched.progress.children - 1)


def _next_try_s(watched: ActiveLease, now_s: float) -> float | None:
    at_s = watched.progress.next_try_s
    return None if at_s is None else max(0.0, at_s - now_s)


class _StderrLines:
    """Lines safe to show; cached by process id, or by the name of lease or lane once the child failed."""

    def __init__(self) -> None:
        self._known: dict[int | str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def shown(self, whose: int | str, lines: tuple[str, ...]) -> tuple[str, ...]:
        known = self._known.get(whose)
        if known is None or known[0] != lines:
            known = self._known[whose] = (lines, tuple(map(_shown, lines)))
        return known[1]

    def keep(self, wanted: AbstractSet[int | str]) -> None:
        self._known = {whose: known for whose, known in self._known.items() if whose in wanted}


def _shown(text: str) -> str:
    return on_one_line(masked(text))[:_LINE_CHARACTERS] if text else text
