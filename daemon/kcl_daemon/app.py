"""The only place that builds the object graph. Building calls nothing outside the process."""

# ruff: noqa: PLW0108 - a lambda finds its part later

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from kcl_daemon.capacity.figures import CapacityTargets
from kcl_daemon.config.balance import ClientVersionConfig, LeaseSettings
from kcl_daemon.config.retrieval import SLOWEST_AUTO_MS
from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.context import ConsumerContext, ShardCooldowns
from kcl_daemon.consumer.standby import StandbyChildren
from kcl_daemon.context import Broadcast, Timings, WorkerContext, timings
from kcl_daemon.cpu.sources import CpuSampler
from kcl_daemon.fleet.assigner import Assigner, AssignmentListener, assignment_strategies
from kcl_daemon.fleet.capacity_watch import CapacityWatch, LoadReport
from kcl_daemon.fleet.client_version import (
    ClientVersion,
    ClientVersionMonitor,
    ComponentSwitcher,
    PausableTask,
    SwitchedTasks,
)
from kcl_daemon.fleet.coverage_watch import CoverageWatch
from kcl_daemon.fleet.discovery import AssignmentNotifier, Discovery
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.hold_watch import HoldWatch
from kcl_daemon.fleet.lease_renewer import LeaseRenewer, MalformedRowLog
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.reporter import Reporter
from kcl_daemon.fleet.shard_sync import ShardSync, clean_own_leases
from kcl_daemon.fleet.shutdown_handoff import ShutdownHandoff
from kcl_daemon.fleet.streams import (
    OwnStreamCheck,
    SingleStreamTracker,
    StreamMonitor,
    TrackedStream,
    leases_of,
    location_of,
    require_same_stream_mode,
)
from kcl_daemon.fleet.tables import ApplicationTables
from kcl_daemon.fleet.worker_identity import DuplicateWorkerDetector, Predecessors
from kcl_daemon.host_ports import Evidence, StateFolder
from kcl_daemon.leases.layout import TableStatus
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import Incarnation
from kcl_daemon.ports import (
    NO_METERS,
    Children,
    Clock,
    CloudWatch,
    Cpu,
    DeadLetters,
    FanOut,
    Kinesis,
    Log,
    Meters,
    Randomness,
    ScanPort,
    Schemas,
    Table,
    Tables,
    Transactions,
)
from kcl_daemon.progress.progress import ActiveLeases
from kcl_daemon.progress.watchdog import StallLimits, Watchdog
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_daemon.shards.lineage import parents_first
from kcl_daemon.worker import Worker

if TYPE_CHECKING:
    from kcl_daemon.fleet.client_version import SwitchVersion, VersionRow
    from kcl_daemon.fleet.many_streams import MultiStreamShardSync, MultiStreamTracker
    from kcl_daemon.fleet.run_end import RunEnd
    from kcl_daemon.fleet.snapshot_start import SnapshotStart
    from kcl_daemon.leases.layout import UnusableState
    from kcl_daemon.migrations.kcl2_taking import From2x
    from kcl_daemon.migrations.one_table_loops import TableMigrator
    from kcl_daemon.telemetry.helper_views import HelperSource
    from kcl_daemon.telemetry.snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class Adapters:
    """None: this system or the settings have none.

    Args:
        cpu_host: where other workers report the same CPU figure.
        kinesis_clock: has Kinesis' time of day; None: `clock`.
    """

    clock: Clock
    randomness: Randomness
    kinesis: Kinesis
    tables: Tables
    transactions: Transactions
    children: Children
    log: Log
    cpu: Cpu | None = None
    cpu_host: str | None = None
    kinesis_clock: Clock | None = None
    clock_ahead_s: Callable[[], float | None] = lambda: None
    fan_out: FanOut | None = None
    schemas: Schemas | None = None
    scan: ScanPort | None = None
    dead_letters: DeadLetters | None = None
    meters: Meters = NO_METERS
    cloudwatch: CloudWatch | None = None
    state_folder: StateFolder | None = None
    evidence: Evidence | None = None


