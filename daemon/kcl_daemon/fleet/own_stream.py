"""A worker does not start on the tables of another stream. KCL compares nothing.

The row `daemon/stream` names the stream. Where there is none yet, the leases are compared with the stream's shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcl_daemon.errors import AccessDenied, ConfigurationError, InvalidRequest, StreamNotFound, TableNotFound
from kcl_daemon.fleet.streams import SingleStreamTracker, counted_shards, leases_of
from kcl_daemon.fleet.table_views import write_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Row, WriteResult
from kcl_daemon.leases.text_row import STREAM_KEY, OwnStream, text_of, text_write
from kcl_daemon.ports import IteratorKind, ReadFrom, Table, Tables
from kcl_daemon.shards.lineage import Shard, why_unlike
from kcl_daemon.text import time_text

_MAX_TRIED: Final = 5
_MAX_LOST_RACES: Final = 10
_ON_PURPOSE: Final = (
    "If it shall read this stream from now on, stop its workers, then run `kcl-daemon leases adopt FILE` and "
    "`kcl-daemon leases reset FILE --to POSITION`"
)


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
