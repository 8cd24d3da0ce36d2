"""Choosing one of many streams on the command line, and how streams are called in what is shown.

Owns `--stream`. Knows nothing of what a command does with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import click

from kcl_daemon.app_streams import streams_of
from kcl_daemon.cli.leases_change import NotChanged
from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.many_streams import ManyStreams
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, Table

stream_option: Final = click.option(
    "--stream",
    "stream",
    metavar="NAME",
    help="With many streams: only this one, by name or ACCOUNT:NAME:CREATION_EPOCH.",
)


def stream_text(settings: Settings) -> str:
    """What is read, in words: an ARN, a name, or several."""
    return ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name


def is_of(lease: Lease, stream: str | None, settings: Settings) -> bool:
    """Whether a lease is of the stream that was asked for; None: any will do."""
    if stream is None:
        return True
    if lease.stream is None:
        return stream in (settings.stream_name, settings.stream_arn)
    return stream in (lease.stream.name, str(lease.stream))


def is_named(stream: str, settings: Settings) -> bool:
    """Whether the file names that stream, which may have no leases yet."""
    return stream in (settings.stream_name, settings.stream_arn, *settings.streams.texts)


def leases_of(leases: Iterable[Lease], stream: str | None, settings: Settings) -> tuple[Lease, ...]:
    """The leases of the stream that was asked for."""
    return tuple(lease for lease in leases if is_of(lease, stream, settings))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The stream to act on; `ref.identity` is None where there is one only."""

    ref: StreamRef

    def owns(self, lease: Lease) -> bool:
        """Whether a lease is of it."""
        return lease.stream == self.ref.identity


async def chosen_stream(
    settings: Settings, stream: str | None, kinesis: Kinesis, *, table: Table, clock: Clock, log: Log
) -> Chosen:
    """The one stream that a command acts on.

    Raises:
        NotChanged: there are many and none was named, or there is none such.
        AwsError: Kinesis does not tell of it.
    """
    streams = streams_of(settings, kinesis, clock, log, table=table)
    if not isinstance(streams, ManyStreams):
        if stream is not None and stream not in (settings.stream_name, settings.stream_arn):
            raise NotChanged(f"this application reads {stream_text(settings)}, not {stream}")
        return Chosen(streams.stream.ref)
    if stream is None:
        raise NotChanged(
            f"this application reads many streams; add --stream with one of {stream_text(settings)}"
        )
    await streams.prepare()
    found = [
        each.ref
        for each in streams.current
        if stream in (each.ref.name, each.ref.arn, _text(each.ref.identity))
    ]
    if len(found) != 1:
        how_many = "none" if not found else "several"
        raise NotChanged(
            f"--stream {stream}: {how_many} of {stream_text(settings)} "
            f"{'has' if len(found) == 0 else 'have'} this name"
        )
    return Chosen(found[0])


def _text(identity: StreamIdentity | None) -> str:
    return str(identity)
