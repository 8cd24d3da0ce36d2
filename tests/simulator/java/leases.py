"""The leases that a Java worker holds: renewal, local expiry, discovery, checkpoints, the end of a hand-off.

Owns the held leases and their counters. Knows nothing of records; whoever consumes a shard is
told that its lease is to be passed on, and sees that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

import anyio

from kcl_daemon.errors import AwsError, Throttled
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.leases.row import Row, RowUpdate, WriteResult, is_lease_row, lease_from_row
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.java import rows as java_rows
from tests.simulator.java.host import FAILOVER_S, HANDOFF_S, RENEW_S, Host

# The pool of a default worker renews so many leases at once, and the discovery reads as many.
_AT_ONCE: Final = 5


@dataclass(slots=True)
class Throughput:
    """What a lease was given to process of late, and its moving average."""

    samples: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    average_kbps: float | None = None

    def add(self, at_s: float, size_bytes: float) -> None:
        """Note a batch."""
        self.samples.append((at_s, size_bytes))

    def next_average_kbps(self, now_s: float) -> float | None:
        """The average after this renewal; None as long as there was nothing."""
        if not self.samples and self.average_kbps is None:
            return None
        self.samples = [sample for sample in self.samples if now_s - sample[0] < RENEW_S]
        newest = sum(size for _, size in self.samples) / 1024 / RENEW_S
        old = self.average_kbps
        self.average_kbps = newest if old is None else (newest + old) / 2
        return self.average_kbps


@dataclass(slots=True, eq=False)
class Held:
    """One lease from its acquisition to its loss.

    Args:
        lease: as it was last written or read.
        moved_s: when its counter last moved, by our clock.
        turn: renewals and checkpoints take turns.
        throughput: of its records.
        pass_on_by_s: when a hand-off is cut short by us; None: there is none.
    """

    lease: Lease
    moved_s: float
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    throughput: Throughput = field(default_factory=Throughput)
    pass_on_by_s: float | None = None


class Stored(Enum):
    """What became of a checkpoint."""

    YES = auto()
    LOST = auto()
    FAILED = auto()


class JavaLeases:
    """All leases of one worker.

    Args:
        host: the worker.
        on_handoff: called, at each renewal, for a lease that is to be passed on; False: nobody consumes it.
    """

    def __init__(self, host: Host, on_handoff: Callable[[Held], bool]) -> None:
        self._host = host
        self._table = host.tables.leases
        self._on_handoff = on_handoff
        self._held: dict[LeaseKey, Held] = {}

    @property
    def current(self) -> list[Held]:
        """Held and not expired."""
        return [held for held in self._held.values() if not self._is_expired(held)]

    def holds(self, held: Held) -> bool:
        """Whether this acquisition is still good."""
        return self._held.get(held.lease.lease_key) is held and not self._is_expired(held)

    def drop(self, held: Held) -> None:
        """Forget it; nothing is written."""
        if self._held.get(held.lease.lease_key) is held:
            del self._held[held.lease.lease_key]

    def forget_all(self) -> None:
        """The end of the worker."""
        self._held.clear()

    async def adopt(self) -> None:
        """C7: what bears our name and is in no hand-off goes on at once, even if it has expired."""
        for row in await self._table.scan():
            lease = lease_from_row(row) if is_lease_row(row) else None
            if lease is None or lease.lease_owner != self._host.me or lease.checkpoint_owner is not None:
                continue
            held = Held(lease, self._host.now_s())
            written = await self._table.update(java_rows.renewal(lease, None))
            if written.applied:
                self._take_in(held, written.row)
                self._held[lease.lease_key] = held

    async def discover(self) -> None:
        """D: what the index shows as ours and the row as well; nothing is written."""
        keys = await self._table.owned_keys(self._host.me)
        new = [LeaseKey(key) for key in keys if key not in self._held]
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def poll(key: LeaseKey) -> None:
            async with limiter:
                try:
                    row = await self._table.get(key)
                except AwsError as error:
                    self._host.log.info("java_discovery_failed", lease_key=key, error=str(error))
                    return
            lease = None if row is None else lease_from_row(row)
            if lease is None or lease.lease_owner != self._host.me or lease.checkpoint_owner is not None:
                return
            if key not in self._held:
                self._held[key] = held = Held(lease, self._host.now_s())
                held.throughput.average_kbps = lease.throughput_kbps

        async with anyio.create_task_group() as reads:
            for key in new:
                reads.start_soon(poll, key)

    async def renew(self) -> None:
        """C1: all of them, in descending order of their keys."""
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def renew_one(held: Held) -> None:
            async with limiter, held.turn:
                try:
                    await self._renew(held)
                except AwsError as error:
                    self._host.log.info(
                        "java_renewal_failed", lease_key=held.lease.lease_key, error=str(error)
                    )

        async with anyio.create_task_group() as renewals:
            for key in sorted(self._held, reverse=True):
                renewals.start_soon(renew_one, self._held[key])

    async def checkpoint(self, held: Held, position: ExtendedSequenceNumber) -> Stored:
        """Fenced by the counter; a refusal costs the lease at once."""
        async with held.turn:
            if not self.holds(held):
                return Stored.LOST
            try:
                written = await self._twice(java_rows.checkpoint(held.lease, position))
            except AwsError as error:
                self._host.log.info(
                    "java_checkpoint_failed", lease_key=held.lease.lease_key, error=str(error)
                )
                return Stored.FAILED
            if not written.applied:
                self._lose(held, "its checkpoint was refused")
                return Stored.LOST
            self._take_in(held, written.row)
            return Stored.YES

    async def set_children(self, held: Held, shard_ids: frozenset[ShardId]) -> None:
        """T5.8."""
        async with held.turn:
            await self._table.update(java_rows.children(held.lease, shard_ids))
            held.lease = replace(held.lease, child_shard_ids=shard_ids)

    async def pass_on(self, held: Held) -> None:
        """H5: where the lease is in a hand-off, it goes to its next owner. It is for the caller to drop it."""
        async with held.turn:
            lease = held.lease
            if not _is_leaving(lease, self._host.me) or lease.lease_owner is None:
                return
            held.pass_on_by_s = None
            written = await self._table.update(java_rows.assignment(lease, lease.lease_owner))
            if written.applied:
                self._host.log.info("java_lease_passed_on", lease_key=lease.lease_key, to=lease.lease_owner)

    async def watch_handoffs(self) -> None:
        """H7: what is not passed on in time is passed on all the same; its consumer goes on until a renewal fails."""
        for held in self.current:
            if held.pass_on_by_s is not None and self._host.now_s() >= held.pass_on_by_s:
                await self.pass_on(held)

    def _is_expired(self, held: Held) -> bool:
        return self._host.now_s() - held.moved_s > FAILOVER_S

    async def _renew(self, held: Held) -> None:
        """C3."""
        lease, me = held.lease, self._host.me
        if self._held.get(lease.lease_key) is not held:
            return
        if lease.checkpoint_owner is not None and not _is_leaving(lease, me):
            self._lose(held, "it was passed on")
            return
        if self._is_expired(held):
            self._lose(held, "it expired")
            return
        throughput = held.throughput.next_average_kbps(self._host.now_s())
        written = await self._twice(java_rows.renewal(lease, throughput))
        if not written.applied and written.row is not None:
            refusing = lease_from_row(written.row)
            if refusing.checkpoint_owner is not None and _is_leaving(refusing, me):
                held.lease = replace(
                    lease, lease_owner=refusing.lease_owner, checkpoint_owner=refusing.checkpoint_owner
                )
                written = await self._twice(java_rows.renewal(held.lease, throughput))
        if not written.applied and not await self._was_renewed(held):
            self._lose(held, "its renewal was refused")
            return
        if written.applied:
            self._take_in(held, written.row)
        self._ask_to_pass_on(held)

    async def _was_renewed(self, held: Held) -> bool:
        """T5.11b: a renewal whose answer got lost."""
        row = await self._table.get(held.lease.lease_key)
        if row is None:
            return False
        lease = lease_from_row(row)
        if lease.lease_owner != self._host.me or lease.lease_counter != held.lease.lease_counter + 1:
            return False
        held.lease = replace(held.lease, lease_counter=lease.lease_counter)
        held.moved_s = self._host.now_s()
        return True

    def _ask_to_pass_on(self, held: Held) -> None:
        """H3: once."""
        if _is_leaving(held.lease, self._host.me) and held.pass_on_by_s is None and self._on_handoff(held):
            held.pass_on_by_s = self._host.now_s() + HANDOFF_S

    async def _twice(self, update: RowUpdate) -> WriteResult:
        """C4: throttling is tried once more at once."""
        try:
            return await self._table.update(update)
        except Throttled:
            return await self._table.update(update)

    def _take_in(self, held: Held, row: Row | None) -> None:
        """A write took effect: what it changed is known, what others changed is not."""
        assert row is not None
        lease = lease_from_row(row)
        held.lease = replace(held.lease, lease_counter=lease.lease_counter, checkpoint=lease.checkpoint)
        held.moved_s = self._host.now_s()

    def _lose(self, held: Held, reason: str) -> None:
        self._host.log.info("java_lease_lost", lease_key=held.lease.lease_key, reason=reason)
        self.drop(held)


def _is_leaving(lease: Lease, me: str) -> bool:
    """Whether we are the old owner in a hand-off."""
    return lease.checkpoint_owner == me and lease.lease_owner != me
