"""Where to begin in a shard, and how a restart of the child finds the same place again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.ports import IteratorKind, ReadFrom
from kcl_protocol.sequence import ExtendedSequenceNumber, Sentinel

_CLOCK_MARGIN_S: Final = 30.0


@dataclass(slots=True)
class StartMemory:
    """What a consumer has learnt about its beginning while the lease still holds a sentinel.

    A shard begun at LATEST has no position until its child checkpoints. A child that dies before that must not cost
    the records it was given: the next one begins at the first record of the first, or, if there was none yet, at the
    iterator that was reached.

    Args:
        first_sequence_number: of the first record ever fetched here.
        idle_iterator: the latest iterator while nothing has been fetched yet.
        idle_until_s: until when (epoch seconds, our clock) nothing had come.
        idle_after: of a subscription: nothing had come up to this sequence number.
        subscribed_at_s: monotonic, when the last subscription began.
    """

    first_sequence_number: str | None = None
    idle_iterator: str | None = None
    idle_until_s: float | None = None
    idle_after: str | None = None
    subscribed_at_s: float | None = None


def read_from(checkpoint: ExtendedSequenceNumber, memory: StartMemory, timestamp_s: float | None) -> ReadFrom:
    """The iterator to ask for.

    A checkpointed record is read again and dropped, because more of its aggregate may be to come. (KCL: IteratorBuilder)

    Args:
        checkpoint: of the lease; SHARD_END has nothing to read.
        memory: of this consumer.
        timestamp_s: the configured one, for leases that begin there.

    Raises:
        ValueError: the shard is finished.
    """
    if checkpoint.is_shard_end:
        raise ValueError("a finished shard has nothing to read")
    if not checkpoint.is_sentinel:
        return ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=checkpoint.sequence_number)
    if memory.first_sequence_number is not None:
        return ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=memory.first_sequence_number)
    if memory.idle_after is not None:
        return ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=memory.idle_after)
    return _at_sentinel(checkpoint, memory, timestamp_s)


def _at_sentinel(
    checkpoint: ExtendedSequenceNumber, memory: StartMemory, timestamp_s: float | None
) -> ReadFrom:
    match Sentinel(checkpoint.sequence_number):
        case Sentinel.AT_TIMESTAMP:
            # The table does not hold the time; a fleet whose workers are configured differently starts differently.
            return (
                ReadFrom(IteratorKind.TRIM_HORIZON)
                if timestamp_s is None
                else ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=timestamp_s)
            )
        case Sentinel.LATEST if memory.idle_until_s is not None:
            # LATEST again would jump over what came since; the margin covers clocks that differ.
            return ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=memory.idle_until_s - _CLOCK_MARGIN_S)
        case Sentinel.LATEST:
            return ReadFrom(IteratorKind.LATEST)
        case _:
            return ReadFrom(IteratorKind.TRIM_HORIZON)


def has_been_trimmed(checkpoint: ExtendedSequenceNumber, first_sequence_number: str) -> bool:
    """Whether the record of the checkpoint is gone, and with it perhaps some that nobody has read.

    Reading begins at that record, so it comes first as long as it is there; once it is older than the retention
    Kinesis begins with the oldest one instead, and says nothing.

    Args:
        checkpoint: where reading was to begin.
        first_sequence_number: of the first record that came.
    """
    return not checkpoint.is_sentinel and int(first_sequence_number) > int(checkpoint.sequence_number)
