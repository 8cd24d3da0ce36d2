"""A worker's context over the small adapters, and its parts with what a test does not ask about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kcl_daemon.assignment.plan import LeaseLimits
from kcl_daemon.config.balance import LeaseSettings, ShardSettings
from kcl_daemon.context import WorkerContext, timings
from kcl_daemon.fleet.discovery import AssignmentNotifier
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.lease_renewer import LeaseRenewer, MalformedRowLog
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.reporter import Reporter
from kcl_daemon.fleet.shard_sync import ShardSync
from kcl_daemon.fleet.streams import StreamMonitor, TrackedStream
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import Incarnation
from kcl_daemon.ports import NO_METERS, Clock, Kinesis, Log, Meters, StreamRef, Table, Tables
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog

_ME: Final = WorkerId("me")


def worker_context(
    worker_id: WorkerId = _ME,
    *,
    clock: Clock | None = None,
    log: Log | None = None,
    meters: Meters = NO_METERS,
) -> WorkerContext:
    return WorkerContext(
        worker_id=worker_id,
        clock=clock or LoopClock(),
        randomness=CalmChance(),
        timings=timings(LeaseSettings()),
        log=log or MemoryLog(),
        meters=meters,
    )


def nothing() -> None:
    """For callbacks that a test does not ask about."""


def lease_renewer(context: WorkerContext, table: Table) -> LeaseRenewer:
    return LeaseRenewer(context, table=table, on_duplicate=nothing)


def fleet_monitor(
    context: WorkerContext, tables: Tables, malformed: MalformedRowLog | None = None
) -> FleetMonitor:
    malformed = malformed or MalformedRowLog(context.log)
    return FleetMonitor(context, tables=tables, limits=LeaseLimits(1000), malformed=malformed)


def reporter_of(context: WorkerContext, table: Table) -> Reporter:
    return Reporter(
        context,
        table=table,
        java_leader=lambda: None,
        incarnation=Incarnation(1, "mine"),
        on_other=lambda _: False,
    )


def words_sync(context: WorkerContext, table: Table, kinesis: Kinesis) -> ShardSync:
    """Of the stream `words`, from its beginning."""
    stream = StreamRef("words")
    return ShardSync(
        context,
        table=table,
        kinesis=kinesis,
        stream=TrackedStream(
            stream,
            InitialPosition(StartAt.TRIM_HORIZON),
            StreamMonitor(kinesis=kinesis, stream=stream, clock=context.clock, log=context.log),
        ),
        settings=ShardSettings(),
        leads=lambda: True,
    )


class HeldNumber(LeaseRenewer):
    """Holds as many leases as a test says."""

    number = 0

    @property
    def activity(self) -> int:
        return self.number

    @property
    def is_young(self) -> bool:
        return False


class KnownFleet(FleetMonitor):
    """A fleet that is as a test says."""

    alone = idle = False
    chosen: WorkerId | None = None

    @property
    def is_alone(self) -> bool:
        return self.alone

    @property
    def is_idle(self) -> bool:
        return self.idle

    @property
    def deputy(self) -> WorkerId | None:
        return self.chosen


def held_number(context: WorkerContext, table: Table) -> HeldNumber:
    return HeldNumber(context, table=table, on_duplicate=nothing)


def known_fleet(context: WorkerContext, table: Table) -> KnownFleet:
    return KnownFleet(
        context,
        tables=Tables(table, table, table),
        limits=LeaseLimits(1000),
        malformed=MalformedRowLog(context.log),
    )


def elector_of(
    context: WorkerContext,
    table: Table,
    *,
    renewer: LeaseRenewer | None = None,
    monitor: FleetMonitor | None = None,
    on_elected: Callable[[], None] = nothing,
    on_java_leader: Callable[[], None] = nothing,
) -> Elector:
    return Elector(
        context,
        table=table,
        notifier=AssignmentNotifier(context, on_assigned=nothing),
        renewer=renewer or held_number(context, table),
        monitor=monitor or known_fleet(context, table),
        on_elected=on_elected,
        on_holds=lambda _notice: None,
        on_java_leader=on_java_leader,
    )


class NoStandby:
    """Starts no children."""

    def prepare(self, lease: Lease) -> None: ...

    def dismiss(self, key: LeaseKey) -> None: ...
