"""The only place that builds the object graph: settings and adapters in, a worker out.

Building calls nothing outside the process; `Worker.run` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kcl_daemon.config.balance import ClientVersionConfig
from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.context import ConsumerContext, ShardCooldowns
from kcl_daemon.cpu.sources import CpuSampler
from kcl_daemon.fleet.assigner import Assigner, AssignmentListener, StaleWorkerReaper, assignment_strategies
from kcl_daemon.fleet.context import Broadcast, Timings, WorkerContext, timings
from kcl_daemon.fleet.discovery import AssignmentNotifier, Discovery
from kcl_daemon.fleet.elector import ElectionInputs, Elector
from kcl_daemon.fleet.lease_cleanup import FormerStreamCleanup, OwnLeaseCleanup
from kcl_daemon.fleet.lease_renewer import LeaseRenewer, MalformedRowLog
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.reporter import Reporter
from kcl_daemon.fleet.shard_sync import MultiStreamShardSync, ShardSync
from kcl_daemon.fleet.shutdown_handoff import ShutdownHandoff
from kcl_daemon.fleet.streams import (
    MultiStreamTracker,
    SingleStreamTracker,
    StreamMonitor,
    TrackedStream,
    leases_of,
    require_same_stream_mode,
)
from kcl_daemon.fleet.worker_identity import DuplicateWorkerDetector, Predecessors
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import Incarnation
from kcl_daemon.migrations.kcl2_loops import (
    ClientVersionMonitor,
    ComponentSwitcher,
    PausableTask,
    ShuffleLeader,
    SwitchedTasks,
    Upgrader,
)
from kcl_daemon.migrations.kcl2_rules import ClientVersion
from kcl_daemon.migrations.kcl2_taking import LeaseTaker, TakingOptions
from kcl_daemon.migrations.one_table_loops import MigrationResources, TableMigrator
from kcl_daemon.migrations.tables import ApplicationTables
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
    Schemas,
    StateFolder,
    StreamRef,
    Table,
    Tables,
    Transactions,
)
from kcl_daemon.progress.progress import ActiveLeases
from kcl_daemon.progress.watchdog import StallLimits, Watchdog
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_daemon.shards.lineage import parents_first
from kcl_daemon.telemetry.snapshot import Snapshots, SparkSource, no_spark
from kcl_daemon.worker import GaugeInputs, Gauges, Worker, WorkerLoops


@dataclass(frozen=True, slots=True)
class Adapters:
    """What connects the worker to the world; None: this system or the settings have none.

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
    fan_out: FanOut | None = None
    schemas: Schemas | None = None
    dead_letters: DeadLetters | None = None
    meters: Meters = NO_METERS
    cloudwatch: CloudWatch | None = None
    state_folder: StateFolder | None = None


@dataclass(frozen=True, slots=True)
class AppContext:
    context: WorkerContext
    incarnation: Incarnation
    settings: Settings
    adapters: Adapters
    tables: ApplicationTables
    malformed: MalformedRowLog
    worker: Worker
    streams: SingleStreamTracker | MultiStreamTracker
    readers: ReaderFactory


def streams_of(
    settings: Settings, kinesis: Kinesis, clock: Clock, log: Log, *, table: Table
) -> SingleStreamTracker | MultiStreamTracker:
    """With many streams, the lease table says which have leases."""
    if settings.reads_many:
        return MultiStreamTracker(
            settings.streams,
            position=settings.initial_position,
            leases=partial(leases_of, table),
            kinesis=kinesis,
            clock=clock,
            log=log,
        )
    ref = StreamRef(settings.stream_name, settings.stream_arn)
    watch = StreamMonitor(kinesis=kinesis, stream=ref, clock=clock, log=log)
    return SingleStreamTracker(TrackedStream(ref, settings.initial_position, watch), kinesis=kinesis, log=log)


