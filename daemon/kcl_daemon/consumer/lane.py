"""What one child works on: a lane of a shard. A shard with one child has one lane, which is all of it.

The run of a child takes records from its lane, stores its checkpoints there and gives it back there.

A child may store its position by itself, with its output (no counterpart in KCL). It says so in its answer to `initialize`, and reading begins after that position. What cannot be one is refused, and the child
with it: to begin anywhere else would lose records or give them twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio

from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.errors import AwsError, ChildError, InvalidRequest, StreamNotFound
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases.lease import Lease, LeaseKey, Throughput
from kcl_daemon.ports import ChildLane, IteratorKind, Log, ReadFrom
from kcl_daemon.progress.progress import NEVER_S, LeaseProgress, WaitReason
from kcl_daemon.retrieval.source import DeliveryBatch, EndOfShard, ReadItem, ShardReader, ShardSource
from kcl_daemon.shards.lineage import ChildShard
from kcl_protocol.messages import Status
from kcl_protocol.sequence import AT_TIMESTAMP, ExtendedSequenceNumber

_PAUSE_S: Final = 1.0
REFUSED_ADVICE: Final = (
    "nothing was delivered or stored: correct the position in the child's own store, or delete it there, and reading begins "
    "at the checkpoint of the lease"
)


class Lane(Protocol):
    """What is known of the lease is always its present state.

    Args:
        child_lane: None: it is the only one of its shard.
        lost: why the lease is lost; None while it is held.
        handed_over: another worker waits for the lease, and this one has not announced that itself.
    """

    @property
    def child_lane(self) -> ChildLane | None: ...

    @property
    def key(self) -> LeaseKey: ...

    @property
    def lease(self) -> Lease: ...

    @property
    def checkpoint(self) -> ExtendedSequenceNumber: ...

    @property
    def lost(self) -> str | None: ...

    @property
    def handed_over(self) -> bool: ...

    @property
    def progress(self) -> LeaseProgress: ...

    @property
    def throughput(self) -> Throughput: ...

    def reader(self, source: ShardSource, log: Log) -> ShardReader:
        """Its records from `source.checkpoint` on."""
        ...

    async def store(self, position: ExtendedSequenceNumber) -> None:
        """Raises as `LeaseRenewer.checkpoint`."""
        ...

    async def end(self, children: tuple[ChildShard, ...], log: Log) -> bool | None:
        """True once the shard may end: as `create_child_leases`."""
        ...

    async def release(self) -> None:
        """Returns when the lease of the shard is released."""
        ...


class OnlyLane:
    """All of a shard."""

    child_lane = None

    def __init__(self, parts: ConsumerContext, held: HeldLease) -> None:
        self._parts = parts
        self._held = held
        self.key = held.key
        self.progress = held.progress
        self.throughput = held.throughput

    @property
    def lease(self) -> Lease:
        return self._held.lease

    @property
    def checkpoint(self) -> ExtendedSequenceNumber:
        return self._held.lease.checkpoint

    @property
    def lost(self) -> str | None:
        return self._held.lost

    @property
    def handed_over(self) -> bool:
        return self._held.next_owner is not None and not self._held.announced

    def reader(self, source: ShardSource, log: Log) -> ShardReader:
        return self._parts.readers.reader(source, hash_range=self._held.lease.hash_range, log=log)

    async def store(self, position: ExtendedSequenceNumber) -> None:
        await self._parts.renewer.checkpoint(self._held, position)

    async def end(self, children: tuple[ChildShard, ...], log: Log) -> bool | None:
        from kcl_daemon.consumer.shard_end import create_child_leases

        return await create_child_leases(self._parts, self._held, children, log)

    async def release(self) -> None:
        await self._parts.renewer.release_lease(self._held)


class Lanes(Protocol):
    async def checkpointed(self, lane: KeyLane, position: ExtendedSequenceNumber) -> None: ...

    async def until_released(self, lane: KeyLane) -> None: ...

    async def next_of(self, lane: KeyLane) -> DeliveryBatch | EndOfShard: ...


@dataclass(eq=False, slots=True)
class KeyLane:
    """One child after another, for the same keys.

    Args:
        batch: records and bytes that its child works on.
        kept_bytes: of this batch, kept because records of it may be rejected.
        furthest: the last record that any child of it was given.
        until_s: when it is given what is gathered; None: nothing is.
    """

    child_lane: ChildLane
    shard: HeldLease
    lanes: Lanes
    progress: LeaseProgress
    log: Log
    checkpoint: ExtendedSequenceNumber
    stop_signal: StopSignal = field(default_factory=StopSignal)
    filled: anyio.Event = field(default_factory=anyio.Event)
    running: bool = False
    idle: bool = False
    waits_for_release: bool = False
    offers_empty: bool = False
    batch: tuple[int, int] = (0, 0)
    kept_bytes: int = 0
    progressed_s: float = NEVER_S
    furthest: ExtendedSequenceNumber = AT_TIMESTAMP
    until_s: float | None = None

    @property
    def number(self) -> int:
        return self.child_lane.number

    @property
    def key(self) -> LeaseKey:
        return self.shard.key

    @property
    def lease(self) -> Lease:
        return self.shard.lease

    @property
    def moved_s(self) -> float:
        return self.shard.moved_s

    @property
    def lost(self) -> str | None:
        return self.shard.lost

    @property
    def handed_over(self) -> bool:
        return self.shard.next_owner is not None and not self.shard.announced

    @property
    def throughput(self) -> Throughput:
        return self.shard.throughput

    def reader(self, source: ShardSource, log: Log) -> ShardReader:  # noqa: ARG002 - the shard is read for all
        return _Reader(self)

    def keeps_nothing(self) -> None:
        self.kept_bytes = 0

    async def store(self, position: ExtendedSequenceNumber) -> None:
        """Raises CheckpointInvalidState for a record of another lane."""
        await self.lanes.checkpointed(self, position)

    async def end(self, children: tuple[ChildShard, ...], log: Log) -> bool | None:  # noqa: ARG002 - of the shard
        """Their leases were created before any lane ends."""
        return True

    async def release(self) -> None:
        """Waits for all lanes."""
        await self.lanes.until_released(self)


class _Reader:
    """The shard is read for all lanes."""

    trouble = None
    oldest_s = None
    waiting = (0, 0)

    def __init__(self, lane: KeyLane) -> None:
        self._lane = lane

    async def run(self) -> None: ...

    async def next(self) -> ReadItem:
        return await self._lane.lanes.next_of(self._lane)

    def close(self) -> None: ...


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
    position: ExtendedSequenceNumber, *, parts: ConsumerContext, lane: Lane, stop_signal: StopSignal
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
