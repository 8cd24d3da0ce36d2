"""One worker's life: prepare, run all loops, stop in order.

KCL: Scheduler, GracefulShutdownCoordinator. A crashed consumer keeps its lease for a pause; without it, the
lease would come back and crash again every few seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from kcl_daemon.consumer.consumer import ShardConsumer
from kcl_daemon.consumer.context import ConsumerContext
from kcl_daemon.errors import (
    ChildError,
    ConfigurationError,
    KclError,
    StreamNotFound,
    Throttled,
    Unavailable,
    WorkerIdTaken,
)
from kcl_daemon.fleet.discovery import Discovery
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.lease_cleanup import OwnLeaseCleanup
from kcl_daemon.fleet.lease_renewer import HeldLease, LeaseRenewer, lease_labels
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.reporter import Reporter
from kcl_daemon.fleet.shutdown_handoff import ShutdownHandoff
from kcl_daemon.fleet.streams import StreamTracker
from kcl_daemon.fleet.worker_identity import DuplicateWorkerDetector, Predecessors
from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.metrics import kcl, own
from kcl_daemon.metrics.kcl import INITIALIZE
from kcl_daemon.migrations.kcl2_loops import ClientVersionMonitor, ComponentSwitcher, ShuffleLeader
from kcl_daemon.migrations.kcl2_rules import ClientVersion
from kcl_daemon.migrations.kcl2_taking import LeaseTaker
from kcl_daemon.migrations.tables import ApplicationTables
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.progress.watchdog import Watchdog, lag_s

_BY_SHUFFLE = frozenset({ClientVersion.INIT, ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X})


@dataclass(frozen=True, slots=True)
class GaugeInputs:
    renewer: LeaseRenewer
    elector: Elector
    shuffle: ShuffleLeader
    versions: ClientVersionMonitor
    watchdog: Watchdog


class Gauges:
    """`may_change`: shuffle leader and lock may alternate. `buffered`: bytes read ahead."""

    def __init__(
        self,
        watched: GaugeInputs,
        *,
        may_change: bool,
        buffered: Callable[[], int],
        period_s: float,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._watched = watched
        self._may_change = may_change
        self._buffered = buffered
        self._period_s = period_s
        self._meters = meters
        self._clock = clock

    async def run(self) -> None:
        while True:
            asked_s = self._clock.monotonic()
            await self._clock.sleep(self._period_s)
            self._meters.add(own.LOOP_LAG, max(0.0, self._clock.monotonic() - asked_s - self._period_s))
            self.poll()

    def poll(self) -> None:
        watched, add = self._watched, self._meters.add
        held = watched.renewer.held
        watched.renewer.renewals.tick(len(held))
        now_s = self._clock.monotonic()
        add(own.LEASE_AGE, max((now_s - each.moved_s for each in held.values()), default=0.0))
        add(own.BUFFERED_BYTES, self._buffered())
        by_shuffle = watched.versions.version in _BY_SHUFFLE
        leads = watched.shuffle.leads if by_shuffle else watched.elector.is_leader
        add(kcl.IS_LEADER, float(leads))
        if self._may_change:
            add(kcl.DECIDER_SHUFFLE if by_shuffle else kcl.DECIDER_LOCK)
        if not by_shuffle:
            add(own.LEADERLESS, watched.elector.leaderless_s)
        self._record_shards(now_s)

    def _record_shards(self, now_s: float) -> None:
        watchdog, add = self._watched.watchdog, self._meters.add
        for shard in watchdog.active_leases.shards:
            behind_s = lag_s(shard.progress, watchdog.limits, now_s)
            if behind_s is not None:
                add(kcl.PROCESS_BEHIND, behind_s, **lease_labels(shard.lease))
                add(kcl.APPLICATION_BEHIND, behind_s)


FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
# A consumer that ran this long got past what crashed it.
_FORGOTTEN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Crash:
    at_s: float
    cooldown_s: float


class CrashBackoff:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[LeaseKey, _Crash] = {}

    def cooldown_s(self, key: LeaseKey) -> float:
        """Seconds until the lease is released, for a crash now.

        Doubles up to a minute; starts again after ten minutes without a crash.
        """
        now_s = self._clock.monotonic()
        self._last = {each: last for each, last in self._last.items() if now_s < last.at_s + _FORGOTTEN_S}
        last = self._last.get(key)
        cooldown_s = FIRST_BACKOFF_S if last is None else min(2 * last.cooldown_s, MAX_BACKOFF_S)
        self._last[key] = _Crash(now_s, cooldown_s)
        return cooldown_s


# KCL: maxInitializationAttempts.
_START_ATTEMPTS: Final = 20
_LEAVE_FIRST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class WorkerLoops:
    """What the worker starts and stops; the ComponentSwitcher decides which of the others run."""

    renewer: LeaseRenewer
    elector: Elector
    reporter: Reporter
    discovery: Discovery
    taker: LeaseTaker
    switcher: ComponentSwitcher
    versions: ClientVersionMonitor
    shutdown: ShutdownHandoff
    monitor: FleetMonitor
    predecessors: Predecessors
    duplicate_detector: DuplicateWorkerDetector
    watchdog: Watchdog
    gauges: Gauges
    own_cleanup: OwnLeaseCleanup


@dataclass(eq=False, slots=True)
class _Running:
    consumer: ShardConsumer
    done: anyio.Event


class Worker:
    """Run it once. `started` is set when tables and streams are ready and the loops run."""

    def __init__(
        self,
        *,
        tables: ApplicationTables,
        streams: StreamTracker,
        polls_leases: Callable[[], Awaitable[None]],
        clock: Clock,
        log: Log,
        start_pause_s: float = 1.0,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._tables = tables
        self._streams = streams
        self._look_at_leases = polls_leases
        self._clock = clock
        self._log = log
        self._start_pause_s = start_pause_s
        self.started = anyio.Event()
        self._crashes = CrashBackoff(clock)
        self._stop = anyio.Event()
        self._fatal: KclError | None = None
        self._consumers: dict[LeaseKey, _Running] = {}
        self._loops: WorkerLoops | None = None
        self._parts: ConsumerContext | None = None
        self._work: TaskGroup | None = None

    def attach(self, loops: WorkerLoops, parts: ConsumerContext) -> None:
        """Not in the constructor: the parts call back into the worker."""
        self._loops, self._parts = loops, parts

    @property
    def loops(self) -> WorkerLoops:
        assert self._loops is not None, "equip() comes first"
        return self._loops

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def streams(self) -> StreamTracker:
        return self._streams

    def request_stop(self) -> None:
        """Begin the graceful stop. Idempotent."""
        self._stop.set()

    def fail(self, error: ChildError | WorkerIdTaken) -> None:
        """Stop gracefully; then `run` raises the first error given here."""
        self._fatal = self._fatal or error
        self._stop.set()

    async def run(self) -> None:
        """Work until `request_stop`; returns when every lease has been handed over or released.

        Cancelled: children are killed, nothing is written, leases expire.

        Raises:
            KclError: it could not start.
            ChildError: a child failed (`childFailurePolicy` EXIT).
            WorkerIdTaken: an older live process has our worker id.
        """
        assert self._loops is not None, "equip() comes first"
        await self._prepare()
        loops = self._loops
        if self._stop.is_set():
            await loops.predecessors.leave()
            return
        if loops.switcher.reports:
            await loops.reporter.report()  # so that the first assignment knows of us
        async with anyio.create_task_group() as work:
            self._work = work
            work.start_soon(loops.renewer.run)
            work.start_soon(loops.watchdog.run)
            if self._meters is not NO_METERS:
                work.start_soon(loops.gauges.run)
            async with anyio.create_task_group() as coordination:
                coordination.start_soon(self._tables.complete_recovery)
                coordination.start_soon(loops.switcher.run)
                coordination.start_soon(loops.versions.run)
                coordination.start_soon(loops.own_cleanup.run)
                coordination.start_soon(loops.predecessors.run)
                self._log.info("worker_started")
                self.started.set()
                await self._stop.wait()
                await loops.taker.settle()
                coordination.cancel_scope.cancel()
            await self._drain(loops)
            work.cancel_scope.cancel()
        await loops.predecessors.leave()
        self._log.info("worker_stopped")
        if self._fatal is not None:
            raise self._fatal

    async def _prepare(self) -> None:
        """Tables, version, then streams; retried while AWS is slow or busy."""
        assert self._loops is not None, "equip() comes first"
        await self._loops.predecessors.enter()
        steps = (
            self._list_streams_first,
            self._tables.open,
            self._look_at_leases,
            self._loops.versions.begin,
            self._streams.prepare,
            partial(self._loops.duplicate_detector.settle, self._stop),
        )
        with self._meters.operation(INITIALIZE):
            for step in steps:
                await self._with_start_retries(step)

    async def _list_streams_first(self) -> None:
        """In a new application a missing stream is a wrong name: create nothing."""
        if not await self._tables.are_new():
            return
        try:
            await self._streams.discover()
        except StreamNotFound as missing:
            raise ConfigurationError(
                f"{missing}. No worker of this application has run before, and nothing was created: "
                "correct streamName or streamArn, regionName and the credentials, or create the stream "
                "first"
            ) from missing

    async def _with_start_retries(self, step: Callable[[], Awaitable[None]]) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            if self._stop.is_set():
                return
            try:
                await step()
            except (Throttled, Unavailable) as error:
                if attempt == _START_ATTEMPTS:
                    raise
                self._meters.done(INITIALIZE, 0.0, False)
                self._log.warning(
                    "start_delayed", error=str(error), attempt=attempt, attempts_most=_START_ATTEMPTS
                )
            else:
                return
            with self._clock.move_on_after(self._start_pause_s):
                await self._stop.wait()

    def on_lease_found(self, held: HeldLease) -> None:
        assert self._work is not None, "leases are found only while the worker runs"
        assert self._parts is not None, "equip() comes first"
        running = _Running(ShardConsumer(parts=self._parts, held=held), anyio.Event())
        before = self._consumers.get(held.key)
        self._consumers[held.key] = running
        self.loops.watchdog.active_leases.add(held)
        self._work.start_soon(self._consume, held, running, before)
        if self._stop.is_set():
            running.consumer.request_stop()

    async def _consume(self, held: HeldLease, running: _Running, before: _Running | None) -> None:
        try:
            if before is not None:
                await before.done.wait()  # one child per shard, also when a lease was lost and regained
            await running.consumer.run()
        except Exception:  # noqa: BLE001
            # Our bug in one shard must not end the others; releasing the lease lets another worker try.
            await self._crashed(held, running)
        finally:
            self.loops.watchdog.active_leases.remove(held)
            running.done.set()
            if self._consumers.get(held.key) is running:
                del self._consumers[held.key]
            self.loops.discovery.wake()

    async def _crashed(self, held: HeldLease, running: _Running) -> None:
        """Release the lease after a pause; a stop, a handoff or losing the lease ends the pause."""
        cooldown_s = self._crashes.cooldown_s(held.key)
        self._log.error(
            "consumer_crashed",
            shard_id=held.lease.shard_id,
            exc_info=True,
            rests_s=cooldown_s,
            advice="please report this",
        )
        held.progress.waits(
            WaitReason.LEASE,
            "its consumer crashed because of a bug in the daemon; its lease is released after a pause",
        )
        with self._clock.move_on_after(cooldown_s):
            await running.consumer.until_stop_requested()
        if held.lost is None:
            await self.loops.renewer.release_lease(held)

    async def _drain(self, loops: WorkerLoops) -> None:
        """Leave the fleet first, so that we are assigned nothing new; then end shard by shard."""
        self._log.info("worker_stopping", leases=len(self._consumers))
        gone = anyio.Event()

        async def leave() -> None:
            await loops.reporter.retire()
            await loops.elector.resign()
            gone.set()

        async with anyio.create_task_group() as leaving:
            leaving.start_soon(leave)
            # A lease released before our row is gone might be assigned to us again. Children must not wait
            # for a slow DynamoDB.
            with self._clock.move_on_after(_LEAVE_FIRST_S):
                await gone.wait()
            # If another process has our worker id, the other leases in our name are its own.
            if gone.is_set() and loops.switcher.assigns and not loops.duplicate_detector.stands_aside:
                leaving.start_soon(loops.discovery.give_back)
                await loops.shutdown.begin_handoff()
            for running in list(self._consumers.values()):
                running.consumer.request_stop()
            while self._consumers:
                await next(iter(self._consumers.values())).done.wait()
            for held in loops.renewer.held.values():  # finished ones that were kept
                leaving.start_soon(loops.renewer.release_lease, held)