def streams_of(
    settings: Settings, kinesis: Kinesis, clock: Clock, log: Log, *, table: Table
) -> SingleStreamTracker | MultiStreamTracker:
    if settings.reads_many:
        from kcl_daemon.fleet.many_streams import MultiStreamTracker

        return MultiStreamTracker(
            settings.streams,
            position=settings.initial_position,
            leases=partial(leases_of, table),
            kinesis=kinesis,
            clock=clock,
            log=log,
            check_images=settings.changes.check_images,
        )
    ref = settings.single_stream
    watch = StreamMonitor(kinesis=kinesis, stream=ref, clock=clock, log=log)
    return SingleStreamTracker(
        TrackedStream(ref, settings.initial_position, watch),
        kinesis=kinesis,
        log=log,
        check_images=settings.changes.check_images,
    )


def shard_sync_of(
    streams: SingleStreamTracker | MultiStreamTracker,
    settings: Settings,
    context: WorkerContext,
    *,
    table: Table,
    kinesis: Kinesis,
    leads: Callable[[], bool],
    snapshot: SnapshotStart | None = None,
) -> ShardSync | MultiStreamShardSync:
    def shard_sync(stream: TrackedStream) -> ShardSync:
        return ShardSync(
            context,
            table=table,
            kinesis=kinesis,
            stream=stream,
            settings=settings.shards,
            leads=leads,
            snapshot=snapshot if stream.ref.source.has_tables else None,
        )

    if isinstance(streams, SingleStreamTracker):
        return shard_sync(streams.stream)
    from kcl_daemon.fleet.many_streams import FormerStreamCleanup, MultiStreamShardSync

    former = FormerStreamCleanup(context, table=table, streams=streams, settings=settings.streams)
    return MultiStreamShardSync(
        context, table=table, streams=streams, shard_sync_of=shard_sync, former=former
    )


def stall_limits_of(settings: Settings, periods: Timings, helper: HelperSource = lambda: None) -> StallLimits:
    house = StallLimits()
    child, retrieval = settings.child, settings.retrieval
    idle_ms = retrieval.idle_time_between_reads_ms
    read_s = max(SLOWEST_AUTO_MS if idle_ms is None else idle_ms, retrieval.reduced_tps_within_ms) / 1000
    ending_s = (child.shutdown_grace_ms + 3 * child.exit_grace_ms) / 1000
    return StallLimits(
        usual_s=house.usual_s if settings.bundled is None else house.child_s,
        restart_s=house.restart_s + child.backoff_most_ms / 1000,
        kinesis_s=house.kinesis_s + 3 * read_s,
        answer_s=house.answer_s + 3 * read_s,
        lease_s=max(house.lease_s, ending_s + periods.handoff_s + periods.failover_s),
        child_stuck_s=None if child.stuck_timeout_ms is None else child.stuck_timeout_ms / 1000,
        store_trouble=partial(_trouble, helper),
    )


def _trouble(helper: HelperSource) -> str | None:
    if (view := helper()) is None:
        return None
    from kcl_daemon.telemetry.helper_views import LandingView

    return str(view.trouble) if isinstance(view, LandingView) and view.trouble is not None else None


def follow_stored_version(
    current: ClientVersion, stored: VersionRow | UnusableState | None
) -> SwitchVersion | UnusableState | None:
    """Only a worker that did not start in 3.x looks at the row again."""
    from kcl_daemon.migrations import kcl2_rules

    return kcl2_rules.follow_stored_version(current, stored)


def lease_settings_of(settings: Settings) -> LeaseSettings:
    """Relays start in no time."""
    return settings.leases if settings.bundled is None else replace(settings.leases, standby_ms=0)


