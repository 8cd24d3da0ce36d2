"""One lane of a shard with several children: what it has, and what stands for its lease and its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from kcl_daemon.consumer.context import StopSignal
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases.lease import HashRange, LeaseKey, ShardId
from kcl_daemon.ports import Log
from kcl_daemon.progress.invariants import Invariants
from kcl_daemon.progress.progress import NEVER_S
from kcl_daemon.retrieval.byte_budget import Reservation
from kcl_daemon.retrieval.source import (
    DeliveryBatch,
    EndOfShard,
    ReadItem,
    ShardReader,
    ShardSource,
    TakesFrames,
)
from kcl_protocol.sequence import AT_TIMESTAMP, ExtendedSequenceNumber


@dataclass(eq=False, slots=True)
class Lane:
    """One child after another, for the same keys.

    Args:
        waits_for_release: its child has made its last checkpoint.
        batch: records and bytes that its child works on.
        kept_bytes: of the line of this batch, kept because records of it may be rejected.
        furthest: the last record that any child of it was given.
        until_s: when it is given what is gathered for its next batch; None: nothing is.
    """

    number: int
    held: HeldLease
    log: Log
    stop_signal: StopSignal = field(default_factory=StopSignal)
    filled: anyio.Event = field(default_factory=anyio.Event)
    running: bool = False
    idle: bool = False
    waits_for_release: bool = False
    offers_empty: bool = False
    batch: tuple[int, int] = (0, 0)
    kept_bytes: int = 0
    progressed_s: float = NEVER_S
    takes_frames: TakesFrames = bool
    furthest: ExtendedSequenceNumber = AT_TIMESTAMP
    until_s: float | None = None


class Lanes(Protocol):
    async def checkpointed(self, lane: Lane, held: HeldLease, position: ExtendedSequenceNumber) -> None: ...

    async def until_released(self, lane: Lane) -> None: ...

    async def next_of(self, lane: Lane) -> DeliveryBatch | EndOfShard: ...


class LaneLeases:
    keeps_finished = False

    def __init__(self, lanes: Lanes, lane: Lane) -> None:
        self._lanes = lanes
        self._lane = lane

    @property
    def held(self) -> dict[LeaseKey, HeldLease]:
        return {self._lane.held.key: self._lane.held}

    def holds(self, key: LeaseKey) -> bool:
        return key in self.held

    def awaits_standby(self, held: HeldLease) -> bool:  # noqa: ARG002 - as of a lease
        return False

    async def checkpoint(self, held: HeldLease, position: ExtendedSequenceNumber) -> None:
        await self._lanes.checkpointed(self._lane, held, position)

    async def reach(self, held: HeldLease, until_ms: int) -> None:
        raise AssertionError(f"{held.key} is at {until_ms} for all lanes or for none")

    async def write_children(self, held: HeldLease, child_shard_ids: frozenset[ShardId]) -> None:
        raise AssertionError(f"{child_shard_ids} of {held.key} are written once for all lanes")

    async def release_lease(self, held: HeldLease, *, degraded: bool = False) -> None:  # noqa: ARG002 - as of a lease
        """Returns when the lease of the shard is released, which waits for all lanes."""
        await self._lanes.until_released(self._lane)


class LaneReader:
    trouble = None
    oldest_s = None
    waiting = (0, 0)

    def __init__(self, lanes: Lanes, lane: Lane) -> None:
        self._lanes = lanes
        self._lane = lane

    def reader(self, source: ShardSource, *, hash_range: HashRange | None, log: Log) -> ShardReader:  # noqa: ARG002 - as of a shard
        self._lane.takes_frames = source.takes_frames
        return self

    def reserve(self, shrink: Callable[[], None], invariants: Invariants) -> Reservation:  # noqa: ARG002 - as of a shard
        raise AssertionError("all lanes of a shard have one reservation")

    async def run(self) -> None:
        """The shard is read for all lanes."""

    async def next(self) -> ReadItem:
        return await self._lanes.next_of(self._lane)

    def close(self) -> None: ...
