from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Final

import click

from kcl_daemon import faults
from kcl_daemon.cli.common import NotChanged
from kcl_daemon.config.kinds import age_s, moment_s
from kcl_daemon.fleet.streams import leases_of
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.leases.row import (
    MalformedRowError,
    creation,
    if_unchanged,
    lease_from_row,
    release,
    reposition,
)
from kcl_daemon.ports import Clock, FetchedRecords, IteratorKind, Kinesis, ReadFrom, StreamRef, Table
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import AnyRecord, raw_record
from kcl_daemon.retrieval.distribution import Distribution, user_records
from kcl_daemon.retrieval.source import StartMemory, read_from
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.shards.sync import LeaseChange, ResetKind
from kcl_daemon.system import SystemClock
from kcl_protocol.messages import Record
from kcl_protocol.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber

# An owner renews only every few seconds: a retry soon succeeds.
_MAX_LOST_RACES: Final = 10
# The search starts this long before the time.
_WINDOWS_S: Final = (2.0, 20.0, 200.0, 2_000.0, 20_000.0, 200_000.0)
_READ_MOST: Final = 10_000
# The worker needs most of a shard's five reads a second.
_PAUSE_S: Final = 0.5
_SKIPPED_MOST: Final = 10_000


class ChangeResult(Enum):
    WRITTEN = "done"
    GONE = "nothing to do, the lease no longer exists"
    THERE = "nothing to do, the lease already exists"


async def all_leases(table: Table) -> tuple[Lease, ...]:
    return tuple(sorted(await leases_of(table), key=lambda lease: lease.lease_key))


def chosen_leases(leases: Sequence[Lease], names: Iterable[str]) -> tuple[Lease, ...]:
    """By shard id or lease key. NotChanged: a name has no lease, or leases in several streams."""
    wanted = list(dict.fromkeys(names))
    missing = [
        name for name in wanted if not any(name in (lease.lease_key, lease.shard_id) for lease in leases)
    ]
    if missing:
        raise NotChanged(
            f"there is no lease {', '.join(missing)}; `kcl-daemon leases list --all` shows all leases"
        )
    for name in wanted:
        if len([lease for lease in leases if lease.shard_id == name]) > 1:
            raise NotChanged(f"several streams have a shard {name}; add --stream, or use the lease key")
    return tuple(lease for lease in leases if lease.lease_key in wanted or lease.shard_id in wanted)


async def carry_out(table: Table, change: LeaseChange) -> ChangeResult:
    """NotChanged if the row is unreadable or kept changing. After Unavailable it may have been written."""
    if change.kind is ResetKind.CREATE:
        created = await table.put(*creation(change.lease))
        return ChangeResult.WRITTEN if created.applied else ChangeResult.THERE

    async def write(lease: Lease) -> bool:
        if change.position is None:
            written = await table.delete(lease.lease_key, if_unchanged(lease))
        else:
            written = await table.update(reposition(lease, change.position))
        return written.applied

    is_there = await _write_now(table, change.lease.lease_key, write)
    return ChangeResult.WRITTEN if is_there else ChangeResult.GONE


async def carry_out_all(table: Table, changes: Iterable[LeaseChange], report: Callable[[str], object]) -> int:
    """How many were written; after an error, earlier changes stay."""
    written = 0
    for change in changes:
        done = await carry_out(table, change)
        if done is ChangeResult.WRITTEN:
            written += 1
        else:
            report(f"{change.lease.lease_key}: {done.value}")
    return written


async def move_past(table: Table, lease: Lease, position: ExtendedSequenceNumber) -> ChangeResult:
    """NotChanged also if the checkpoint has moved since it was read."""

    async def write(now: Lease) -> bool:
        if now.checkpoint != lease.checkpoint:
            raise NotChanged(
                f"the checkpoint of {lease.lease_key} has just moved to {now.checkpoint}; nothing was "
                "skipped, check again"
            )
        return (await table.update(reposition(now, position))).applied

    is_there = await _write_now(table, lease.lease_key, write)
    return ChangeResult.WRITTEN if is_there else ChangeResult.GONE


