"""Positions as a person gives them, and the place in a shard that a time stands for.

A lease row holds a sequence number or a sentinel, never a time of its own, so a time is looked up in the shard itself.
Knows nothing of tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, IteratorKind, Kinesis, ReadFrom, StreamRef
from kcl_daemon.shards.shard import InitialPosition, StartAt
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

# How far before the time to begin the search, in seconds; the last record before it is near on a busy shard.
_WINDOWS_S: Final = (2.0, 20.0, 200.0, 2_000.0, 20_000.0, 200_000.0)
_READ_MOST: Final = 10_000
# A shard allows five reads a second, and its worker wants most of them.
_PAUSE_S: Final = 0.5


class PositionType(click.ParamType[InitialPosition]):
    """`TRIM_HORIZON`, `LATEST`, or a time in ISO 8601 (UTC where it names no zone) or epoch seconds."""

    name = "position"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> InitialPosition:
        """As click wants it."""
        text = str(value).strip()
        if text.upper() in (StartAt.TRIM_HORIZON.value, StartAt.LATEST.value):
            return InitialPosition(StartAt(text.upper()))
        at_s = _epoch_s(text)
        if at_s is None:
            self.fail(
                f"{text!r} is no position: TRIM_HORIZON, LATEST, a time such as 2026-11-20T12:00:00Z, or epoch seconds",
                param,
                ctx,
            )
        return InitialPosition(StartAt.TIMESTAMP, at_s)


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

    That is the last record before it; TRIM_HORIZON where none is kept.

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
        last: ExtendedSequenceNumber | None = None
        while iterator is not None:
            fetched = await self.kinesis.get_records(self.stream, self.shard_id, iterator, _READ_MOST)
            for record in fetched.records:
                if (record.approximate_arrival_timestamp or 0) >= self.at_s * 1000:
                    return last
                last = ExtendedSequenceNumber(record.sequence_number)
            if not fetched.records and not fetched.millis_behind_latest:
                break
            iterator = fetched.next_iterator
            await self.clock.sleep(_PAUSE_S)
        return last