def shard_sync_of(
    streams: SingleStreamTracker | MultiStreamTracker,
    settings: Settings,
    context: WorkerContext,
    *,
    table: Table,
    kinesis: Kinesis,
) -> ShardSync | MultiStreamShardSync:
    def shard_sync(stream: TrackedStream) -> ShardSync:
        return ShardSync(
            context,
            table=table,
            kinesis=kinesis,
            stream=stream.ref,
            position=stream.position,
            settings=settings.shards,
            watch=stream.watch,
        )

    if isinstance(streams, SingleStreamTracker):
        return shard_sync(streams.stream)
    former = FormerStreamCleanup(
        table=table,
        streams=streams,
        settings=settings.streams,
        clock=context.clock,
        log=context.log,
        meters=context.meters,
    )
    return MultiStreamShardSync(
        table=table,
        streams=streams,
        shard_sync_of=shard_sync,
        former=former,
        log=context.log,
        meters=context.meters,
    )


def versions_of(common: AppContext, switcher: ComponentSwitcher) -> ClientVersionMonitor:
    return ClientVersionMonitor(
        common.context,
        table=common.adapters.tables.coordinator,
        config=common.settings.leases.client_version_config,
        switcher=switcher,
    )


def migrator_of(
    common: AppContext, monitor: FleetMonitor, elector: Elector, reporter: Reporter
) -> TableMigrator:
    means = MigrationResources(
        monitor=monitor, transactions=common.adapters.transactions, report=reporter.report
    )
    return TableMigrator(
        common.context,
        routes=common.tables.routes,
        settings=common.settings.tables,
        elector=elector,
        means=means,
    )


def reporter_of(
    common: AppContext, elector: Elector, on_other: Callable[[Incarnation], bool]
) -> tuple[Reporter, CpuSampler | None]:
    sampler = sampler_of(common)
    reporter = Reporter(
        common.context,
        table=common.tables.routes.reports,
        cpu_averages=None if sampler is None else sampler.averages,
        cpu_host=None if sampler is None else common.adapters.cpu_host,
        java_leader=lambda: elector.java_leader,
        incarnation=common.incarnation,
        on_other=on_other,
    )
    elector.on_java_leader(reporter.wake)
    return reporter, sampler


def sampler_of(common: AppContext) -> CpuSampler | None:
    """None if there is no CPU figure, or none is wanted."""
    adapters, balance = common.adapters, common.settings.balance
    if adapters.cpu is None or balance.disable_worker_metrics:
        return None
    return CpuSampler(
        cpu=adapters.cpu,
        clock=adapters.clock,
        randomness=adapters.randomness,
        log=common.context.log,
        capture_s=common.context.timings.capture_s,
        max_averages=balance.persisted_averages,
        meters=adapters.meters,
    )


def stall_limits_of(settings: Settings, periods: Timings) -> StallLimits:
    """Wider limits where the settings make something slower."""
    house = StallLimits()
    child, retrieval = settings.child, settings.retrieval
    read_s = max(retrieval.idle_time_between_reads_ms, retrieval.reduced_tps_within_ms) / 1000
    ending_s = (child.shutdown_grace_ms + 3 * child.exit_grace_ms) / 1000
    return StallLimits(
        restart_s=house.restart_s + child.backoff_most_ms / 1000,
        kinesis_s=house.kinesis_s + 3 * read_s,
        answer_s=house.answer_s + 3 * read_s,
        lease_s=max(house.lease_s, ending_s + periods.handoff_s + periods.failover_s),
        child_stuck_s=None if child.stuck_timeout_ms is None else child.stuck_timeout_ms / 1000,
    )


def watchdog_of(settings: Settings, periods: Timings, clock: Clock, log: Log) -> Watchdog:
    return Watchdog(
        active_leases=ActiveLeases(),
        limits=stall_limits_of(settings, periods),
        failover_s=periods.failover_s,
        clock=clock,
        log=log,
    )


def predecessors_of(
    common: AppContext, renewer: LeaseRenewer, elector: Elector, discovery: Discovery
) -> Predecessors:
    most = common.settings.leases.max_leases_for_worker
    return Predecessors(
        common.context,
        folder=common.adapters.state_folder,
        tables=common.adapters.tables,
        mine=common.incarnation,
        elector=elector,
        room=lambda: most - len(renewer.held),
        on_taken=discovery.take_assigned,
        on_same_id=discovery.wake,
    )


