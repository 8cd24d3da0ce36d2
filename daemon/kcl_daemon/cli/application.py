from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

import click

from kcl_daemon.app import streams_of
from kcl_daemon.aws.build import build_tables, open_kinesis_client
from kcl_daemon.aws.session import Clients, open_clients
from kcl_daemon.cli.common import NotChanged, run, stream_text
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import WorkerContext, timings
from kcl_daemon.errors import TableNotFound
from kcl_daemon.fleet.lease_renewer import MalformedRowLog
from kcl_daemon.fleet.many_streams import MultiStreamTracker
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.streams import OwnStreamCheck, SingleStreamTracker
from kcl_daemon.fleet.table_views import (
    COORDINATOR_KINDS,
    WORKER_KINDS,
    DualTable,
    RowKindTable,
    TableWrapper,
)
from kcl_daemon.fleet.tables import inspect_tables
from kcl_daemon.leases.layout import TableLayout, TableStatus
from kcl_daemon.leases.lease import Lease, TableStream, WorkerId
from kcl_daemon.leases.row import Row
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, Table, Tables
from kcl_daemon.sources import open_sources
from kcl_daemon.system import SystemClock, SystemRandomness
from kcl_daemon.telemetry.logs import LogLevels, build_log

_Result = TypeVar("_Result")
Streams = SingleStreamTracker | MultiStreamTracker


@dataclass(frozen=True, slots=True)
class TableOrigin:
    """`stream` is an ARN or name. `reason` explains the layout. The lease table is the first table."""

    application: str
    stream: str
    layout: TableLayout
    reason: str
    tables: tuple[str, ...]


class _Missing(TableWrapper):
    """Stands for a missing table until it is there: KCL 2.x fleets have only the lease table."""

    async def scan(self) -> list[Row]:
        with suppress(TableNotFound):
            return await super().scan()
        return []

    async def get(self, key: str) -> Row | None:
        with suppress(TableNotFound):
            return await super().get(key)
        return None


@dataclass(frozen=True, slots=True)
class OpenedTables:
    tables: Tables
    origin: TableOrigin


async def open_existing(separate: Tables, settings: Settings) -> OpenedTables:
    """Creates none.

    TableNotFound without a lease table, ConfigurationError if no worker would start with these tables.
    """
    found = await inspect_tables(separate, wished=settings.tables.layout, migrate_all=False)
    leases, workers, coordinator = found.states
    if leases is None:
        raise TableNotFound(
            f"there is no lease table {separate.leases.name}: no worker of this application has started yet"
        )
    names = [separate.leases.name]
    match found.layout:
        case TableLayout.SINGLE:
            tables = Tables(
                separate.leases,
                RowKindTable(separate.leases, WORKER_KINDS),
                RowKindTable(separate.leases, COORDINATOR_KINDS),
            )
        case TableLayout.SEPARATE:
            others = ((separate.worker_metrics, workers), (separate.coordinator, coordinator))
            names += [table.name for table, state in others if state is not None]
            worker_rows, coordinator_rows = (
                table if state is not None else _Missing(table) for table, state in others
            )
            if found.status is not TableStatus.INIT:  # rows may have been copied already
                coordinator_rows = DualTable(coordinator_rows, separate.leases, written=coordinator_rows)
            tables = Tables(separate.leases, worker_rows, coordinator_rows)
        case _:
            assert_never(found.layout)
    stream = ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name
    return OpenedTables(
        tables, TableOrigin(settings.application_name, stream, found.layout, found.reason, tuple(names))
    )


@dataclass(frozen=True, slots=True)
class Application:
    opened: OpenedTables
    table: Table
    kinesis: Kinesis
    streams: Streams
    clock: Clock
    clients: Clients | None = None

    @property
    def own_stream(self) -> OwnStreamCheck | None:
        if isinstance(self.streams, MultiStreamTracker):
            return None
        return OwnStreamCheck(self.opened.tables, self.streams, self.opened.origin.application)


def on_application(settings: Settings, act: Callable[[Application], Awaitable[_Result]]) -> _Result:
    async def opened() -> _Result:
        clock = SystemClock()
        log = build_log(level="error", form="console", stream=sys.stderr, clock=clock)
        async with (
            open_clients(settings.endpoints, changes=settings.reads_changes) as clients,
            open_kinesis_client(clients, clock) as client,
            open_sources(settings, clients, client, clock) as kinesis,
        ):
            found = await open_existing(build_tables(settings, clients, clock), settings)
            table = found.tables.leases
            streams = streams_of(settings, kinesis, clock, log, table=table)
            return await act(Application(found, table, kinesis, streams, clock, clients))

    return run(opened)


def observer(tables: Tables, settings: Settings, *, clock: Clock, log: Log) -> FleetMonitor:
    return FleetMonitor(
        WorkerContext(
            worker_id=WorkerId("(observer)"),
            clock=clock,
            randomness=SystemRandomness(),
            timings=timings(settings.leases, settings.balance),
            log=log,
        ),
        tables=tables,
        limits=settings.lease_limits,
        malformed=MalformedRowLog(log),
    )


def no_log(clock: Clock) -> Log:
    return build_log(level=LogLevels("off"), form="console", stream=sys.stderr, clock=clock)


stream_option: Final = click.option(
    "--stream",
    "stream",
    metavar="NAME",
    help="With many streams: only this one, by name, ACCOUNT:NAME:CREATION_EPOCH, or DynamoDB table.",
)


def names_single(stream: str, settings: Settings) -> bool:
    mine, asked = TableStream.of(settings.stream_arn or ""), TableStream.of(stream)
    tables = {settings.changes.table, None if mine is None else mine.table} - {None}
    is_one_of_the_table = asked is not None and settings.changes.table == asked.table
    return stream in {settings.stream_name, settings.stream_arn, *tables} or is_one_of_the_table


def is_of(lease: Lease, stream: str | None, settings: Settings) -> bool:
    if stream is None:
        return True
    return names_single(stream, settings) if lease.stream is None else stream in lease.stream.names


def leases_of(leases: Iterable[Lease], stream: str | None, settings: Settings) -> tuple[Lease, ...]:
    return tuple(lease for lease in leases if is_of(lease, stream, settings))


async def chosen_stream(settings: Settings, stream: str | None, streams: Streams) -> StreamRef:
    """`identity` is None in single-stream mode. NotChanged if the choice is missing or wrong."""
    if not isinstance(streams, MultiStreamTracker):
        if stream is not None and not names_single(stream, settings):
            raise NotChanged(f"this application reads {stream_text(settings)}, not {stream}")
        return streams.stream.ref
    if stream is None:
        raise NotChanged(
            f"this application reads many streams; add --stream with one of {stream_text(settings)}"
        )
    await streams.prepare()
    refs = [each.ref for each in streams.current]
    found = [ref for ref in refs if stream == ref.arn or (ref.identity and stream in ref.identity.names)]
    if len(found) != 1:
        how_many, have = ("several", "have") if found else ("none", "has")
        raise NotChanged(f"--stream {stream}: {how_many} of {stream_text(settings)} {have} this name")
    return found[0]
