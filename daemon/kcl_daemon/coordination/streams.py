"""The streams of a worker: which there are, which of them a lease is of, where reading of each begins.

Owns what is known of one stream, and the case that there is only one; `many_streams` has the other. Knows nothing of
who leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from kcl_daemon.coordination.stream_watch import StreamWatch
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Kinesis, Log, StreamRef, Table
from kcl_daemon.shards.shard import InitialPosition

_ADVICE: Final = (
    "A lease table is either single-stream or multi-stream and cannot be changed later. Use a new "
    "applicationName (a new table), and set the initial positions so that no records are missed"
)


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream.

    Args:
        ref: how it is called in calls; its `identity` is None where there is only one.
        position: where reading of a shard without a checkpoint begins.
        watch: knows whether it is there.
    """

    ref: StreamRef
    position: InitialPosition
    watch: StreamWatch


class Streams(Protocol):
    """All streams of a worker."""

    def of(self, lease: Lease) -> Stream:
        """The stream of a lease, also of one that is listed no more."""
        ...

    async def see(self) -> None:
        """Before anything is made: StreamNotFound where the only one is not there, AwsError where nobody can tell."""
        ...

    async def prepare(self) -> None:
        """Look at them before the work begins. AwsError where none could be looked at."""
        ...


class OneStream:
    """The `Streams` of an application that reads one.

    Attributes:
        stream: that one.
        arn: as its service told it; None: it has not been asked yet.
    """

    def __init__(self, stream: Stream, *, kinesis: Kinesis, log: Log) -> None:
        self.stream = stream
        self.arn = stream.ref.arn
        self._kinesis = kinesis
        self._log = log

    def of(self, lease: Lease) -> Stream:  # noqa: ARG002 - the protocol's signature
        """The one."""
        return self.stream

    async def see(self) -> None:
        """As the protocol says."""
        await self._kinesis.describe_stream(self.stream.ref)

    async def prepare(self) -> None:
        """As the protocol says; StreamNotFound where it is not there."""
        summary = await self._kinesis.describe_stream(self.stream.ref)
        self.arn = summary.arn
        self._log.info("stream_found", stream=summary.name, arn=summary.arn, status=summary.status)


async def leases_of(table: Table) -> Sequence[Lease]:
    """The leases of a table; rows that are none, or cannot be read, are left out.

    Raises:
        AwsError: the table could not be read.
    """
    found: list[Lease] = []
    for row in await table.scan():
        if lease_row.is_lease_row(row):
            with suppress(lease_row.MalformedRowError):
                found.append(lease_row.lease_from_row(row))
    return found


async def refuse_other_kind(table: Table, *, many: bool) -> None:
    """See that the leases that there are were made for as many streams as the settings tell.

    Args:
        table: the lease table.
        many: whether the settings name many streams.

    Raises:
        ConfigurationError: they were not.
        AwsError: the table could not be read.
    """
    for row in await table.scan():
        if lease_row.is_lease_row(row) and lease_row.is_of_many(row) is not many:
            is_of, asked = ("one stream", "many") if many else ("many streams", "one")
            raise ConfigurationError(
                f"the lease table {table.name} is of {is_of} (row {row.get(lease_row.KEY)!r}), the properties file "
                f"names {asked}. {_ADVICE}"
            )
