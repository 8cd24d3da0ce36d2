"""One worker's life: prepare, run all loops, stop in order (KCL: Scheduler, GracefulShutdownCoordinator)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup

from kcl_daemon import __version__
from kcl_daemon.consumer.consumer import ShardConsumer
from kcl_daemon.consumer.context import ConsumerContext
from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import (
    ChildError,
    ConfigurationError,
    InvariantViolated,
    KclError,
    StreamNotFound,
    Throttled,
    Unavailable,
    WorkerIdTaken,
)
from kcl_daemon.fleet.capacity_watch import CapacityWatch
from kcl_daemon.fleet.client_version import ClientVersion, ClientVersionMonitor, ComponentSwitcher
from kcl_daemon.fleet.coverage_watch import CoverageWatch
from kcl_daemon.fleet.discovery import Discovery
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.lease_renewer import HeldLease, LeaseRenewer, lease_labels
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.reporter import Reporter
from kcl_daemon.fleet.shutdown_handoff import ShutdownHandoff
from kcl_daemon.fleet.streams import OwnStreamCheck, StreamTracker
from kcl_daemon.fleet.tables import ApplicationTables
from kcl_daemon.fleet.worker_identity import DuplicateWorkerDetector, Predecessors
from kcl_daemon.host_ports import Evidence
from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.metrics import kcl, own
from kcl_daemon.metrics.kcl import INITIALIZE
from kcl_daemon.ports import NO_METERS
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.progress.watchdog import Watchdog, lag_s

if TYPE_CHECKING:
    from kcl_daemon.fleet.run_end import RunEnd

_BY_SHUFFLE = frozenset({ClientVersion.INIT, ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X})


FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
# A consumer that ran this long got past what crashed it.
_FORGOTTEN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Crash:
    at_s: float
    cooldown_s: float


def crash_cooldown_s(crashes: dict[LeaseKey, _Crash], key: LeaseKey, now_s: float) -> float:
    """A crashed consumer keeps its lease so long; else it would come back and crash again.

    Doubles up to a minute; starts again after ten minutes without a crash.
    """
    for each, crash in list(crashes.items()):
        if now_s >= crash.at_s + _FORGOTTEN_S:
            del crashes[each]
    last = crashes.get(key)
    cooldown_s = FIRST_BACKOFF_S if last is None else min(2 * last.cooldown_s, MAX_BACKOFF_S)
    crashes[key] = _Crash(now_s, cooldown_s)
    return cooldown_s


# KCL: maxInitializationAttempts.
_START_ATTEMPTS: Final = 20
_LEAVE_FIRST_S: Final = 1.0


@dataclass(eq=False, slots=True)
class _Running:
    consumer: ShardConsumer
    done: anyio.Event


@dataclass(eq=False, repr=False, kw_only=True)
class Worker:
    """Run it once.

    Args:
        election_may_change: shuffle leader and lock may alternate.
        own_stream: None: there are many streams, and each lease names its own.
        evidence: None: what violated an invariant is only logged.
        started: set when tables and streams are ready and the loops run.
    """

    context: WorkerContext
    tables: ApplicationTables
    streams: StreamTracker
    check_leases: Callable[[], Awaitable[None]]
    own_stream: OwnStreamCheck | None
    start_pause_s: float
    consumers: ConsumerContext
    renewer: LeaseRenewer
    elector: Elector
    reporter: Reporter
    discovery: Discovery
    settle_taking: Callable[[], Awaitable[None]]
    leads_by_shuffle: Callable[[], bool]
    switcher: ComponentSwitcher
    versions: ClientVersionMonitor
    shutdown_handoff: ShutdownHandoff
    monitor: FleetMonitor
    predecessors: Predecessors
    duplicate_detector: DuplicateWorkerDetector
    watchdog: Watchdog
    clean_own_leases: Callable[[], Coroutine[object, object, None]]
    election_may_change: bool
    buffered_bytes: Callable[[], int]
    capacity: CapacityWatch
    coverage: CoverageWatch
    run_end: RunEnd | None = None
    evidence: Evidence | None = None
    started: anyio.Event = field(default_factory=anyio.Event, init=False)

    def __post_init__(self) -> None:
        self._clock = self.context.clock
        self._log = self.context.log
        self._meters = self.context.meters
        self._crashes: dict[LeaseKey, _Crash] = {}
        self.violations, self.last_violation = 0, ""
        self._stop = anyio.Event()
        self._fatal: KclError | None = None
        self._running: dict[LeaseKey, _Running] = {}
        self._work: TaskGroup | None = None

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Idempotent."""
        self._stop.set()

    def fail(self, error: ChildError | WorkerIdTaken) -> None:
        """Stop gracefully; then `run` raises the first error given here."""
        self._fatal = self._fatal or error
        self._stop.set()

    async def run(self) -> None:
        """Work until `request_stop`; returns when every lease has been released.

        Cancelled: children are killed, nothing is written, leases expire.

        Raises:
            KclError: it could not start.
            ChildError: a child failed (`childFailurePolicy` EXIT).
            WorkerIdTaken: an older live process has our worker id.
        """
        await self._prepare()
        if self._stop.is_set():
            await self.predecessors.leave()
            return
        if self.switcher.reports:
            await self.reporter.report()  # so that the first assignment knows of us
        if self.run_end is not None:
            await self._with_start_retries(self.run_end.settle)
        async with anyio.create_task_group() as work:
            self._work = work
            work.start_soon(self.renewer.run)
            work.start_soon(self.watchdog.run)
            work.start_soon(self.consumers.standby.run)
            work.start_soon(self.consumers.holds.run)
            if self._meters is not NO_METERS:
                work.start_soon(self._record_gauges)
            async with anyio.create_task_group() as coordination:
                coordination.start_soon(self.tables.complete_recovery)
                coordination.start_soon(self.switcher.run)
                coordination.start_soon(self.versions.run)
                coordination.start_soon(self.clean_own_leases)
                coordination.start_soon(self.predecessors.run)
                coordination.start_soon(self.capacity.run)
                if self.run_end is not None:
                    coordination.start_soon(self.run_end.run, self.request_stop)
                self._log.info("worker_started")
                self.started.set()
                await self._stop.wait()
                await self.settle_taking()
                coordination.cancel_scope.cancel()
            await self._drain()
            work.cancel_scope.cancel()
        await self.predecessors.leave()
        self._log.info("worker_stopped")
        if self._fatal is not None:
            raise self._fatal

    async def _prepare(self) -> None:
        await self.predecessors.enter()
        own_stream = self.own_stream
        steps = (
            self._list_streams_first,
            partial(self.tables.open, None if own_stream is None else own_stream.check),
            self.check_leases,
            *(() if own_stream is None else (own_stream.store,)),
            self.versions.begin,
            self.streams.prepare,
            partial(self.duplicate_detector.settle, self._stop),  # may take long
            self.consumers.holds.begin,
            *(() if self.run_end is None else (self.run_end.begin,)),
        )
        with self._meters.operation(INITIALIZE):
            for step in steps:
                await self._with_start_retries(step)

    async def _list_streams_first(self) -> None:
        """In a new application a missing stream is a wrong name: create nothing."""
        if not await self.tables.are_new():
            return
        try:
            await self.streams.discover()
        except StreamNotFound as missing:
            raise ConfigurationError(
                f"{missing}. No worker of this application has run before, and nothing was created: "
                "correct streamName, streamArn or tableName.source, regionName and the credentials, or create "
                "the stream first"
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
            with self._clock.move_on_after(self.start_pause_s):
                await self._stop.wait()

    def is_read(self, key: LeaseKey) -> bool:
        return key in self._running

    def on_lease_found(self, held: HeldLease) -> None:
        assert self._work is not None, "leases are found only while the worker runs"
        running = _Running(ShardConsumer(parts=self.consumers, held=held), anyio.Event())
        before = self._running.get(held.key)
        self._running[held.key] = running
        self.watchdog.active_leases.add(held)
        self._work.start_soon(self._consume, held, running, before)
        if self._stop.is_set():
            running.consumer.request_stop()

    async def _consume(self, held: HeldLease, running: _Running, before: _Running | None) -> None:
        try:
            if before is not None:
                await before.done.wait()  # one child per shard, also when a lease was lost and regained
            await self._run_guarded(held, running.consumer)
        except Exception:  # noqa: BLE001
            # A bug in one shard must not end the others; another worker may try the lease.
            await self._crashed(held, running)
        finally:
            self.watchdog.active_leases.remove(held)
            self.consumers.standby.dismiss(held.key)
            running.done.set()
            if self._running.get(held.key) is running:
                del self._running[held.key]
            self.discovery.wake()

    async def _run_guarded(self, held: HeldLease, consumer: ShardConsumer) -> None:
        """Raises InvariantViolated, or a group with it, also where another part than the consumer has found it."""
        invariants = held.progress.invariants
        with anyio.CancelScope() as scope:
            invariants.on_violation = scope.cancel
            if invariants.violation is None:
                await consumer.run()
        invariants.on_violation = lambda: None
        if invariants.violation is not None:
            raise invariants.violation
        invariants.ends()

    async def _crashed(self, held: HeldLease, running: _Running) -> None:
        """A stop, a handoff or losing the lease ends the pause."""
        cooldown_s = crash_cooldown_s(self._crashes, held.key, self._clock.monotonic())
        held.progress.invariants.give_back()
        why = "its consumer crashed because of a bug in the daemon"
        if held.progress.invariants.violation is None:
            self._log.error(
                "consumer_crashed",
                shard_id=held.lease.shard_id,
                exc_info=True,
                rests_s=cooldown_s,
                advice="please report this",
            )
        else:
            why = await self._violated(held, held.progress.invariants.violation, cooldown_s)
        held.progress.waits(WaitReason.LEASE, f"{why}; its lease is released after a pause")
        with self._clock.move_on_after(cooldown_s):
            await running.consumer.until_stop_requested()
        if held.lost is None:
            await self.renewer.release_lease(held)

    async def _violated(self, held: HeldLease, violation: InvariantViolated, rests_s: float) -> str:
        """Why it stands still, for people. Renewals write nothing of what it has done."""
        held.lanes = tuple
        path, name = None, f"{self._clock.wall_ms()}-{held.lease.shard_id}"
        about = {"lease_key": held.key, "worker_id": self.context.worker_id, "version": __version__}
        if self.evidence is not None:
            path = await self.evidence.keep(name, held.progress.invariants.evidence(**about))
        self._meters.add(own.VIOLATIONS[violation.invariant])
        self.violations += 1
        self.last_violation = f"{held.key}: {violation}; {path or 'nothing'} has the evidence"
        self._log.error(
            "invariant_violated",
            lease_key=held.key,
            shard_id=held.lease.shard_id,
            invariant=violation.invariant.value,
            expected=violation.expected,
            seen=violation.seen,
            evidence=path,
            rests_s=rests_s,
            advice="a bug of the daemon: report it with the file; the shard begins anew at its stored checkpoint",
        )
        return f"{violation}, a bug in the daemon"

    async def _drain(self) -> None:
        """Leave the fleet first, so that we are assigned nothing new; then end shard by shard."""
        self._log.info("worker_stopping", leases=len(self._running))
        gone = anyio.Event()

        async def leave() -> None:
            await self.reporter.retire()
            await self.elector.resign()
            gone.set()

        async with anyio.create_task_group() as leaving:
            leaving.start_soon(leave)
            # A lease released before our row is gone might be assigned to us again. But children must not
            # wait for a slow DynamoDB.
            with self._clock.move_on_after(_LEAVE_FIRST_S):
                await gone.wait()
            # If another process has our worker id, other leases in our name are its own.
            if gone.is_set() and self.switcher.assigns and not self.duplicate_detector.stands_aside:
                leaving.start_soon(self.discovery.give_back)
                if self.run_end is None or not self.run_end.reached:  # else nobody goes on
                    await self.shutdown_handoff.begin_handoff()
            for running in list(self._running.values()):
                running.consumer.request_stop()
            while self._running:
                await next(iter(self._running.values())).done.wait()
            for held in self.renewer.held.values():  # finished ones that were kept
                leaving.start_soon(self.renewer.release_lease, held)

    async def _record_gauges(self) -> None:
        period_s = self.context.timings.renew_s
        while True:
            asked_s = self._clock.monotonic()
            await self._clock.sleep(period_s)
            now_s = self._clock.monotonic()
            self._meters.add(own.LOOP_LAG, max(0.0, now_s - asked_s - period_s))
            self._record_leases(now_s)
            self._record_leader()

    def _record_leases(self, now_s: float) -> None:
        add, held = self._meters.add, self.renewer.held
        self.renewer.renewals.tick(len(held))
        add(own.LEASE_AGE, max((now_s - each.moved_s for each in held.values()), default=0.0))
        add(own.BUFFERED_BYTES, self.buffered_bytes())
        ages_s: list[float] = []
        for shard in self.watchdog.active_leases.shards:
            behind_s = lag_s(shard.progress, self.watchdog.limits, now_s)
            if behind_s is not None:
                ages_s.append(behind_s)
                add(kcl.PROCESS_BEHIND, behind_s, **lease_labels(shard.lease))
                add(kcl.APPLICATION_BEHIND, behind_s)
        if ages_s:
            add(own.UNFINISHED_AGE, max(ages_s))

    def _record_leader(self) -> None:
        add = self._meters.add
        by_shuffle = self.versions.version in _BY_SHUFFLE
        leads = self.leads_by_shuffle() if by_shuffle else self.elector.is_leader
        add(kcl.IS_LEADER, float(leads))
        if self.election_may_change:
            add(kcl.DECIDER_SHUFFLE if by_shuffle else kcl.DECIDER_LOCK)
        if not by_shuffle:
            add(own.LEADERLESS, self.elector.leaderless_s)
