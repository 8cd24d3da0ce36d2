"""The streams of a worker: which one a lease belongs to, where reading begins. Many of them: `many_streams`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.fleet.stream_monitor import StreamMonitor
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, TableStream
from kcl_daemon.ports import Kinesis, Log, StreamRef, StreamSummary, Table
from kcl_daemon.shards.lineage import InitialPosition, Shard, segment_of

_ARN_COLONS: Final = 5
_ADVICE: Final = (
    "A lease table is either single-stream or multi-stream and cannot be changed later. Use a new "
    "applicationName (a new table), and set the initial positions so that no records are missed"
)


@dataclass(frozen=True, slots=True)
class TrackedStream:
    """`ref.identity` is None for a single stream; `position` is for shards without a checkpoint."""

    ref: StreamRef
    position: InitialPosition
    watch: StreamMonitor

    @property
    def for_child(self) -> StreamRef:
        return replace(self.ref, arn=self.ref.arn or self.watch.arn)


class StreamTracker(Protocol):
    def of(self, lease: Lease) -> TrackedStream: ...

    async def discover(self) -> None:
        """Called before tables are created; raises StreamNotFound for the only stream."""
        ...

    async def prepare(self) -> None: ...


class SingleStreamTracker:
    """`check_images` raises ConfigurationError if the records would lack what is asked for."""

    def __init__(
        self,
        stream: TrackedStream,
        *,
        kinesis: Kinesis,
        log: Log,
        check_images: Callable[[StreamSummary, Log], None],
    ) -> None:
        self.stream = stream
        self._check_images = check_images
        self.arn = stream.ref.arn
        self.kinesis = kinesis
        self.log = log
        self._summary: StreamSummary | None = None

    def of(self, lease: Lease) -> TrackedStream:  # noqa: ARG002 - the protocol's signature
        return self.stream

    async def discover(self) -> None:
        self._check_images(await self.summary(), self.log)

    async def summary(self) -> StreamSummary:
        self._summary = self._summary or await self.kinesis.describe_stream(self.stream.ref)
        return self._summary

    async def prepare(self) -> None:
        summary = await self.summary()
        self._check_images(summary, self.log)
        self.arn = self.stream.watch.arn = summary.arn
        self.stream.watch.retention_s = summary.retention_s
        self.log.info("stream_found", stream=summary.name, arn=summary.arn, status=summary.status)


def counted_shards(shards: Sequence[Shard], leases: Sequence[Lease]) -> tuple[Shard, ...]:
    """As `with_segments`; few streams begin with a snapshot."""
    if all(segment_of(lease.shard_id) is None for lease in leases):
        return tuple(shards)
    from kcl_daemon.shards.snapshot import with_segments

    return with_segments(shards, leases)


async def leases_of(table: Table) -> Sequence[Lease]:
    return [lease for row in await table.scan() if (lease := lease_row.readable_lease(row)) is not None]


async def require_same_stream_mode(table: Table, *, many: bool) -> None:
    """Raises ConfigurationError if the table's leases are of the other mode."""
    for row in await table.scan():
        if lease_row.is_lease_row(row) and lease_row.is_multi_stream_row(row) is not many:
            is_of, asked = ("one stream", "many") if many else ("many streams", "one")
            raise ConfigurationError(
                f"the lease table {table.name} is of {is_of} (row {row.get(lease_row.KEY)!r}), the properties file "
                f"names {asked}. {_ADVICE}"
            )


def location_of(settings: Settings, streams: StreamTracker) -> str:
    arn = streams.arn if isinstance(streams, SingleStreamTracker) else None
    if arn is not None and arn.count(":") >= _ARN_COLONS:
        _, _, _, of_arn, account, name = arn.split(":", _ARN_COLONS)
        if (of_table := TableStream.of(arn)) is not None:
            return f"stream of the table {of_table.table} in {of_arn}, account {account}"
        return f"stream {name.removeprefix('stream/')} in {of_arn}, account {account}"
    names = ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name
    region = settings.endpoints.region_name
    where = "" if region is None else f" in {region}"
    return f"{'streams' if settings.streams.texts else 'stream'} {names}{where}"
