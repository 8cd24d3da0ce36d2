"""Positions as a person gives them, the place in a shard that a time stands for, and the next record after a checkpoint.

A lease row holds a sequence number or a sentinel, never a time of its own, so a time is looked up in the shard itself.
Knows nothing of tables.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from kcl_daemon.cli.leases_change import NotChanged
from kcl_daemon.leases.lease import HashRange, Lease, ShardId
from kcl_daemon.ports import Clock, Fetched, IteratorKind, Kinesis, ReadFrom, StreamRef
from kcl_daemon.retrieval.aggregate import Deaggregator
from kcl_daemon.retrieval.payload import RawRecord, raw_record
from kcl_daemon.retrieval.start import StartMemory, read_from
from kcl_daemon.shards.shard import InitialPosition, StartAt
from kcl_daemon.system import SystemClock
from kcl_protocol.messages import Record
from kcl_protocol.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber

# How far before the time to begin the search, in seconds; the last record before it is near on a busy shard.
_WINDOWS_S: Final = (2.0, 20.0, 200.0, 2_000.0, 20_000.0, 200_000.0)
_READ_MOST: Final = 10_000
# A shard allows five reads a second, and its worker wants most of them.
_PAUSE_S: Final = 0.5
# More than these between a checkpoint and a record are no matter of skipping.
_SKIPPED_MOST: Final = 10_000
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_AGO: Final = re.compile(r"(?:\d{1,9}(?:\.\d+)?[smhd])+")


class PositionType(click.ParamType[InitialPosition]):
    """`TRIM_HORIZON`, `LATEST`, or a time: ISO 8601 (UTC where it names no zone), epoch seconds, or how long ago (`1h30m`)."""

    name = "position"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> InitialPosition:
        """As click wants it."""
        text = str(value).strip()
        if text.upper() in (StartAt.TRIM_HORIZON.value, StartAt.LATEST.value):
            return InitialPosition(StartAt(text.upper()))
        at_s = _ago_s(text, SystemClock()) or _epoch_s(text)
        if at_s is None:
            self.fail(
                f"{text!r} is not a position: TRIM_HORIZON, LATEST, a time such as 2026-11-20T12:00:00Z, "
                "how long ago such as 90s, 1h30m or 2d, or epoch seconds",
                param,
                ctx,
            )
        return InitialPosition(StartAt.TIMESTAMP, at_s)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A record that a person names; `whole`: all user records of its aggregate, if it is one."""

    position: ExtendedSequenceNumber
    whole: bool

    def is_before(self, record: RawRecord) -> bool:
        """Whether a record comes after all that was meant."""
        if self.whole:
            return int(record.sequence_number) > int(self.position.sequence_number)
        return record.position > self.position

    def is_covered_by(self, checkpoint: ExtendedSequenceNumber) -> bool:
        """Whether nothing of it is after a checkpoint, as far as can be told without reading."""
        if checkpoint.is_sentinel:
            return False
        if self.whole:
            return int(self.position.sequence_number) < int(checkpoint.sequence_number)
        return self.position <= checkpoint


class RecordType(click.ParamType[Wanted]):
    """A sequence number, or one with a sub-sequence number behind a slash."""

    name = "record"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Wanted:
        """As click wants it."""
        if isinstance(value, Wanted):
            return value
        number, slash, sub_number = str(value).strip().partition("/")
        if not (number.isdecimal() and (sub_number or ("" if slash else "0")).isdecimal()):
            self.fail(
                f"{value!r} is not a sequence number or SEQUENCE_NUMBER/SUB_SEQUENCE_NUMBER", param, ctx
            )
        return Wanted(ExtendedSequenceNumber(number, int(sub_number or 0)), whole=not sub_number)


def _ago_s(text: str, clock: Clock) -> float | None:
    if _AGO.fullmatch(text) is None:
        return None
    spans = re.findall(r"([\d.]+)([smhd])", text)
    return clock.wall_ms() / 1000 - sum(float(number) * _SECONDS[unit] for number, unit in spans)


def _epoch_s(text: str) -> float | None:
    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


async def just_before(
    kinesis: Kinesis, stream: StreamRef, shard_id: ShardId, at_s: float, *, clock: Clock
) -> ExtendedSequenceNumber:
    """The checkpoint with which reading goes on with the first record at or after a time.

    That is the last user record of the last record before it, for a KPL aggregate with its sub-sequence number: else all
    but the first one of that aggregate would come again. TRIM_HORIZON where none is kept.

    Raises:
        AwsError: Kinesis did not answer or refused.
    """
    search = _Search(kinesis, stream, shard_id, at_s, clock)
    starts = [ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=at_s - window_s) for window_s in _WINDOWS_S]
    for start in (*starts, ReadFrom(IteratorKind.TRIM_HORIZON)):
        found = await search.last_before(start)
        if found is not None:
            return found
    return TRIM_HORIZON