def duplicate_detector_of(common: AppContext, predecessors: Predecessors) -> DuplicateWorkerDetector:
    return DuplicateWorkerDetector(
        common.context,
        tables=common.adapters.tables,
        mine=common.incarnation,
        predecessors=predecessors,
        on_newer_worker=common.worker.fail,
    )


def lost_to_duplicate(duplicate_detector: DuplicateWorkerDetector, reporter: Reporter) -> None:
    """Count the loss, and report now: that reads our worker row."""
    duplicate_detector.lease_lost()
    reporter.wake()


__all__ = ["Adapters", "build"]


def build(settings: Settings, adapters: Adapters) -> Worker:
    log = adapters.log.bind(worker_id=settings.worker_id)
    meters = adapters.meters
    tables = ApplicationTables(
        adapters.tables, settings=settings.tables, clock=adapters.clock, log=log, meters=meters
    )
    adapters = replace(adapters, tables=tables.tables)
    streams = streams_of(settings, adapters.kinesis, adapters.clock, log, table=adapters.tables.leases)
    worker = Worker(
        tables=tables,
        streams=streams,
        polls_leases=partial(require_same_stream_mode, adapters.tables.leases, many=settings.reads_many),
        clock=adapters.clock,
        log=log,
        start_pause_s=settings.leases.start_backoff_ms / 1000,
        meters=meters,
    )
    context = WorkerContext(
        worker_id=WorkerId(settings.worker_id),
        clock=adapters.clock,
        randomness=adapters.randomness,
        timings=timings(settings.leases, settings.balance),
        log=log,
        meters=meters,
    )
    common = AppContext(
        context=context,
        incarnation=Incarnation(adapters.clock.wall_ms(), adapters.randomness.token()),
        settings=settings,
        adapters=adapters,
        tables=tables,
        malformed=MalformedRowLog(log),
        worker=worker,
        streams=streams,
        readers=_readers(settings, adapters, log),
    )
    loops, wake = _loops(common)
    parts = ConsumerContext(
        settings=settings,
        timings=common.context.timings,
        streams=streams,
        renewer=loops.renewer,
        table=adapters.tables.leases,
        kinesis=adapters.kinesis,
        children=adapters.children,
        clock=adapters.clock,
        randomness=adapters.randomness,
        log=log,
        readers=common.readers,
        meters=meters,
        shard_finished=Broadcast(adapters.clock),
        on_leases_created=wake,
        on_lease_written=loops.discovery.take_assigned,
        degraded=ShardCooldowns(adapters.clock, settings.failures.degraded_ms / 1000),
        dead_letters=adapters.dead_letters,
        on_fatal=worker.fail,
    )
    worker.attach(loops, parts)
    return worker


def _readers(settings: Settings, adapters: Adapters, log: Log) -> ReaderFactory:
    return ReaderFactory(
        settings,
        kinesis=adapters.kinesis,
        fan_out=adapters.fan_out,
        clock=adapters.kinesis_clock or adapters.clock,
        randomness=adapters.randomness,
        log=log,
        schemas=adapters.schemas,
        meters=adapters.meters,
    )