async def release_all(table: Table, keys: Iterable[LeaseKey], report: Callable[[str], object]) -> int:
    written = 0
    for key in keys:
        if await release_lease(table, key):
            written += 1
        else:
            report(f"{key}: it no longer has an owner")
    return written


async def release_lease(table: Table, key: LeaseKey) -> bool:
    """So that the leader assigns it again. False: it has no owner. NotChanged: there is no lease."""
    had_owner = True

    async def write(lease: Lease) -> bool:
        nonlocal had_owner
        had_owner = lease.lease_owner is not None
        return not had_owner or (await table.update(release(lease))).applied

    if not await _write_now(table, key, write):
        raise NotChanged(f"the lease {key} no longer exists")
    return had_owner


async def _write_now(table: Table, key: LeaseKey, write: Callable[[Lease], Awaitable[bool]]) -> bool:
    for _ in range(_MAX_LOST_RACES):
        row = await table.get(key)
        if row is None:
            return False
        try:
            lease = lease_from_row(row)
        except MalformedRowError as malformed:
            raise NotChanged(f"{malformed}; repair or delete that row") from malformed
        if await write(lease):
            faults.maybe("after-lease-changed")
            return True
    raise NotChanged(f"the lease {key} kept changing; try again")


def position_of(text: str) -> InitialPosition:
    """`TRIM_HORIZON`, `LATEST`, ISO 8601 (default UTC), epoch seconds, or an age (`1h30m`)."""
    text = text.strip()
    if text.upper() in (StartAt.TRIM_HORIZON.value, StartAt.LATEST.value):
        return InitialPosition(StartAt(text.upper()))
    age = age_s(text)
    at_s = moment_s(text) if age is None else SystemClock().wall_ms() / 1000 - age
    if at_s is None:
        raise click.BadParameter(
            f"{text!r} is not a position: TRIM_HORIZON, LATEST, a time such as 2026-11-20T12:00:00Z, "
            "how long ago such as 90s, 1h30m or 2d, or epoch seconds"
        )
    return InitialPosition(StartAt.TIMESTAMP, at_s)


@dataclass(frozen=True, slots=True)
class RecordTarget:
    position: ExtendedSequenceNumber
    whole: bool

    def is_before(self, record: AnyRecord) -> bool:
        if self.whole:
            return int(record.sequence_number) > int(self.position.sequence_number)
        return record.position > self.position

    def is_covered_by(self, checkpoint: ExtendedSequenceNumber) -> bool:
        if checkpoint.is_sentinel:
            return False
        if self.whole:
            return int(self.position.sequence_number) < int(checkpoint.sequence_number)
        return self.position <= checkpoint


def record_of(text: str) -> RecordTarget:
    number, slash, sub_number = text.strip().partition("/")
    if not (number.isdecimal() and (sub_number or ("" if slash else "0")).isdecimal()):
        raise click.BadParameter(f"{text!r} is not a sequence number or SEQUENCE_NUMBER/SUB_SEQUENCE_NUMBER")
    return RecordTarget(ExtendedSequenceNumber(number, int(sub_number or 0)), whole=not sub_number)


async def just_before(
    kinesis: Kinesis, stream: StreamRef, shard_id: ShardId, at_s: float, *, clock: Clock
) -> ExtendedSequenceNumber:
    """The checkpoint after which the first record at or after a time is read.

    A row cannot hold a time. It is the last earlier user record, or TRIM_HORIZON; without its sub-sequence number,
    the rest of a KPL aggregate would be read again.
    """
    starts = [ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=at_s - window_s) for window_s in _WINDOWS_S]
    for start in (*starts, ReadFrom(IteratorKind.TRIM_HORIZON)):
        async with aclosing(_pages(kinesis, stream, shard_id, start, clock)) as pages:
            found = _end_of(await _last_before(pages, at_s))
        if found is not None:
            return found
    return TRIM_HORIZON