@dataclass(frozen=True, slots=True)
class _Search:
    """For the last record of a shard before a time."""

    kinesis: Kinesis
    stream: StreamRef
    shard_id: ShardId
    at_s: float
    clock: Clock

    async def last_before(self, start: ReadFrom) -> ExtendedSequenceNumber | None:
        """As far as there is one from `start` on."""
        iterator: str | None = await self.kinesis.get_shard_iterator(self.stream, self.shard_id, start)
        last: Record | None = None
        while iterator is not None:
            fetched = await self.kinesis.get_records(self.stream, self.shard_id, iterator, _READ_MOST)
            for record in fetched.records:
                if (record.approximate_arrival_timestamp or 0) >= self.at_s * 1000:
                    return _end_of(last)
                last = record
            if not fetched.records and not fetched.millis_behind_latest:
                break
            iterator = fetched.next_iterator
            await self.clock.sleep(_PAUSE_S)
        return _end_of(last)


def _end_of(record: Record | None) -> ExtendedSequenceNumber | None:
    """The position of the last user record in a record."""
    if record is None:
        return None
    users = _user_records(record, None)
    return users[-1].position if users else ExtendedSequenceNumber(record.sequence_number)


def _user_records(record: Record, hash_range: HashRange | None) -> list[RawRecord]:
    pieces = Deaggregator(hash_range, _as_it_came)(raw_record(record))
    return [each for piece, _ in pieces for each in piece]


def _as_it_came(_reason: str, _sequence_number: str) -> None:
    """What is no good aggregate is delivered as it came."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """What lies between a checkpoint and the end of what is skipped.

    Args:
        last: the record to go past, as children are given it.
        count: how many are skipped, that one included.
    """

    last: RawRecord
    count: int


async def next_records(
    kinesis: Kinesis,
    stream: StreamRef,
    lease: Lease,
    wanted: Wanted | None,
    *,
    start_s: float | None,
    clock: Clock,
) -> Skipped:
    """The records that a child would be given from the lease's checkpoint on, up to the one to go past.

    Args:
        kinesis: where they are.
        stream: of the lease.
        lease: as it was read.
        wanted: the record to go past; None: the next one.
        start_s: the configured time for leases that begin at one.
        clock: for pauses.

    Raises:
        NotChanged: there is no such record after the checkpoint.
        AwsError: Kinesis did not answer or refused.
    """
    _refuse_to_skip(lease, wanted)
    where = read_from(lease.checkpoint, StartMemory(), start_s)
    async with aclosing(_pages(kinesis, stream, lease.shard_id, where, clock)) as pages:
        return _found(await _last_skipped(pages, lease, wanted), wanted)


async def _last_skipped(pages: AsyncIterator[Fetched], lease: Lease, wanted: Wanted | None) -> Skipped | None:
    found: Skipped | None = None
    count = 0
    async for fetched in pages:
        for record in _undelivered(fetched, lease):
            if wanted is not None and wanted.is_before(record):
                return found
            count += 1
            found = Skipped(record, count)
            if wanted is None or (not wanted.whole and record.position == wanted.position):
                return found
            if count > _SKIPPED_MOST:
                raise NotChanged(f"more than {_SKIPPED_MOST} records are before that one; use `leases reset`")
        if wanted is not None and found is not None and not fetched.millis_behind_latest:
            return found
    return found


def _refuse_to_skip(lease: Lease, wanted: Wanted | None) -> None:
    if lease.is_finished:
        raise NotChanged(f"the lease {lease.lease_key} is finished; there is nothing to skip")
    if lease.checkpoint == LATEST:
        raise NotChanged(
            f"the lease {lease.lease_key} has no checkpoint yet (LATEST), so its next record is unknown; "
            "use `leases reset --to TIME`"
        )
    if wanted is not None and wanted.is_covered_by(lease.checkpoint):
        raise NotChanged(f"the checkpoint {lease.checkpoint} is already past the record {wanted.position}")


def _found(found: Skipped | None, wanted: Wanted | None) -> Skipped:
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


def _undelivered(fetched: Fetched, lease: Lease) -> Iterator[RawRecord]:
    for record in fetched.records:
        for user in _user_records(record, lease.hash_range):
            if lease.checkpoint.is_sentinel or user.position > lease.checkpoint:
                yield user


async def _pages(
    kinesis: Kinesis, stream: StreamRef, shard_id: ShardId, start: ReadFrom, clock: Clock
) -> AsyncGenerator[Fetched]:
    """What is in the shard from a position to its tip, as it is answered."""
    iterator: str | None = await kinesis.get_shard_iterator(stream, shard_id, start)
    while iterator is not None:
        fetched = await kinesis.get_records(stream, shard_id, iterator, _READ_MOST)
        yield fetched
        if not fetched.records and not fetched.millis_behind_latest:
            return
        iterator = fetched.next_iterator
        await clock.sleep(_PAUSE_S)
