"""What a worker and its Spark engine or lander do at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from kcl_daemon import __version__
from kcl_daemon.capacity.figures import Capacity
from kcl_daemon.coverage import UnreadShard
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.hold_words import hold_text, not_held
from kcl_daemon.leases.holds import Hold
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.worker_row import CPU, WorkerRow
from kcl_daemon.ports import Clock, Log
from kcl_daemon.progress.flow import LatencyHistogram
from kcl_daemon.progress.progress import ActiveLease, ActiveLeases
from kcl_daemon.telemetry.helper_views import HelperSource, LandingView, SparkView, no_helper
from kcl_daemon.telemetry.shards import Look, SeenLease, ShardView, StderrLines, name_of, safe_line, seen_as
from kcl_daemon.worker import Worker

# A viewer's poll must not always cost a scan.
_READ_EVERY_S: Final = 5.0
_READ_WITHIN_S: Final = 5.0
_LASTS_S: Final = 15.0
# This many reads take about two milliseconds.
_READS_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class LeaseView:
    """As of the last table read; `children` are known once the shard has ended."""

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
    """`leases`: unfinished ones that it reads; `reported_s`: since its report changed."""

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
    """A pause, or a limit (over all its shards); `text` says it all."""

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
    """`shard_id` None: of all shards of a stream since the start. It may still change."""

    shard_id: str | None
    stream_id: str | None
    histogram: LatencyHistogram


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker at one moment.

    Args:
        started: tables and streams are ready.
        renewed_s: since all leases were renewed; None: no leases.
        fleet: all leases, once this worker has read the table, as leader or for a viewer.
        fleet_age_s: age of `fleet` and `workers`; None: never read.
        spark: None: no engine, or it is silent; as `landing` for the lander.
        place: stream, region and account; empty from an older daemon.
        at_ms: epoch milliseconds; 0 from an older daemon.
        holds: pauses and limits in force, of the whole application.
        violations: invariants that did not hold, since the start.
        capacity: of the leader, as last made or read.
        unread: shards of the application that nobody reads; None: this worker does not lead, so it does not know.
        latencies: for metrics; not in documents.
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
    clock_ahead_s: float | None = None
    spark: SparkView | None = None
    landing: LandingView | None = None
    place: str = ""
    at_ms: int = 0
    holds: tuple[HoldView, ...] = ()
    violations: int = 0
    last_violation: str = ""
    capacity: Capacity | None = None
    unread: tuple[UnreadShard, ...] | None = None
    latencies: tuple[LatencyView, ...] = ()

    @property
    def capacity_age_s(self) -> float:
        """By the clocks of leader and worker."""
        return 0.0 if self.capacity is None else max(0.0, (self.at_ms - self.capacity.at_ms) / 1000)


class SnapshotSource(Protocol):
    """Call both methods in the event loop's thread."""

    def now(self) -> Snapshot:
        """The fleet is as last read; no I/O, never waits, never raises."""
        ...

    async def asked(self) -> Snapshot:
        """For a viewer: a worker that does not lead first reads the tables, every few seconds at most.

        On an AWS error the fleet stays as old as it was. May be cancelled.
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
    """Of all that report or own an unfinished lease, and `also` these."""
    held = Counter(lease.actual_owner for lease in leases if not lease.is_finished)
    latest = {row.worker_id: row.metrics.get(CPU, ())[-1:] for row in rows}

    def view(worker: WorkerId) -> WorkerView:
        (cpu,) = latest.get(worker) or (None,)
        failed = cpu is not None and cpu < 0
        return WorkerView(worker, held[worker], None if failed else cpu, reported_s(worker), failed)

    return tuple(view(name) for name in sorted({*latest, *filter(None, held), *also}))


def resident_bytes(pid: int) -> int | None:
    """None: the process is gone, or another user's."""
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
        """None: not read yet."""
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
        self.memory = ResidentMemory(clock)
        self._viewer = worker.monitor.another()
        self._reading = anyio.Lock()
        self._tried_s: dict[str, float] = {}
        self._stderr = StderrLines()
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
            workers=()
            if monitor is None
            else worker_views(monitor.workers, monitor.leases, monitor.reported_s),
            moves=tuple(MoveView(now_s - move.at_s, move.key, move.reason) for move in active_leases.moves),
            fleet_age_s=None if monitor is None else monitor.age_s,
            loop_lag_s=worker.watchdog.loop_lag_s,
            clock_ahead_s=worker.watchdog.clock_ahead_s(),
            spark=helper if isinstance(helper, SparkView) else None,
            landing=helper if isinstance(helper, LandingView) else None,
            place=self._place(),
            at_ms=self._clock.wall_ms(),
            holds=tuple(_hold_view(hold, monitor) for hold in worker.consumers.holds.holds),
            violations=worker.violations,
            last_violation=worker.last_violation,
            capacity=worker.capacity.capacity,
            unread=worker.coverage.unread,
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

    def _shards(self, shards: tuple[ActiveLease, ...], now_s: float) -> tuple[ShardView, ...]:
        known = [each for shard in shards for each in (shard, *shard.progress.lanes.values())]
        pids = [each.progress.child.pid for each in known if each.progress.child is not None]
        self._stderr.keep({*pids, *map(name_of, known)})
        look = Look(self._worker.watchdog, now_s, self.memory.of(pids), self._stderr)
        return tuple(seen_as(ShardView, SeenLease(shard, look)) for shard in shards)


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
        safe_line(hold_text(hold, unheld)),
        hold.is_pause,
        hold.stream,
        hold.lease_key,
        hold.by,
        safe_line(hold.reason),
        hold.since_ms,
        hold.until_ms,
        None if hold.unit is None else hold.unit.value,
        hold.amount,
    )