class Application:
    def __init__(self, settings: Settings, adapters: Adapters, helper: HelperSource = lambda: None) -> None:
        log = adapters.log.bind(worker_id=settings.worker_id)
        self._settings = settings
        self._adapters = adapters
        self._helper = helper
        self._context = WorkerContext(
            worker_id=WorkerId(settings.worker_id),
            clock=adapters.clock,
            randomness=adapters.randomness,
            timings=timings(lease_settings_of(settings), settings.balance),
            log=log,
            meters=adapters.meters,
            service_clock=adapters.kinesis_clock,
        )
        self._incarnation = Incarnation(adapters.clock.wall_ms(), adapters.randomness.token())
        self._application_tables = ApplicationTables(
            adapters.tables, settings=settings.tables, clock=adapters.clock, log=log, meters=adapters.meters
        )
        self._tables = self._application_tables.tables
        self._routes = self._application_tables.routes
        self._malformed = MalformedRowLog(log)

    def leases_as_leader(self) -> Sequence[Lease] | None:
        """Of all shards, as they were read last; None: another worker leads, or some may be missing."""
        if self._from_2x is not None and self._from_2x.leader.leads:
            return self._from_2x.taker.complete or None
        known = self._elector.is_leader and not self._monitor.unreadable_leases
        return self._assigner.complete or None if known else None

    @cached_property
    def worker(self) -> Worker:
        return Worker(
            context=self._context,
            tables=self._application_tables,
            streams=self._streams,
            check_leases=partial(
                require_same_stream_mode, self._tables.leases, many=self._settings.reads_many
            ),
            own_stream=self._own_stream,
            start_pause_s=self._settings.leases.start_backoff_ms / 1000,
            consumers=self._consumers,
            renewer=self._renewer,
            elector=self._elector,
            reporter=self._reporter,
            discovery=self._discovery,
            settle_taking=self._settle_taking,
            leads_by_shuffle=self._leads_by_shuffle,
            switcher=self._switcher,
            versions=self._versions,
            shutdown_handoff=self._shutdown_handoff,
            monitor=self._monitor,
            predecessors=self._predecessors,
            duplicate_detector=self._duplicate_detector,
            watchdog=self._watchdog,
            clean_own_leases=self._clean_own_leases,
            election_may_change=self._settings.leases.client_version_config is not ClientVersionConfig.V3X,
            buffered_bytes=lambda: self._readers.reserved_bytes,
            capacity=self._capacity,
            coverage=self._coverage,
            run_end=self._run_end,
            evidence=self._adapters.evidence,
        )

    @cached_property
    def snapshots(self) -> Snapshots:
        from kcl_daemon.telemetry.snapshot import Snapshots

        return Snapshots(
            self.worker,
            application=self._settings.application_name,
            worker_id=self._context.worker_id,
            clock=self._context.clock,
            log=self._context.log,
            helper=self._helper,
            place=partial(location_of, self._settings, self._streams),
        )

    @cached_property
    def _streams(self) -> SingleStreamTracker | MultiStreamTracker:
        context = self._context
        return streams_of(
            self._settings, self._adapters.kinesis, context.clock, context.log, table=self._tables.leases
        )

    @cached_property
    def _own_stream(self) -> OwnStreamCheck | None:
        if isinstance(streams := self._streams, SingleStreamTracker):
            return OwnStreamCheck(self._tables, streams, self._settings.application_name)
        return None

    @cached_property
    def _readers(self) -> ReaderFactory:
        adapters = self._adapters
        return ReaderFactory(
            replace(self._context, clock=adapters.kinesis_clock or adapters.clock),
            self._settings,
            kinesis=adapters.kinesis,
            fan_out=adapters.fan_out,
            schemas=adapters.schemas,
        )

    @cached_property
    def _consumers(self) -> ConsumerContext:
        settings, adapters, context = self._settings, self._adapters, self._context
        return ConsumerContext(
            context=context,
            settings=settings,
            streams=self._streams,
            renewer=self._renewer,
            table=self._tables.leases,
            kinesis=adapters.kinesis,
            children=adapters.children,
            standby=self._standby,
            readers=self._readers,
            shard_finished=Broadcast(context.clock),
            on_leases_created=self._wake_assignment,
            on_lease_written=self._discovery.take_assigned,
            degraded=ShardCooldowns(context.clock, settings.failures.degraded_ms / 1000),
            dead_letters=adapters.dead_letters,
            on_fatal=lambda error: self.worker.fail(error),
            holds=HoldWatch(
                context,
                table=self._tables.coordinator,
                leads=lambda: self._elector.is_leader,
                leases=lambda: self._monitor.leases,
            ),
            run_end=self._run_end,
        )

    @cached_property
    def _standby(self) -> StandbyChildren:
        return StandbyChildren(
            self._context,
            children=self._adapters.children,
            streams=self._streams,
            table=self._tables.leases,
            exit_grace_s=self._settings.child.exit_grace_ms / 1000,
            lanes_of=self._settings.concurrency.lanes_of,
            is_read=lambda key: self.worker.is_read(key),
            on_ready=lambda key: self._discovery.standby_ready(key),
        )

    @cached_property
    def _run_end(self) -> RunEnd | None:
        settings, adapters = self._settings, self._adapters
        if settings.run_until is None:
            return None
        from kcl_daemon.fleet.run_end import RunEnd

        return RunEnd(
            self._context,
            until_ms=settings.run_until.time_ms,
            clock=adapters.kinesis_clock or adapters.clock,
            leases=self._tables.leases,
            workers=self._routes.reports,
            streams=self._streams,
            held=lambda: self._renewer.held,
            only=settings.shards.only,
        )

    def _wake_assignment(self) -> None:
        self._assigner.wake()
        if self._from_2x is not None:
            self._from_2x.taker.wake()
        self._discovery.wake()

    @cached_property
    def _renewer(self) -> LeaseRenewer:
        return LeaseRenewer(
            self._context, table=self._tables.leases, on_duplicate=self._lease_lost_to_duplicate
        )

    def _lease_lost_to_duplicate(self) -> None:
        self._duplicate_detector.lease_lost()
        self._reporter.wake()

    @cached_property
    def _monitor(self) -> FleetMonitor:
        return FleetMonitor(
            self._context,
            tables=self._tables,
            limits=self._settings.lease_limits,
            malformed=self._malformed,
            prioritize=partial(parents_first, max_depth=self._settings.shards.waiting_generations_most),
        )

    @cached_property
    def _notifier(self) -> AssignmentNotifier:
        return AssignmentNotifier(self._context, on_assigned=lambda: self._discovery.leases_assigned())

    @cached_property
    def _elector(self) -> Elector:
        return Elector(
            self._context,
            table=self._routes.lock,
            notifier=self._notifier,
            renewer=self._renewer,
            monitor=self._monitor,
            on_elected=self._elected,
            on_java_leader=lambda: self._reporter.wake(),
            on_holds=lambda notice: self._consumers.holds.noticed(notice),
        )

    def _elected(self) -> None:
        self._assigner.begin_term()
        self._capacity.begin_term()

    @cached_property
    def _capacity(self) -> CapacityWatch:
        level = self._settings.capacity
        return CapacityWatch(
            self._context,
            table=self._tables.coordinator,
            monitor=self._monitor,
            leads=lambda: self._elector.is_leader,
            targets=CapacityTargets(level.service_level_ms / 1000, level.scale_to_zero),
            unread=lambda: self._coverage.lasting_lines(),
        )

    @cached_property
    def _coverage(self) -> CoverageWatch:
        return CoverageWatch(
            self._context,
            self._monitor,
            leads=lambda: self._elector.is_leader,
            pauses=lambda: self._consumers.holds.holds,
        )

    @cached_property
    def _discovery(self) -> Discovery:
        return Discovery(
            self._context,
            table=self._tables.leases,
            renewer=self._renewer,
            malformed=self._malformed,
            leading=lambda: self._elector.is_leader,
            on_found=lambda held: self.worker.on_lease_found(held),
            notifier=self._notifier,
            standby=self._standby,
        )

    @cached_property
    def _watchdog(self) -> Watchdog:
        context = self._context
        return Watchdog(
            active_leases=ActiveLeases(),
            limits=stall_limits_of(self._settings, context.timings, self._helper),
            failover_s=context.timings.failover_s,
            clock=context.clock,
            log=context.log,
            retention_s=lambda lease: self._streams.of(lease).watch.retention_s,
            clock_ahead_s=self._adapters.clock_ahead_s,
        )

    def _shard_sync(self, leads: Callable[[], bool]) -> ShardSync | MultiStreamShardSync:
        return shard_sync_of(
            self._streams,
            self._settings,
            self._context,
            table=self._tables.leases,
            kinesis=self._adapters.kinesis,
            leads=leads,
            snapshot=self._snapshot_start,
        )

    @cached_property
    def _snapshot_start(self) -> SnapshotStart | None:
        changes, scan = self._settings.changes, self._adapters.scan
        if scan is None or not changes.snapshot:
            return None
        from kcl_daemon.fleet.snapshot_start import SnapshotStart

        coordinator, workers = self._tables.coordinator, self._tables.worker_metrics
        return SnapshotStart(self._context, table=coordinator, workers=workers, scan=scan, settings=changes)

    @cached_property
    def _assigner(self) -> Assigner:
        discovery = self._discovery

        def seen(leases: list[Lease]) -> None:
            discovery.offer(leases)
            self._capacity.assigned()

        return Assigner(
            self._context,
            tables=self._tables,
            monitor=self._monitor,
            elector=self._elector,
            shard_sync=self._shard_sync(lambda: self._elector.is_leader),
            strategies=assignment_strategies(self._settings),
            stale_worker_s=self._settings.balance.stale_worker_s,
            listener=AssignmentListener(
                seen,
                discovery.take_assigned,
                self._watchdog.active_leases.decided,
                self._renewer.holds,
                self._coverage.polled,
            ),
        )

    @cached_property
    def _as_in_2x(self) -> From2x:
        from kcl_daemon.migrations.kcl2_taking import From2x

        return From2x(
            context=self._context,
            settings=self._settings.leases,
            tables=self._tables,
            renewer=self._renewer,
            monitor=self._monitor,
            malformed=self._malformed,
            shard_sync_of=self._shard_sync,
            on_found=lambda held: self.worker.on_lease_found(held),
            on_upgraded=lambda: self._versions.wake(),
        )

    @property
    def _from_2x(self) -> From2x | None:
        return self.__dict__.get("_as_in_2x")

    def _leads_by_shuffle(self) -> bool:
        return self._from_2x is not None and self._from_2x.leader.leads

    def _forget_shuffle(self) -> None:
        if self._from_2x is not None:
            self._from_2x.leader.forget()

    async def _settle_taking(self) -> None:
        if self._from_2x is not None:
            await self._from_2x.taker.settle()

    @cached_property
    def _predecessors(self) -> Predecessors:
        return Predecessors(
            self._context,
            folder=self._adapters.state_folder,
            tables=self._tables,
            mine=self._incarnation,
            elector=self._elector,
            held=lambda: self._monitor.limits.of(self._context.worker_id, *self._renewer.leases),
            on_taken=self._discovery.take_assigned,
            on_same_id=self._discovery.wake,
        )

    @cached_property
    def _duplicate_detector(self) -> DuplicateWorkerDetector:
        return DuplicateWorkerDetector(
            self._context,
            tables=self._tables,
            mine=self._incarnation,
            predecessors=self._predecessors,
            on_newer_worker=lambda error: self.worker.fail(error),
            refuses=self._settings.sole_worker,
        )

    @cached_property
    def _sampler(self) -> CpuSampler | None:
        balance, context = self._settings.balance, self._context
        if self._adapters.cpu is None or balance.disable_worker_metrics:
            return None
        return CpuSampler(
            cpu=self._adapters.cpu,
            clock=context.clock,
            randomness=context.randomness,
            log=context.log,
            capture_s=context.timings.capture_s,
            max_averages=balance.persisted_averages,
            meters=context.meters,
        )

    @cached_property
    def _reporter(self) -> Reporter:
        sampler, elector = self._sampler, self._elector
        reporter = Reporter(
            self._context,
            table=self._routes.reports,
            cpu_averages=None if sampler is None else sampler.averages,
            cpu_host=None if sampler is None else self._adapters.cpu_host,
            java_leader=lambda: elector.java_leader,
            incarnation=self._incarnation,
            on_other=self._duplicate_detector.is_seen,
            run_until_ms=lambda: None if self._run_end is None else self._run_end.until_ms,
        )
        reporter.load = LoadReport(self._context, self._watchdog).text
        return reporter

    @cached_property
    def _migrator(self) -> TableMigrator:
        from kcl_daemon.migrations.one_table_loops import TableMigrator

        return TableMigrator(
            self._context,
            routes=self._routes,
            settings=self._settings.tables,
            elector=self._elector,
            monitor=self._monitor,
            transactions=self._adapters.transactions,
            report=self._reporter.report,
            may_drive=lambda: self._versions.version is ClientVersion.V3X,
        )

    async def _migrate(self) -> None:
        if self._routes.status is not TableStatus.COMPLETE:
            await self._migrator.run()

    @cached_property
    def _switcher(self) -> ComponentSwitcher:
        sampler = self._sampler
        tasks = SwitchedTasks(
            reporter=PausableTask(self._reporter.run),
            sampler=None if sampler is None else PausableTask(sampler.run),
            owner_index=PausableTask(self._application_tables.complete_index),
            discovery=PausableTask(self._discovery.run),
            taker=PausableTask(lambda: self._as_in_2x.taker.run()),
            elector=PausableTask(self._elector.run),
            assigner=PausableTask(self._assigner.run),
            upgrader=PausableTask(lambda: self._as_in_2x.upgrader.run()),
            migrator=PausableTask(self._migrate),
        )
        return ComponentSwitcher(
            tasks, renewer=self._renewer, elector=self._elector, forget_shuffle=self._forget_shuffle
        )

    @cached_property
    def _versions(self) -> ClientVersionMonitor:
        return ClientVersionMonitor(
            self._context,
            table=self._tables.coordinator,
            config=self._settings.leases.client_version_config,
            switcher=self._switcher,
            follow=follow_stored_version,
        )

    @cached_property
    def _shutdown_handoff(self) -> ShutdownHandoff:
        chosen = assignment_strategies(self._settings)
        return ShutdownHandoff(
            self._context,
            renewer=self._renewer,
            monitor=self._monitor,
            elector=self._elector,
            place=chosen.place if chosen.graceful else None,
            grace_s=self._settings.child.shutdown_grace_ms / 1000,
        )

    async def _clean_own_leases(self) -> None:
        elector = self._elector
        await clean_own_leases(
            self._context,
            table=self._tables.leases,
            finished=self._own_finished,
            leading=lambda: elector.is_leader or self._leads_by_shuffle(),
            settings=self._settings.shards,
        )

    def _own_finished(self) -> set[LeaseKey]:
        held = self._renewer.held.values()
        return {*self._discovery.finished, *(each.key for each in held if each.lease.is_finished)}


def build(settings: Settings, adapters: Adapters) -> Worker:
    return Application(settings, adapters).worker
