"""The streams of a worker: which one a lease belongs to, where reading begins. Many of them: `many_streams`.

`StreamMonitor`: whether a stream is there, and the same; only another creation time than the one in its leases says no.

`OwnStreamCheck`: a worker does not start on the tables of another stream. KCL compares nothing. The row `daemon/stream` names the stream. Where there is none yet, the leases are compared with the stream's shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Protocol

import anyio

from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, ConfigurationError, InvalidRequest, StreamNotFound, TableNotFound
from kcl_daemon.fleet.table_views import write_row
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, TableStream
from kcl_daemon.leases.row import Row, WriteResult
from kcl_daemon.leases.text_row import STREAM_KEY, OwnStream, text_of, text_write
from kcl_daemon.ports import (
    Clock,
    IteratorKind,
    Kinesis,
    Log,
    ReadFrom,
    StreamRef,
    StreamSummary,
    Table,
    Tables,
)
from kcl_daemon.shards.lineage import InitialPosition, Shard, leases_of_another, segment_of, why_unlike
from kcl_daemon.text import time_text

RECHECK_S: Final = 60.0
# All shards of a stream report "not found" at about the same time.
_FRESH_S: Final = 5.0
_ARN_COLONS: Final = 5
_ADVICE: Final = (
    "A lease table is either single-stream or multi-stream and cannot be changed later. Use a new "
    "applicationName (a new table), and set the initial positions so that no records are missed"
)
_MAX_TRIED: Final = 5
_MAX_LOST_RACES: Final = 10
_ON_PURPOSE: Final = (
    "If it shall read this stream from now on, stop its workers, then run `kcl-daemon leases adopt FILE` and "
    "`kcl-daemon leases reset FILE --to POSITION`"
)


class StreamState(Enum):
    THERE = auto()
    GONE = auto()
    ANOTHER = auto()
    """The stream was deleted and created again."""


class StreamMonitor:
    """`created_s` None: the first answer counts. A stream of DynamoDB is never another one: its ARN has that time."""

    def __init__(
        self, *, kinesis: Kinesis, stream: StreamRef, clock: Clock, log: Log, created_s: int | None = None
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._clock = clock
        self._log = log
        self._created_s = created_s
        self._by_positions = False
        self._began_s: float | None = None
        self._polled_s: float | None = None
        self._looking = anyio.Lock()
        self.state = StreamState.THERE
        self.retention_s: float | None = None
        self.arn: str | None = None

    @property
    def created_s(self) -> int | None:
        return self._created_s

    async def poll(self) -> StreamState:
        """Or share an answer that was requested after this call; raises AwsError."""
        came_s = self._clock.monotonic()
        async with self._looking:
            if not self._is_active(came_s):
                began_s = self._clock.monotonic()
                self._become(await self._asked())
                self._began_s, self._polled_s = began_s, self._clock.monotonic()
        return self.state

    def _is_active(self, came_s: float) -> bool:
        if self._polled_s is None:
            return False
        if self.state is StreamState.THERE:
            return self._began_s is not None and self._began_s >= came_s
        return self._clock.monotonic() - self._polled_s < _FRESH_S

    async def confirm(self, within_s: float = RECHECK_S) -> StreamState:
        """Ask only if the state is older than `within_s`; raises as `poll` does."""
        polled_s = self._polled_s
        if polled_s is None or self._clock.monotonic() - polled_s >= within_s:
            return await self.poll()
        return self.state

    def recheck(self) -> None:
        self._polled_s = None

    def seen(self, summary: StreamSummary) -> None:
        self._become(self._judged(summary))
        self._polled_s = self._clock.monotonic()

    async def is_there(self) -> bool:
        return await self.poll() is StreamState.THERE

    async def has_forgotten(self, lease: Lease) -> bool:
        """The stream may have had it; raises AwsError."""
        if not self._stream.source.is_replaceable:
            return True
        shards = await self._kinesis.list_shards(self._stream)
        for _, why in leases_of_another([lease], shards):
            self.is_replacement(why)
            return False
        return all(shard.shard_id != lease.shard_id for shard in shards)

    async def _asked(self) -> StreamState:
        try:
            summary = await self._kinesis.describe_stream(self._stream)
        except StreamNotFound:
            return StreamState.GONE
        return self._judged(summary)

    def _judged(self, summary: StreamSummary) -> StreamState:
        self.retention_s = summary.retention_s or self.retention_s
        self.arn = summary.arn
        if summary.status == "DELETING":
            return StreamState.GONE
        if not self._stream.source.is_replaceable:
            return StreamState.THERE
        created_s = int(summary.creation_time_s)
        if self._created_s is None:
            self._created_s = created_s
        if self._created_s != created_s:
            self._by_positions = False
            return StreamState.ANOTHER
        # A replaced stream stays replaced: its leases belong to the old one.
        return StreamState.ANOTHER if self.state is StreamState.ANOTHER else StreamState.THERE

    def _become(self, state: StreamState) -> None:
        before, self.state = self.state, state
        if state is before:
            return
        match state:
            case StreamState.THERE:
                self._log.info("stream_found_again", stream=self._stream.name)
            case StreamState.GONE:
                log_stream_deleted(self._log, self._stream)
            case StreamState.ANOTHER:
                log_stream_replaced(self._log, self._stream, why="its creation time has changed")

    def is_replacement(self, why: str) -> None:
        if self.state is not StreamState.ANOTHER:
            self.state, self._by_positions = StreamState.ANOTHER, True
            log_stream_replaced(self._log, self._stream, why=why)

    def positions_match(self) -> None:
        if self.state is StreamState.ANOTHER and self._by_positions:
            self._by_positions = False
            self._become(StreamState.THERE)

    def was_created(self, created_s: int) -> None:
        if self._created_s is None or created_s > self._created_s:
            self._created_s = created_s


def log_stream_deleted(log: Log, stream: StreamRef) -> None:
    if stream.identity is not None:
        advice = "its leases wait; when it is no longer listed, formerStreamsLeasesDeletionStrategy applies"
        log.warning("stream_gone", stream=str(stream.identity), advice=advice)
        return
    log.error(
        "stream_gone",
        stream=stream.name,
        advice=f"{stream.source.gone(stream)}. The daemon checks again from time to time and writes nothing until then",
    )


def log_stream_replaced(log: Log, stream: StreamRef, *, why: str) -> None:
    if stream.identity is not None:
        log.warning(
            "stream_recreated",
            stream=str(stream.identity),
            why=why,
            advice="the new stream has its own leases, from its initial position; the former ones are no "
            "longer read, and deleted according to formerStreamsLeasesDeletionStrategy",
        )
        return
    log.error(
        "stream_recreated",
        stream=stream.name,
        why=why,
        advice="the leases belong to a former stream of this name: stop the application, delete its lease "
        "table or start over with `kcl-daemon leases reset`, then start it again. Nothing is created or "
        "deleted until then",
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


async def read_own_stream(table: Table) -> tuple[Row | None, OwnStream | None]:
    """The row, and the stream that it names; None if it cannot be read."""
    try:
        row = await table.get(STREAM_KEY)
    except TableNotFound:
        row = None
    return row, None if row is None else OwnStream.from_text(text_of(row))


async def write_own_stream(table: Table, before: Row | None, own: OwnStream) -> WriteResult:
    return await write_row(table, text_write(STREAM_KEY, before, own.text, key_attribute=table.key_attribute))


def stream_words(stream: OwnStream) -> str:
    created = "" if stream.created_s is None else f" of {time_text(stream.created_s * 1000)}"
    return f"{stream.arn:.300}{created}"


@dataclass(frozen=True, slots=True)
class ComparedLeases:
    """Of `tried` checkpoints, `refused` has why Kinesis refuses them; `why` is as `why_unlike` says."""

    shards: Sequence[Shard]
    why: str | None
    tried: int
    refused: tuple[str, ...]


def why_not_own(compared: ComparedLeases) -> str | None:
    """If Kinesis accepts one checkpoint, the leases are of the stream."""
    refused = compared.refused
    return refused[0] if refused and len(refused) == compared.tried else compared.why


class OwnStreamCheck:
    def __init__(self, tables: Tables, streams: SingleStreamTracker, application: str) -> None:
        self._tables = tables
        self._kinesis = streams.kinesis
        self._streams = streams
        self._log = streams.log
        self._application = application
        self._deleted: OwnStream | None = None  # what the row of a deleted application says
        self._row: Row | None = None

    async def mine(self) -> OwnStream:
        summary = await self._streams.summary()
        return OwnStream.of(summary.arn, summary.creation_time_s)

    async def check(self, is_new: bool) -> None:
        """`is_new`: there is no lease table, so a row is of an application that was deleted.

        Raises:
            ConfigurationError: the tables are of another stream, or nothing shows that they are of this one.
        """
        if not await self.is_known(is_new=is_new) and not is_new:
            await self._compare()
        mine = await self.mine()
        if mine.created_s is not None:
            self._streams.stream.watch.was_created(mine.created_s)

    async def is_known(self, *, is_new: bool = False) -> bool:
        """ConfigurationError if it names another one."""
        mine = await self.mine()
        self._row, stored = await read_own_stream(self._tables.coordinator)
        if is_new:
            self._deleted = stored
        is_known = stored is not None and stored != self._deleted
        if stored is not None and is_known:
            self._require(stored, mine)
        if stored is None and self._row is not None:
            self._log.warning(
                "own_stream_unreadable",
                row=STREAM_KEY,
                advice="a later version of the daemon wrote it, or somebody else. The leases are compared with the stream "
                "instead. Use one version, or write the row anew with `kcl-daemon leases adopt FILE`",
            )
        return is_known

    async def store(self) -> None:
        """Raises as `check`."""
        mine, row = await self.mine(), self._row
        stored = None if row is None else OwnStream.from_text(text_of(row))
        if stored == mine or (row is not None and stored is None):
            return
        written = await write_own_stream(self._tables.coordinator, row, mine)
        if written.applied:
            self._log.info("own_stream_stored", arn=mine.arn, created_s=mine.created_s)
            return
        _, stored = await read_own_stream(self._tables.coordinator)
        if stored is not None:
            self._require(stored, mine)

    async def stored(self) -> OwnStream | None:
        return (await read_own_stream(self._tables.coordinator))[1]

    async def adopt(self) -> None:
        """ConfigurationError if the row keeps changing."""
        mine, table = await self.mine(), self._tables.coordinator
        await table.ensure()  # a fleet of KCL 2.x has none
        for _ in range(_MAX_LOST_RACES):
            row, stored = await read_own_stream(table)
            if stored == mine or (await write_own_stream(table, row, mine)).applied:
                return
        raise ConfigurationError(
            f"the row {STREAM_KEY} of the table {table.name} kept changing; stop all workers"
        )

    def _require(self, stored: OwnStream, mine: OwnStream) -> None:
        if stored == mine:
            return
        where = f"the row {STREAM_KEY} of the table {self._tables.coordinator.name}"
        if stored.arn == mine.arn:
            raise ConfigurationError(
                f"the stream {mine.arn} was deleted and created again: the leases of {self._application} are of the "
                f"one {stream_words(stored)} ({where} says so), this one is {stream_words(mine)}. Nothing was read or written. "
                "Stop all workers and start over with `kcl-daemon leases reset FILE --to TRIM_HORIZON`, or use a new "
                "applicationName. If the leases are of the new stream already: `kcl-daemon leases adopt FILE`"
            )
        raise ConfigurationError(
            f"the tables of the application {self._application} belong to another stream: to {stream_words(stored)} ({where} says "
            f"so), and the file names {stream_words(mine)}. Nothing was read or written. Correct streamName or streamArn, or give "
            f"this stream an applicationName of its own. {_ON_PURPOSE}"
        )

    async def _compare(self) -> None:
        leases = [lease for lease in await leases_of(self._tables.leases) if lease.stream is None]
        why = why_not_own(await self.compared(leases)) if leases else None
        if why is not None:
            raise ConfigurationError(
                f"the leases of the application {self._application} (table {self._tables.leases.name}) do not belong to "
                f"the stream {(await self.mine()).arn}, or nothing shows that they do: {why}. Nothing was read or "
                "written. Correct streamName or streamArn, or give this stream an applicationName of its own. If they "
                f"are of this stream all the same, run `kcl-daemon leases adopt FILE`. {_ON_PURPOSE}"
            )

    async def compared(self, leases: Sequence[Lease]) -> ComparedLeases:
        stream = self._streams.stream.ref
        shards = counted_shards(await self._kinesis.list_shards(stream), leases)
        why = why_unlike(leases, shards, of_dynamodb=not stream.source.has_hash_keys)
        listed = {shard.shard_id for shard in shards}
        known = [each for each in leases if each.shard_id in listed and not each.checkpoint.is_sentinel]
        tried = known[:_MAX_TRIED] if why is None and stream.source.is_replaceable else []
        refusals = [await self._refusal(lease) for lease in tried]
        return ComparedLeases(shards, why, len(tried), tuple(each for each in refusals if each is not None))

    async def _refusal(self, lease: Lease) -> str | None:
        at = ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, str(lease.checkpoint.sequence_number))
        try:
            await self._kinesis.get_shard_iterator(self._streams.stream.ref, lease.shard_id, at)
        except InvalidRequest as error:
            return f"Kinesis refuses the checkpoint of {lease.shard_id}: {error}"
        except (AccessDenied, StreamNotFound):
            return None  # a role of fan-out may not ask; a shard may go meanwhile
        return None
