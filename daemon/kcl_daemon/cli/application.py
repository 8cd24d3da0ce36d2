from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import click

from kcl_daemon.app import streams_of
from kcl_daemon.aws.build import build_tables, open_kinesis_client, open_sources
from kcl_daemon.aws.session import open_clients
from kcl_daemon.cli.common import NotChanged, run, stream_text
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import WorkerContext, timings
from kcl_daemon.fleet.lease_renewer import MalformedRowLog
from kcl_daemon.fleet.many_streams import MultiStreamTracker
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.own_stream import OwnStreamCheck
from kcl_daemon.fleet.streams import SingleStreamTracker
from kcl_daemon.leases.lease import Lease, TableStream, WorkerId
from kcl_daemon.migrations.tables import OpenedTables, open_existing
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, Table, Tables
from kcl_daemon.system import SystemClock, SystemRandomness
from kcl_daemon.telemetry.logs import LogLevels, build_log

_Result = TypeVar("_Result")
Streams = SingleStreamTracker | MultiStreamTracker


@dataclass(frozen=True, slots=True)
class Application:
    opened: OpenedTables
    table: Table
    kinesis: Kinesis
    streams: Streams
    clock: Clock

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
            return await act(Application(found, table, kinesis, streams, clock))

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
        max_leases_for_worker=settings.leases.max_leases_for_worker,
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