def _loops(common: AppContext) -> tuple[WorkerLoops, Callable[[], None]]:
    """All loops, and the wakeup for leases without an owner."""
    tables, clock, log = common.adapters.tables, common.adapters.clock, common.context.log
    renewer = _renewer(common)
    monitor = _monitor(common)
    notifier = AssignmentNotifier(clock=clock, timings=common.context.timings)
    elector = _elector(common, renewer, monitor, notifier)
    discovery = _discovery(common, renewer, elector, notifier)
    watchdog = watchdog_of(common.settings, common.context.timings, clock, log)
    assigner = _assigner(common, monitor, elector, discovery, watchdog.active_leases)
    shuffle = ShuffleLeader(worker_id=common.context.worker_id, clock=clock, log=log)
    taker = _taker(common, renewer, shuffle)
    predecessors = predecessors_of(common, renewer, elector, discovery)
    duplicate_detector = duplicate_detector_of(common, predecessors)
    reporter, sampler = reporter_of(common, elector, duplicate_detector.is_seen)
    renewer.on_namesake = partial(lost_to_duplicate, duplicate_detector, reporter)
    upgrader = Upgrader(
        common.context,
        tables=tables,
        monitor=monitor,
        leader=shuffle,
    )
    migrator = migrator_of(common, monitor, elector, reporter)
    tasks = SwitchedTasks(
        reporter=PausableTask(reporter.run),
        sampler=None if sampler is None else PausableTask(sampler.run),
        index=PausableTask(common.tables.complete_index),
        discovery=PausableTask(discovery.run),
        taker=PausableTask(taker.run),
        elector=PausableTask(elector.run),
        assigner=PausableTask(assigner.run),
        upgrader=PausableTask(upgrader.run),
        migrator=PausableTask(migrator.run),
    )
    switcher = ComponentSwitcher(tasks, renewer=renewer, elector=elector, shuffle=shuffle)
    versions = versions_of(common, switcher)
    upgrader.on_upgraded(versions.wake)
    migrator.only_when(lambda: versions.version is ClientVersion.V3X)

    def wake() -> None:
        """Only those of the current mode run."""
        assigner.wake()
        taker.wake()
        discovery.wake()

    watched = GaugeInputs(renewer, elector, shuffle, versions, watchdog)
    loops = WorkerLoops(
        renewer=renewer,
        elector=elector,
        reporter=reporter,
        discovery=discovery,
        taker=taker,
        switcher=switcher,
        versions=versions,
        shutdown=_shutdown_handoff(common, renewer, monitor, elector),
        monitor=monitor,
        predecessors=predecessors,
        duplicate_detector=duplicate_detector,
        watchdog=watchdog,
        own_cleanup=_own_cleanup(common, discovery, watched),
        gauges=_gauges(common, watched),
    )
    return loops, wake


def _renewer(common: AppContext) -> LeaseRenewer:
    return LeaseRenewer(
        common.context,
        table=common.adapters.tables.leases,
    )


def _own_cleanup(common: AppContext, discovery: Discovery, watched: GaugeInputs) -> OwnLeaseCleanup:
    def finished() -> set[LeaseKey]:
        held = watched.renewer.held.values()
        return {*discovery.finished, *(each.key for each in held if each.lease.is_finished)}

    return OwnLeaseCleanup(
        table=common.adapters.tables.leases,
        worker_id=common.context.worker_id,
        finished=finished,
        leading=lambda: watched.elector.is_leader or watched.shuffle.leads,
        settings=common.settings.shards,
        clock=common.adapters.clock,
        log=common.context.log,
    )


def _gauges(common: AppContext, watched: GaugeInputs) -> Gauges:
    return Gauges(
        watched,
        may_change=common.settings.leases.client_version_config is not ClientVersionConfig.V3X,
        buffered=lambda: common.readers.reserved_bytes,
        period_s=common.context.timings.renew_s,
        meters=common.adapters.meters,
        clock=common.adapters.clock,
    )


def _monitor(common: AppContext) -> FleetMonitor:
    max_depth = common.settings.shards.waiting_generations_most
    return FleetMonitor(
        worker_id=common.context.worker_id,
        clock=common.context.clock,
        timings=common.context.timings,
        tables=common.adapters.tables,
        max_leases_for_worker=common.settings.leases.max_leases_for_worker,
        malformed=common.malformed,
        prioritize=list if max_depth is None else partial(parents_first, max_depth=max_depth),
    )


def _elector(
    common: AppContext, renewer: LeaseRenewer, monitor: FleetMonitor, notifier: AssignmentNotifier
) -> Elector:
    elector = Elector(
        common.context,
        table=common.tables.routes.lock,
        notifier=notifier,
    )
    elector.set_inputs(
        ElectionInputs(
            held=lambda: renewer.activity,
            alone=lambda: monitor.is_alone,
            calm=lambda: monitor.is_idle,
            deputy=lambda: monitor.deputy,
            young=lambda: renewer.is_young,
        )
    )
    return elector


