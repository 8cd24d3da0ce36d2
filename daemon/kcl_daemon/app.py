"""The only constructor of the object graph: settings and adapters in, a worker out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kcl_daemon.assignment.count import by_lease_count
from kcl_daemon.assignment.variance import BalanceOptions, by_utilization
from kcl_daemon.config.settings import AssignmentStrategy, Settings
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.assigner import Assigner, Strategies
from kcl_daemon.coordination.discovery import Discovery
from kcl_daemon.coordination.elector import Elector, Surroundings
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.malformed import MalformedRows
from kcl_daemon.coordination.nudge import Signal
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.reporter import Reporter
from kcl_daemon.coordination.sweeper import Sweeper
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.coordination.tables import ApplicationTables
from kcl_daemon.coordination.timings import Timings, timings
from kcl_daemon.cpu.sampler import CpuSampler
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import Children, Clock, Cpu, Kinesis, Log, Randomness, StreamRef, Tables
from kcl_daemon.worker.worker import Loops, Worker


@dataclass(frozen=True, slots=True)
class Adapters:
    """The world: real, or simulated. `cpu` is None where this system has no figure to go by."""

    clock: Clock
    randomness: Randomness
    kinesis: Kinesis
    tables: Tables
    children: Children
    log: Log
    cpu: Cpu | None = None


def build(settings: Settings, adapters: Adapters) -> Worker:
    """A worker that is ready to run. Touches nothing yet."""
    log = adapters.log.bind(worker_id=settings.worker_id)
    tables = ApplicationTables(adapters.tables, settings=settings.tables, clock=adapters.clock, log=log)
    adapters = replace(adapters, tables=tables.tables)
    stream = _stream(settings)
    worker = Worker(tables=tables, kinesis=adapters.kinesis, stream=stream, clock=adapters.clock, log=log)
    periods = timings(settings.leases, settings.balance)
    loops = _loops(settings, adapters, periods, worker=worker, log=log)
    parts = ConsumerParts(
        settings=settings,
        timings=periods,
        stream=stream,
        keeper=loops.keeper,
        table=adapters.tables.leases,
        kinesis=adapters.kinesis,
        children=adapters.children,
        clock=adapters.clock,
        randomness=adapters.randomness,
        log=log,
        shard_finished=Signal(adapters.clock),
        on_leases_created=loops.assigner.nudge,
    )
    worker.equip(loops, parts)
    return worker


def _stream(settings: Settings) -> StreamRef:
    return StreamRef(settings.stream_name, settings.stream_arn)


def _loops(settings: Settings, adapters: Adapters, periods: Timings, *, worker: Worker, log: Log) -> Loops:
    me = WorkerId(settings.worker_id)
    tables, clock = adapters.tables, adapters.clock
    keeper = LeaseKeeper(table=tables.leases, worker_id=me, clock=clock, timings=periods, log=log)
    elector = Elector(
        table=tables.coordinator,
        worker_id=me,
        clock=clock,
        randomness=adapters.randomness,
        timings=periods,
        log=log,
    )
    syncer = Syncer(
        table=tables.leases,
        kinesis=adapters.kinesis,
        stream=_stream(settings),
        position=settings.initial_position,
        clock=clock,
        timings=periods,
        log=log,
    )
    malformed = MalformedRows(log)
    discovery = Discovery(
        table=tables.leases,
        worker_id=me,
        keeper=keeper,
        clock=clock,
        timings=periods,
        log=log,
        malformed=malformed,
        leading=lambda: elector.is_leader,
        on_found=worker.lease_found,
    )
    overview = Overview(
        worker_id=me,
        tables=tables,
        max_leases_for_worker=settings.leases.max_leases_for_worker,
        clock=clock,
        timings=periods,
        malformed=malformed,
    )
    assigner = Assigner(
        table=tables.leases,
        overview=overview,
        elector=elector,
        syncer=syncer,
        sweeper=Sweeper(
            table=tables.worker_metrics, stale_s=settings.balance.stale_worker_s, clock=clock, log=log
        ),
        strategies=strategies(settings),
        clock=clock,
        timings=periods,
        log=log,
        on_seen=discovery.offer,
        on_assigned=discovery.take_assigned,
    )
    elector.surrounded_by(Surroundings(held=lambda: keeper.activity, alone=lambda: overview.is_alone))
    reporter, sampler = _reporter(settings, adapters, periods, log)
    return Loops(
        keeper=keeper,
        elector=elector,
        reporter=reporter,
        assigner=assigner,
        discovery=discovery,
        sampler=sampler,
    )


def strategies(settings: Settings) -> Strategies:
    """Who should hold what, by the settings of the worker that leads."""
    balance, graceful = settings.balance, settings.leases.graceful_handoff
    if balance.strategy is AssignmentStrategy.LEASE_COUNT_BASED:
        return Strategies(place=by_lease_count, balance=by_lease_count, graceful=graceful)
    options = BalanceOptions(
        rebalance_threshold_percentage=balance.rebalance_threshold_percentage,
        dampening_percentage=balance.dampening_percentage,
        allow_throughput_overshoot=balance.allow_throughput_overshoot,
        max_throughput_per_host_kbps=balance.max_throughput_per_host_kbps,
        ema_alpha=balance.worker_metrics_ema_alpha,
    )
    return Strategies(
        place=by_utilization(replace(options, balance_this_run=False)),
        balance=by_utilization(options),
        graceful=graceful,
    )


def _reporter(
    settings: Settings, adapters: Adapters, periods: Timings, log: Log
) -> tuple[Reporter, CpuSampler | None]:
    sampler = _sampler(settings, adapters, periods, log)
    reporter = Reporter(
        table=adapters.tables.worker_metrics,
        worker_id=WorkerId(settings.worker_id),
        clock=adapters.clock,
        timings=periods,
        log=log,
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
    )
