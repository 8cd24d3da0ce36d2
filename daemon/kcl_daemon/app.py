"""The only constructor of the object graph: settings and adapters in, a worker out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kcl_daemon.app_common import Adapters, Common
from kcl_daemon.app_migrations import migrator_of, versions_of
from kcl_daemon.app_predecessors import lost_to_namesake, namesake_of, predecessors_of
from kcl_daemon.app_progress import watchdog_of
from kcl_daemon.app_reports import reporter_of
from kcl_daemon.app_streams import streams_of, syncer_of
from kcl_daemon.assignment.taking import TakingOptions
from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.degraded import Degraded
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.assigner import Assigner
from kcl_daemon.coordination.bulletin import Bulletin
from kcl_daemon.coordination.discovery import Discovery
from kcl_daemon.coordination.elector import Elector, Surroundings
from kcl_daemon.coordination.farewell import Farewell
from kcl_daemon.coordination.gate import Gate
from kcl_daemon.coordination.gauges import Gauges, Watched
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.malformed import MalformedRows
from kcl_daemon.coordination.many_syncer import ManySyncer
from kcl_daemon.coordination.nudge import Signal
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.own_cleaner import OwnCleaner
from kcl_daemon.coordination.shuffle import ShuffleLeader
from kcl_daemon.coordination.strategies import strategies
from kcl_daemon.coordination.streams import refuse_other_kind
from kcl_daemon.coordination.sweeper import Sweeper
from kcl_daemon.coordination.switchboard import Gates, Switchboard
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.coordination.tables import ApplicationTables
from kcl_daemon.coordination.taker import Taker
from kcl_daemon.coordination.timings import timings
from kcl_daemon.coordination.upgrader import Upgrader
from kcl_daemon.leases.client_version import ClientVersion, ClientVersionConfig
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from kcl_daemon.leases.stats import Incarnation
from kcl_daemon.ports import (
    Log,
)
from kcl_daemon.progress.board import Board
from kcl_daemon.retrieval.readers import Readers
from kcl_daemon.shards.lineage import parents_first
from kcl_daemon.worker.worker import Loops, Worker

__all__ = ["Adapters", "build"]


def build(settings: Settings, adapters: Adapters) -> Worker:
    """A worker that is ready to run. Touches nothing yet."""
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
        looks_at_leases=partial(refuse_other_kind, adapters.tables.leases, many=settings.reads_many),
        clock=adapters.clock,
        log=log,
        start_pause_s=settings.leases.start_backoff_ms / 1000,
        meters=meters,
    )
    common = Common(
        me=WorkerId(settings.worker_id),
        incarnation=Incarnation(adapters.clock.wall_ms(), adapters.randomness.token()),
        settings=settings,
        adapters=adapters,
        tables=tables,
        periods=timings(settings.leases, settings.balance),
        log=log,
        malformed=MalformedRows(log),
        worker=worker,
        streams=streams,
        readers=_readers(settings, adapters, log),
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
        readers=common.readers,
        meters=meters,
        shard_finished=Signal(adapters.clock),
        on_leases_created=nudge,
        on_lease_written=loops.discovery.take_assigned,
        degraded=Degraded(adapters.clock, settings.failures.degraded_ms / 1000),
        dead_letters=adapters.dead_letters,
        on_fatal=worker.fail,
    )
    worker.equip(loops, parts)
    return worker


def _readers(settings: Settings, adapters: Adapters, log: Log) -> Readers:
    return Readers(
        settings,
        kinesis=adapters.kinesis,
        fan_out=adapters.fan_out,
        clock=adapters.kinesis_clock or adapters.clock,
        randomness=adapters.randomness,
        log=log,
        schemas=adapters.schemas,
        meters=adapters.meters,
    )


def _loops(common: Common) -> tuple[Loops, Callable[[], None]]:
    """All loops, and what to call when there are leases that nobody has."""
    tables, clock, log = common.adapters.tables, common.adapters.clock, common.log
    keeper = _keeper(common)
    overview = _overview(common)
    bulletin = Bulletin(clock=clock, timings=common.periods)
    elector = _elector(common, keeper, overview, bulletin)
    discovery = _discovery(common, keeper, elector, bulletin)
    watchdog = watchdog_of(common.settings, common.periods, clock, log)
    assigner = _assigner(common, overview, elector, discovery, watchdog.board)
    shuffle = ShuffleLeader(worker_id=common.me, clock=clock, log=log)
    taker = _taker(common, keeper, shuffle)
    predecessors = predecessors_of(common, keeper, elector, discovery)
    namesake = namesake_of(common, predecessors)
    reporter, sampler = reporter_of(common, elector, namesake.is_seen)
    keeper.on_namesake = partial(lost_to_namesake, namesake, reporter)
    upgrader = Upgrader(
        tables=tables,
        overview=overview,
        leader=shuffle,
        worker_id=common.me,
        clock=clock,
        report_s=common.periods.report_s,
        log=log,
        meters=common.adapters.meters,
    )
    migrator = migrator_of(common, overview, elector, reporter)
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
    versions = versions_of(common, switchboard)
    upgrader.on_upgraded(versions.nudge)
    migrator.only_when(lambda: versions.version is ClientVersion.V3X)

    def nudge() -> None:
        """Whichever of them runs now does something about it."""
        assigner.nudge()
        taker.nudge()
        discovery.nudge()

    watched = Watched(keeper, elector, shuffle, versions, watchdog)
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
        predecessors=predecessors,
        namesake=namesake,
        watchdog=watchdog,
        own_cleaner=_own_cleaner(common, discovery, watched),
        gauges=_gauges(common, watched),
    )
    return loops, nudge


def _keeper(common: Common) -> LeaseKeeper:
    return LeaseKeeper(
        table=common.adapters.tables.leases,
        worker_id=common.me,
        clock=common.adapters.clock,
        timings=common.periods,
        log=common.log,
        randomness=common.adapters.randomness,
        meters=common.adapters.meters,
    )


def _own_cleaner(common: Common, discovery: Discovery, watched: Watched) -> OwnCleaner:
    def finished() -> set[LeaseKey]:
        """What was given to us, and what we took where each worker helps itself."""
        held = watched.keeper.held.values()
        return {*discovery.finished, *(each.key for each in held if each.lease.is_finished)}

    return OwnCleaner(
        table=common.adapters.tables.leases,
        worker_id=common.me,
        finished=finished,
        leading=lambda: watched.elector.is_leader or watched.shuffle.leads,
        settings=common.settings.shards,
        clock=common.adapters.clock,
        log=common.log,
    )


def _gauges(common: Common, watched: Watched) -> Gauges:
    return Gauges(
        watched,
        may_change=common.settings.leases.client_version_config is not ClientVersionConfig.V3X,
        in_hand=lambda: common.readers.in_hand_bytes,
        period_s=common.periods.renew_s,
        meters=common.adapters.meters,
        clock=common.adapters.clock,
    )


def _overview(common: Common) -> Overview:
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


def _elector(common: Common, keeper: LeaseKeeper, overview: Overview, bulletin: Bulletin) -> Elector:
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


def _farewell(common: Common, keeper: LeaseKeeper, overview: Overview, elector: Elector) -> Farewell:
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


def _discovery(common: Common, keeper: LeaseKeeper, elector: Elector, bulletin: Bulletin) -> Discovery:
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
        meters=common.adapters.meters,
    )


def _syncer(common: Common) -> Syncer | ManySyncer:
    """One for each of the two ways to lead: they do not share what they remember."""
    adapters = common.adapters
    return syncer_of(
        common.streams,
        common.settings,
        table=adapters.tables.leases,
        kinesis=adapters.kinesis,
        clock=adapters.clock,
        log=common.log,
        meters=adapters.meters,
    )


def _assigner(
    common: Common, overview: Overview, elector: Elector, discovery: Discovery, board: Board
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
        meters=common.adapters.meters,
    )


def _taker(common: Common, keeper: LeaseKeeper, shuffle: ShuffleLeader) -> Taker:
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
        meters=common.adapters.meters,
    )
