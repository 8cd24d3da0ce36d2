"""The part of `app` that depends on whether there is one stream or many."""

from __future__ import annotations

from functools import partial

from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.former_streams import FormerStreamsCleaner
from kcl_daemon.coordination.many_streams import ManyStreams
from kcl_daemon.coordination.many_syncer import ManySyncer
from kcl_daemon.coordination.stream_watch import StreamWatch
from kcl_daemon.coordination.streams import OneStream, Stream, leases_of
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters


def streams_of(
    settings: Settings, kinesis: Kinesis, clock: Clock, log: Log, *, table: Table
) -> OneStream | ManyStreams:
    """The streams that the settings name. Touches nothing yet.

    Where there are many, the lease table tells what they are called in their leases.
    """
    if settings.reads_many:
        return ManyStreams(
            settings.streams,
            position=settings.initial_position,
            leases=partial(leases_of, table),
            kinesis=kinesis,
            clock=clock,
            log=log,
        )
    ref = StreamRef(settings.stream_name, settings.stream_arn)
    watch = StreamWatch(kinesis=kinesis, stream=ref, clock=clock, log=log)
    return OneStream(Stream(ref, settings.initial_position, watch), kinesis=kinesis, log=log)


def syncer_of(
    streams: OneStream | ManyStreams,
    settings: Settings,
    *,
    table: Table,
    kinesis: Kinesis,
    clock: Clock,
    log: Log,
    meters: Meters = NO_METERS,
) -> Syncer | ManySyncer:
    """What keeps the leases of all of them complete."""

    def syncer(stream: Stream) -> Syncer:
        """Of one."""
        return Syncer(
            table=table,
            kinesis=kinesis,
            stream=stream.ref,
            position=stream.position,
            clock=clock,
            log=log,
            settings=settings.shards,
            watch=stream.watch,
            meters=meters,
        )

    if isinstance(streams, OneStream):
        return syncer(streams.stream)
    former = FormerStreamsCleaner(
        table=table, streams=streams, settings=settings.streams, clock=clock, log=log, meters=meters
    )
    return ManySyncer(table=table, streams=streams, syncer_of=syncer, former=former, log=log, meters=meters)