def _shutdown_handoff(
    common: AppContext, renewer: LeaseRenewer, monitor: FleetMonitor, elector: Elector
) -> ShutdownHandoff:
    chosen = assignment_strategies(common.settings)
    return ShutdownHandoff(
        common.context,
        renewer=renewer,
        monitor=monitor,
        elector=elector,
        place=chosen.place if chosen.graceful else None,
        grace_s=common.settings.child.shutdown_grace_ms / 1000,
    )


def _discovery(
    common: AppContext, renewer: LeaseRenewer, elector: Elector, notifier: AssignmentNotifier
) -> Discovery:
    return Discovery(
        common.context,
        table=common.adapters.tables.leases,
        renewer=renewer,
        malformed=common.malformed,
        leading=lambda: elector.is_leader,
        on_found=common.worker.on_lease_found,
        notifier=notifier,
    )


def _shard_sync(common: AppContext) -> ShardSync | MultiStreamShardSync:
    """Called once per way to lead (`Assigner`, `LeaseTaker`): each has its own state."""
    adapters = common.adapters
    return shard_sync_of(
        common.streams,
        common.settings,
        common.context,
        table=adapters.tables.leases,
        kinesis=adapters.kinesis,
    )


def _assigner(
    common: AppContext,
    monitor: FleetMonitor,
    elector: Elector,
    discovery: Discovery,
    active_leases: ActiveLeases,
) -> Assigner:
    tables, clock, log = common.adapters.tables, common.adapters.clock, common.context.log
    return Assigner(
        common.context,
        table=tables.leases,
        monitor=monitor,
        elector=elector,
        shard_sync=_shard_sync(common),
        reaper=StaleWorkerReaper(
            table=tables.worker_metrics, stale_s=common.settings.balance.stale_worker_s, clock=clock, log=log
        ),
        strategies=assignment_strategies(common.settings),
        listener=AssignmentListener(discovery.offer, discovery.take_assigned, active_leases.decided),
    )


def _taker(common: AppContext, renewer: LeaseRenewer, shuffle: ShuffleLeader) -> LeaseTaker:
    leases = common.settings.leases
    options = TakingOptions(
        failover_s=common.context.timings.failover_s,
        max_leases_for_worker=leases.max_leases_for_worker,
        max_leases_to_steal=leases.max_leases_to_steal,
        priority=leases.priority_assignment,
    )
    return LeaseTaker(
        common.context,
        table=common.adapters.tables.leases,
        renewer=renewer,
        leader=shuffle,
        shard_sync=_shard_sync(common),
        options=options,
        malformed=common.malformed,
        on_found=common.worker.on_lease_found,
    )


_ARN_COLONS: Final = 5


@dataclass(frozen=True, slots=True)
class Application:
    worker: Worker
    snapshots: Snapshots


def build_application(settings: Settings, adapters: Adapters, spark: SparkSource = no_spark) -> Application:
    """`build`, with snapshots that include the Spark engine."""
    worker = build(settings, adapters)
    snapshots = Snapshots(
        worker,
        application=settings.application_name,
        worker_id=WorkerId(settings.worker_id),
        clock=adapters.clock,
        log=adapters.log.bind(worker_id=settings.worker_id),
        spark=spark,
        place=partial(location_of, settings, worker),
    )
    return Application(worker, snapshots)


def location_of(settings: Settings, worker: Worker) -> str:
    """`stream orders in eu-west-1, account 123456789012`."""
    streams = worker.streams
    arn = streams.arn if isinstance(streams, SingleStreamTracker) else None
    if arn is not None and arn.count(":") >= _ARN_COLONS:
        _, _, _, of_arn, account, name = arn.split(":", _ARN_COLONS)
        return f"stream {name.removeprefix('stream/')} in {of_arn}, account {account}"
    names = ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name
    region = settings.endpoints.region_name
    where = "" if region is None else f" in {region}"
    return f"{'streams' if settings.streams.texts else 'stream'} {names}{where}"
