"""Where reading begins: the five kinds of position, of iterators and of subscriptions. Knows no call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kcl_local.kinesis.account import Account
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import invalid_argument, malformed
from kcl_local.kinesis.shard import Shard
from kcl_local.kinesis.stream import Stream


@dataclass(frozen=True, slots=True)
class Start:
    """A position as a caller names it.

    Args:
        kind: such as `TRIM_HORIZON`.
        number: for AT_ and AFTER_SEQUENCE_NUMBER.
        timestamp_s: for AT_TIMESTAMP; epoch seconds, whole milliseconds.
    """

    kind: str
    number: str | None
    timestamp_s: float | None

    @classmethod
    def of_iterator(cls, arguments: Arguments) -> Self:
        """From the arguments of GetShardIterator."""
        return cls(
            arguments.text("ShardIteratorType"),
            arguments.optional_text("StartingSequenceNumber"),
            arguments.optional_timestamp("Timestamp"),
        )

    @classmethod
    def of_subscription(cls, position: Arguments) -> Self:
        """From StartingPosition of SubscribeToShard."""
        return cls(
            position.text("Type"),
            position.optional_text("SequenceNumber"),
            position.optional_timestamp("Timestamp"),
        )


def position_after(account: Account, stream: Stream, shard: Shard, start: Start) -> int:
    """The tick above which everything is still to be read; ServiceError for a start that makes no sense."""
    match start.kind:
        case "TRIM_HORIZON":
            return 0
        case "LATEST":
            records = shard.records
            return records.tick(len(records) - 1) if len(records) else shard.opened_tick
        case "AT_TIMESTAMP":
            return _after_time(account, shard, start)
        case "AT_SEQUENCE_NUMBER":
            return _issued_tick(stream, shard, start) - 1
        case "AFTER_SEQUENCE_NUMBER":
            return _issued_tick(stream, shard, start)
        case unknown:
            raise malformed(f"the type of position {unknown!r:.80} is unknown")


def _after_time(account: Account, shard: Shard, start: Start) -> int:
    if start.timestamp_s is None:
        raise invalid_argument("a position AT_TIMESTAMP needs Timestamp")
    if start.timestamp_s > account.now_s:
        raise invalid_argument(f"Timestamp {start.timestamp_s} is in the future: it is {account.now_s}")
    return shard.records.last_tick_before(start.timestamp_s)


def _issued_tick(stream: Stream, shard: Shard, start: Start) -> int:
    if start.number is None:
        raise invalid_argument("positions AT_ and AFTER_SEQUENCE_NUMBER need a sequence number")
    tick = stream.numbers.tick_of(start.number, shard.index)
    if tick is None or not shard.has_issued(tick):
        raise invalid_argument(
            f"sequence number {start.number:.80} was never issued by shard {shard.shard_id} of stream {stream.name}"
        )
    return tick
