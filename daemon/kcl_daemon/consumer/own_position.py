"""A child that stores its position by itself, with its output (no counterpart in KCL).

It says so in its answer to `initialize`, and reading begins after that position. What cannot be one is refused, and the child
with it: to begin anywhere else would lose records or give them twice.
"""

from __future__ import annotations

from typing import Final

import anyio

from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.lane import Lane
from kcl_daemon.errors import AwsError, ChildError, InvalidRequest, StreamNotFound
from kcl_daemon.ports import IteratorKind, ReadFrom
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.retrieval.source import ShardReader
from kcl_protocol.messages import Status
from kcl_protocol.sequence import ExtendedSequenceNumber

_PAUSE_S: Final = 1.0
REFUSED_ADVICE: Final = (
    "nothing was delivered or stored: correct the position in the child's own store, or delete it there, and reading begins "
    "at the checkpoint of the lease"
)


class PositionRefused(ChildError):
    """Nothing can begin there."""

    def __init__(self, position: str, why: str) -> None:
        super().__init__(f"child answered initialize with the position {position[:80]!r}: {why}")


def own_position(answer: Status, *, has_lanes: bool) -> ExtendedSequenceNumber | None:
    """None: the child leaves it to the lease. Raises PositionRefused."""
    number = answer.sequence_number
    if number is None:
        return None
    try:
        position = ExtendedSequenceNumber(number, answer.sub_sequence_number or 0)
    except ValueError as wrong:
        raise PositionRefused(number, str(wrong)) from wrong
    if position.is_sentinel:
        raise PositionRefused(number, "it must be the sequence number of a record")
    if has_lanes:
        raise PositionRefused(
            number, "a child of a shard with several cannot begin by itself; set shardConcurrency = 1"
        )
    return position


async def is_readable(
    position: ExtendedSequenceNumber,
    *,
    parts: ConsumerContext,
    lane: Lane,
    stop_signal: StopSignal,
) -> bool:
    """Asked until there is an answer; False also after a stop request. PositionRefused if Kinesis does not know it in this shard."""
    stream = parts.streams.of(lane.lease).ref
    asked = ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=position.sequence_number)
    while stop_signal.reason is StopReason.NONE:
        try:
            await parts.kinesis.get_shard_iterator(stream, lane.lease.shard_id, asked)
        except InvalidRequest as wrong:
            raise PositionRefused(str(position), f"this shard has no such record ({wrong})") from wrong
        except StreamNotFound:
            return False  # the reader finds out what is gone
        except AwsError as error:
            lane.progress.waits(WaitReason.KINESIS, str(error))
            await stop_signal.interruptible(lambda: parts.context.clock.sleep(_PAUSE_S))
        else:
            return True
    return False


class Reading:
    def __init__(self, reader: ShardReader) -> None:
        self.reader = reader
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    async def run(self) -> None:
        try:
            with self._scope:
                await self.reader.run()
        finally:
            self._ended.set()

    async def end(self) -> None:
        self._scope.cancel()
        await self._ended.wait()
        self.reader.close()