async def _last_before(pages: AsyncIterator[FetchedRecords], at_s: float) -> Record | None:
    last: Record | None = None
    async for fetched in pages:
        for record in fetched.records:
            if (record.approximate_arrival_timestamp or 0) >= at_s * 1000:
                return last
            last = record
    return last


def _end_of(record: Record | None) -> ExtendedSequenceNumber | None:
    if record is None:
        return None
    users = [each for piece, _ in Deaggregator(None, _as_it_came)(raw_record(record)) for each in piece]
    return users[-1].position if users else ExtendedSequenceNumber(record.sequence_number)


def _as_it_came(_reason: str, _sequence_number: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SkippedRange:
    last: AnyRecord
    count: int


async def next_records(
    kinesis: Kinesis,
    stream: StreamRef,
    lease: Lease,
    wanted: RecordTarget | None,
    *,
    start_s: float | None,
    clock: Clock,
) -> SkippedRange:
    """NotChanged if there is none."""
    _refuse_to_skip(lease, wanted)
    where = read_from(lease.checkpoint, StartMemory(), start_s)
    distribution = Distribution(kinesis, stream, clock)

    async def opened(fetched: FetchedRecords) -> list[AnyRecord]:
        found = user_records(fetched.payload, lease.hash_range, distribution, clock)
        return [
            each async for each in found if lease.checkpoint.is_sentinel or each.position > lease.checkpoint
        ]

    async with aclosing(_pages(kinesis, stream, lease.shard_id, where, clock)) as pages:
        return _found(await _last_skipped(pages, opened, wanted), wanted)


async def _last_skipped(
    pages: AsyncIterator[FetchedRecords],
    opened: Callable[[FetchedRecords], Awaitable[list[AnyRecord]]],
    wanted: RecordTarget | None,
) -> SkippedRange | None:
    found: SkippedRange | None = None
    count = 0
    async for fetched in pages:
        for record in await opened(fetched):
            if wanted is not None and wanted.is_before(record):
                return found
            count += 1
            found = SkippedRange(record, count)
            if wanted is None or (not wanted.whole and record.position == wanted.position):
                return found
            if count > _SKIPPED_MOST:
                raise NotChanged(f"more than {_SKIPPED_MOST} records are before that one; use `leases reset`")
        if wanted is not None and found is not None and not fetched.millis_behind_latest:
            return found
    return found


def _refuse_to_skip(lease: Lease, wanted: RecordTarget | None) -> None:
    if lease.is_finished:
        raise NotChanged(f"the lease {lease.lease_key} is finished; there is nothing to skip")
    if lease.checkpoint == LATEST:
        raise NotChanged(
            f"the lease {lease.lease_key} has no checkpoint yet (LATEST), so its next record is unknown; "
            "use `leases reset --to TIME`"
        )
    if wanted is not None and wanted.is_covered_by(lease.checkpoint):
        raise NotChanged(f"the checkpoint {lease.checkpoint} is already past the record {wanted.position}")


def _found(found: SkippedRange | None, wanted: RecordTarget | None) -> SkippedRange:
    if found is None:
        raise NotChanged("there is no record after the checkpoint")
    at = found.last.position
    if wanted is None or at == wanted.position:
        return found
    if wanted.whole and at.sequence_number == wanted.position.sequence_number:
        return found
    raise NotChanged(
        f"the shard has no record {wanted.position} after the checkpoint; the last one before it is {at}"
    )


async def _pages(
    kinesis: Kinesis, stream: StreamRef, shard_id: ShardId, start: ReadFrom, clock: Clock
) -> AsyncGenerator[FetchedRecords]:
    iterator: str | None = await kinesis.get_shard_iterator(stream, shard_id, start)
    while iterator is not None:
        fetched = await kinesis.get_records(stream, shard_id, iterator, _READ_MOST)
        yield fetched
        if not fetched.records and not fetched.millis_behind_latest:
            return
        iterator = fetched.next_iterator
        await clock.sleep(_PAUSE_S)
