"""The only constructor of the object graph: settings and adapters in, a worker out."""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.assignment.count import by_lease_count
from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.assigner import Assigner
from kcl_daemon.coordination.discovery import Discovery
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.nudge import Signal
from kcl_daemon.coordination.reporter import Reporter
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.coordination.timings import Timings, timings
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import Children, Clock, Kinesis, Log, Randomness, StreamRef, Tables
from kcl_daemon.worker.worker import Loops, Worker


@dataclass(frozen=True, slots=True)
class Adapters:
    """The world: real, or simulated."""

    clock: Clock
    randomness: Randomness
    kinesis: Kinesis
    tables: Tables
    children: Children
    log: Log


def build(settings: Settings, adapters: Adapters) -> Worker:
    """A worker that is ready to run. Touches nothing yet."""
    log = adapters.log.bind(worker_id=settings.worker_id)
    stream = _stream(settings)
    worker = Worker(
        tables=adapters.tables, kinesis=adapters.kinesis, stream=stream, clock=adapters.clock, log=log
    )
    periods = timings(settings.leases)
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
    discovery = Discovery(
        table=tables.leases,
        worker_id=me,
        keeper=keeper,
        clock=clock,
        timings=periods,
        log=log,
        on_found=worker.lease_found,
    )
    assigner = Assigner(
        worker_id=me,
        tables=tables,
        elector=elector,
        syncer=syncer,
        strategy=by_lease_count,
        max_leases_for_worker=settings.leases.max_leases_for_worker,
        clock=clock,
        timings=periods,
        log=log,
        on_assigned=discovery.take_assigned,
    )
    reporter = Reporter(table=tables.worker_metrics, worker_id=me, clock=clock, timings=periods, log=log)
    return Loops(keeper=keeper, elector=elector, reporter=reporter, assigner=assigner, discovery=discovery)
