"""The only constructor of the object graph: settings and adapters in, a worker out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kcl_daemon.app_progress import watchdog_of
from kcl_daemon.app_streams import streams_of, syncer_of
from kcl_daemon.assignment.taking import TakingOptions
from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.assigner import Assigner
from kcl_daemon.coordination.bulletin import Bulletin
from kcl_daemon.coordination.discovery import Discovery
from kcl_daemon.coordination.elector import Elector, Surroundings
from kcl_daemon.coordination.farewell import Farewell
from kcl_daemon.coordination.gate import Gate
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.malformed import MalformedRows
from kcl_daemon.coordination.many_streams import ManyStreams
from kcl_daemon.coordination.many_syncer import ManySyncer
from kcl_daemon.coordination.nudge import Signal
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.reporter import Reporter
from kcl_daemon.coordination.shuffle import ShuffleLeader
from kcl_daemon.coordination.strategies import strategies
from kcl_daemon.coordination.streams import OneStream, refuse_other_kind
from kcl_daemon.coordination.sweeper import Sweeper
from kcl_daemon.coordination.switchboard import Gates, Switchboard
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.coordination.table_migrator import Means, TableMigrator
from kcl_daemon.coordination.tables import ApplicationTables
from kcl_daemon.coordination.taker import Taker
from kcl_daemon.coordination.timings import Timings, timings
from kcl_daemon.coordination.upgrader import Upgrader
from kcl_daemon.coordination.versions import Versions
from kcl_daemon.cpu.sampler import CpuSampler
from kcl_daemon.leases.client_version import ClientVersion
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import (
    Children,
    Clock,
    Cpu,
    Kinesis,
    Log,
    Randomness,
    Tables,
    Transactions,
)
from kcl_daemon.ports_fan_out import FanOut
from kcl_daemon.ports_schemas import Schemas
from kcl_daemon.progress.board import Board
from kcl_daemon.retrieval.readers import Readers
from kcl_daemon.shards.lineage import parents_first
from kcl_daemon.worker.worker import Loops, Worker


@dataclass(frozen=True, slots=True)
class Adapters:
    """The world: real, or simulated.

    Args:
        cpu: None where this system has no figure to go by.
        fan_out: None where shards can only be polled.
        schemas: None where no schema registry is asked.
    """

    clock: Clock
    randomness: Randomness
    kinesis: Kinesis
    tables: Tables
    transactions: Transactions
    children: Children
    log: Log
    cpu: Cpu | None = None
    fan_out: FanOut | None = None
    schemas: Schemas | None = None


def build(settings: Settings, adapters: Adapters) -> Worker:
    """A worker that is ready to run. Touches nothing yet."""
    log = adapters.log.bind(worker_id=settings.worker_id)
    tables = ApplicationTables(adapters.tables, settings=settings.tables, clock=adapters.clock, log=log)
    adapters = replace(adapters, tables=tables.tables)
    streams = streams_of(settings, adapters.kinesis, adapters.clock, log)
    worker = Worker(
        tables=tables,
        streams=streams,
        looks_at_leases=partial(refuse_other_kind, adapters.tables.leases, many=settings.reads_many),
        clock=adapters.clock,
        log=log,
        start_pause_s=settings.leases.start_backoff_ms / 1000,
    )
    common = _Common(
        me=WorkerId(settings.worker_id),
        settings=settings,
        adapters=adapters,
        tables=tables,
        periods=timings(settings.leases, settings.balance),
        log=log,
        malformed=MalformedRows(log),
        worker=worker,
        streams=streams,
    )
    loops, nudge = _loops(common)
    parts = ConsumerParts(
        settings=settings,
        timings=common.periods,
        streams=streams,
        keeper=loops.keeper,
        table=adapters.tables.leases,
        kinesis=adapters.kinesis,
        children=adapters.children,
        clock=adapters.clock,
        randomness=adapters.randomness,
        log=log,
        readers=_readers(settings, adapters, log),
        shard_finished=Signal(adapters.clock),
        on_leases_created=nudge,
        on_lease_written=loops.discovery.take_assigned,
    )
    worker.equip(loops, parts)
    return worker


def _readers(settings: Settings, adapters: Adapters, log: Log) -> Readers:
    return Readers(
        settings,
        kinesis=adapters.kinesis,
        fan_out=adapters.fan_out,
        clock=adapters.clock,
        randomness=adapters.randomness,
        log=log,
        schemas=adapters.schemas,
    )


@dataclass(frozen=True, slots=True)
class _Common:
    """What most parts are made from."""

    me: WorkerId
    settings: Settings
    adapters: Adapters
    tables: ApplicationTables
    periods: Timings
    log: Log
    malformed: MalformedRows
    worker: Worker
    streams: OneStream | ManyStreams


def _loops(common: _Common) -> tuple[Loops, Callable[[], None]]:
    """All loops, and what to call when there are leases that nobody has."""
    tables, clock, log = common.adapters.tables, common.adapters.clock, common.log
    keeper = LeaseKeeper(
        table=tables.leases,
        worker_id=common.me,
        clock=clock,
        timings=common.periods,
        log=log,
        randomness=common.adapters.randomness,
    )
    overview = _overview(common)
    bulletin = Bulletin(clock=clock, timings=common.periods)
    elector = _elector(common, keeper, overview, bulletin)
    discovery = _discovery(common, keeper, elector, bulletin)
    watchdog = watchdog_of(common.settings, common.periods, clock, log)
    assigner = _assigner(common, overview, elector, discovery, watchdog.board)
    shuffle = ShuffleLeader(worker_id=common.me, clock=clock, log=log)
    taker = _taker(common, keeper, shuffle)
    reporter, sampler = _reporter(common)
    upgrader = Upgrader(
        tables=tables, overview=overview, leader=shuffle, worker_id=common.me, clock=clock, log=log
    )
    migrator = _migrator(common, overview, elector, reporter)
    gates = Gates(
        reporter=Gate(reporter.run),
        sampler=None if sampler is None else Gate(sampler.run),
        index=Gate(common.tables.complete_index),
        discovery=Gate(discovery.run),
        taker=Gate(taker.run),
        elector=Gate(elector.run),
        assigner=Gate(assigner.run),
        upgrader=Gate(upgrader.run),
        migrator=Gate(migrator.run),
    )
    switchboard = Switchboard(gates, keeper=keeper, elector=elector, shuffle=shuffle)
    versions = _versions(common, switchboard)
    upgrader.on_upgraded(versions.nudge)
    migrator.only_when(lambda: versions.version is ClientVersion.V3X)

    def nudge() -> None:
        """Whichever of them runs now does something about it."""
        assigner.nudge()
        taker.nudge()
        discovery.nudge()

    loops = Loops(
        keeper=keeper,
        elector=elector,
        reporter=reporter,
        discovery=discovery,
        taker=taker,
        switchboard=switchboard,
        versions=versions,
        farewell=_farewell(common, keeper, overview, elector),
        overview=overview,
        watchdog=watchdog,
    )
    return loops, nudge


def _overview(common: _Common) -> Overview:
    depth_most = common.settings.shards.waiting_generations_most
    return Overview(
        worker_id=common.me,
        tables=common.adapters.tables,
        max_leases_for_worker=common.settings.leases.max_leases_for_worker,
        clock=common.adapters.clock,
        timings=common.periods,
        malformed=common.malformed,
        prioritize=list if depth_most is None else partial(parents_first, depth_most=depth_most),
    )


def _elector(common: _Common, keeper: LeaseKeeper, overview: Overview, bulletin: Bulletin) -> Elector:
    elector = Elector(
        table=common.tables.routes.lock,
        worker_id=common.me,
        clock=common.adapters.clock,
        randomness=common.adapters.randomness,
        timings=common.periods,
        log=common.log,
        bulletin=bulletin,
    )
    elector.surrounded_by(
        Surroundings(
            held=lambda: keeper.activity,
            alone=lambda: overview.is_alone,
            calm=lambda: overview.is_calm,
            deputy=lambda: overview.deputy,
            young=lambda: keeper.is_young,
        )
    )
    return elector


def _farewell(common: _Common, keeper: LeaseKeeper, overview: Overview, elector: Elector) -> Farewell:
    chosen = strategies(common.settings)
    return Farewell(
        worker_id=common.me,
        keeper=keeper,
        overview=overview,
        elector=elector,
        place=chosen.place if chosen.graceful else None,
        grace_s=common.settings.child.shutdown_grace_ms / 1000,
        clock=common.adapters.clock,
        timings=common.periods,
        log=common.log,
    )


def _discovery(common: _Common, keeper: LeaseKeeper, elector: Elector, bulletin: Bulletin) -> Discovery:
    return Discovery(
        table=common.adapters.tables.leases,
        worker_id=common.me,
        keeper=keeper,
        clock=common.adapters.clock,
        timings=common.periods,
        log=common.log,
        malformed=common.malformed,
        leading=lambda: elector.is_leader,
        on_found=common.worker.lease_found,
        bulletin=bulletin,
    )


def _syncer(common: _Common) -> Syncer | ManySyncer:
    """One for each of the two ways to lead: they do not share what they remember."""
    adapters = common.adapters
    return syncer_of(
        common.streams,
        common.settings,
        table=adapters.tables.leases,
        kinesis=adapters.kinesis,
        clock=adapters.clock,
        log=common.log,
    )


def _assigner(
    common: _Common, overview: Overview, elector: Elector, discovery: Discovery, board: Board
) -> Assigner:
    tables, clock, log = common.adapters.tables, common.adapters.clock, common.log
    return Assigner(
        table=tables.leases,
        overview=overview,
        elector=elector,
        syncer=_syncer(common),
        sweeper=Sweeper(
            table=tables.worker_metrics, stale_s=common.settings.balance.stale_worker_s, clock=clock, log=log
        ),
        strategies=strategies(common.settings),
        clock=clock,
        timings=common.periods,
        log=log,
        on_seen=discovery.offer,
        on_assigned=discovery.take_assigned,
        on_decided=board.decided,
    )


def _taker(common: _Common, keeper: LeaseKeeper, shuffle: ShuffleLeader) -> Taker:
    leases = common.settings.leases
    options = TakingOptions(
        failover_s=common.periods.failover_s,
        max_leases_for_worker=leases.max_leases_for_worker,
        max_leases_to_steal=leases.max_leases_to_steal,
        priority=leases.priority_assignment,
    )
    return Taker(
        table=common.adapters.tables.leases,
        worker_id=common.me,
        keeper=keeper,
        leader=shuffle,
        syncer=_syncer(common),
        options=options,
        clock=common.adapters.clock,
        randomness=common.adapters.randomness,
        timings=common.periods,
        log=common.log,
        malformed=common.malformed,
        on_found=common.worker.lease_found,
    )


def _versions(common: _Common, switchboard: Switchboard) -> Versions:
    return Versions(
        table=common.adapters.tables.coordinator,
        config=common.settings.leases.client_version_config,
        worker_id=common.me,
        switchboard=switchboard,
        clock=common.adapters.clock,
        randomness=common.adapters.randomness,
        call_s=common.periods.call_s,
        log=common.log,
    )


def _migrator(common: _Common, overview: Overview, elector: Elector, reporter: Reporter) -> TableMigrator:
    means = Means(overview=overview, transactions=common.adapters.transactions, report=reporter.report)
    return TableMigrator(
        routes=common.tables.routes,
        settings=common.settings.tables,
        elector=elector,
        means=means,
        worker_id=common.me,
        clock=common.adapters.clock,
        call_s=common.periods.call_s,
        log=common.log,
    )


def _reporter(common: _Common) -> tuple[Reporter, CpuSampler | None]:
    sampler = _sampler(common.settings, common.adapters, common.periods, common.log)
    reporter = Reporter(
        table=common.tables.routes.reports,
        worker_id=common.me,
        clock=common.adapters.clock,
        timings=common.periods,
        log=common.log,
        cpu_averages=sampler.averages if sampler is not None else tuple,
    )
    return reporter, sampler


def _sampler(settings: Settings, adapters: Adapters, periods: Timings, log: Log) -> CpuSampler | None:
    if adapters.cpu is None or settings.balance.disable_worker_metrics:
        return None
    return CpuSampler(
        cpu=adapters.cpu,
        clock=adapters.clock,
        randomness=adapters.randomness,
        log=log,
        capture_s=periods.capture_s,
        averages_most=settings.balance.persisted_averages,
    )
