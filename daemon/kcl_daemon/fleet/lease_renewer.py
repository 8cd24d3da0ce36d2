"""The leases this worker holds: renew, checkpoint, release (KCL: DynamoDBLeaseRenewer).

All writes of a lease take its lock, so renewal and checkpoint cannot race.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from kcl_daemon import faults
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError, InvariantViolated, LeaseLost, Unavailable
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.fence import LeaseGone, judge_written_row
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, Throughput, WorkerId
from kcl_daemon.leases.row import MalformedRowError, Row, RowUpdate, WriteResult
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Log, Meters, Span, Table
from kcl_daemon.progress.progress import LeaseProgress
from kcl_protocol.sequence import LATEST, ExtendedSequenceNumber


def lease_labels(lease: Lease) -> dict[str, str]:
    if lease.stream is None:
        return {"shard_id": lease.shard_id}
    return {"shard_id": lease.shard_id, "stream": str(lease.stream)}


class RenewalMetrics:
    """KCL renews all leases at once (RenewAllLeases): a period sums up single renewals. It takes as long as the slowest."""

    def __init__(self, meters: Meters, clock: Clock) -> None:
        self._meters = meters
        self._clock = clock
        self._failures = 0
        self._slowest_s = 0.0
        self.lost = 0

    def renewed(self, began_s: float, *, ok: bool) -> None:
        seconds = self._clock.monotonic() - began_s
        self._slowest_s = max(self._slowest_s, seconds)
        self._failures += not ok
        self._meters.done(kcl.RENEWAL_ONE, seconds, ok)

    def checkpoint(self, lease: Lease) -> Span:
        return self._meters.operation(kcl.PROCESS_CHECKPOINT, **lease_labels(lease))

    def tick(self, held: int) -> None:
        self._meters.done(kcl.RENEWAL, self._slowest_s, not self._failures)
        self._meters.add(kcl.RENEWAL_LOST, self.lost)
        self._meters.add(kcl.RENEWAL_HELD, held)
        self.lost, self._failures, self._slowest_s = 0, 0, 0.0


_TOLERANCE_S: Final = 0.01
_YOUNG_S: Final = 60.0
_SPREAD: Final = 0.75
_BUSY: Final = 10


@dataclass(eq=False, slots=True)
class HeldLease:
    """Only `LeaseRenewer` changes it.

    Args:
        uncertain_since_s: start of the oldest write that may have taken effect unnoticed.
        lost: why it is no longer held.
        on_change: called on loss or a beginning handoff.
        handoff_s: when we learned of the handoff.
        announced: we began its handoff, and read on for a while.
        lanes: how far each of several children is done.
    """

    lease: Lease
    moved_s: float
    throughput: Throughput
    progress: LeaseProgress
    early_s: float = 0.0
    uncertain_since_s: float | None = None
    lost: str | None = None
    on_change: Callable[[], None] = lambda: None
    releasing: bool = False
    handoff_s: float = 0.0
    announced: bool = False
    lanes: Callable[[], Sequence[ExtendedSequenceNumber]] = tuple
    writing: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))

    @property
    def key(self) -> LeaseKey:
        return self.lease.lease_key

    @property
    def next_owner(self) -> WorkerId | None:
        return None if self.lease.checkpoint_owner is None else self.lease.lease_owner


class LeaseRenewer:
    def __init__(self, context: WorkerContext, *, table: Table, on_duplicate: Callable[[], None]) -> None:
        """`on_duplicate` is called when another process wrote our lease under our worker id."""
        self._table = table
        self._on_duplicate = on_duplicate
        self._context = context
        self._clock = context.clock
        self._timings = context.timings
        self._log = context.log
        self._held: dict[LeaseKey, HeldLease] = {}
        self._wakeup = Wakeup(context.clock)
        self._began_s = context.clock.monotonic()
        self.renewals = RenewalMetrics(context.meters, context.clock)
        self.keeps_finished = False
        self.may_receive: Callable[[WorkerId], Awaitable[bool]] | None = None
        """Asked during shutdown; None: anyone may. Set by `ShutdownHandoff`. Never raises for AWS."""

    @property
    def held(self) -> dict[LeaseKey, HeldLease]:
        return dict(self._held)

    @property
    def leases(self) -> Iterator[Lease]:
        return (held.lease for held in self._held.values())

    @property
    def activity(self) -> int:
        """A young worker counts as busy: it is about to get leases."""
        return max(len(self._held), _BUSY) if self.is_young else len(self._held)

    @property
    def is_young(self) -> bool:
        return self._clock.monotonic() - self._began_s < _YOUNG_S

    def holds(self, key: LeaseKey) -> bool:
        return key in self._held

    def adopt(self, lease: Lease, *, moved_s: float) -> HeldLease:
        least_s = max(self._timings.renew_s - _TOLERANCE_S, self._timings.renew_s / 2)
        throughput = Throughput(least_s, now_s=moved_s, stored_kbps=lease.throughput_kbps)
        spread_s = self._timings.renew_s * _SPREAD
        early_s = self._context.randomness.uniform(0.0, spread_s)
        progress = LeaseProgress(self._clock.monotonic)
        held = HeldLease(lease, moved_s, throughput, progress, early_s=early_s)
        self._held[lease.lease_key] = held
        self._wakeup.wake()
        return held

    async def claim(self, lease: Lease) -> HeldLease | None:
        """None if it no longer is ours, or is already held."""
        began_s = self._clock.monotonic()
        claim = lease_row.claimed(lease_row.renewal(lease, None), lease, self._context.service_ms)
        written = await self._call(claim)
        if not written.applied or written.row is None:
            return None
        faults.maybe("after-lease-claimed")
        renewed = lease_row.lease_from_row(written.row)
        held = self._held.get(renewed.lease_key)
        if held is None:
            return self.adopt(renewed, moved_s=began_s)
        if renewed.lease_counter > held.lease.lease_counter:
            self._moved(held, renewed, began_s)
        return None

    async def run(self) -> None:
        async with anyio.create_task_group() as renewals:
            while True:
                await self._wakeup.wait(self._wait_s())
                now_s = self._clock.monotonic()
                for held in list(self._held.values()):
                    if now_s - held.moved_s > self._timings.failover_s:
                        self._expire(held, now_s)
                    elif self._is_due(held) and not held.writing.locked():
                        renewals.start_soon(self._renew, held)

    def _is_due(self, held: HeldLease) -> bool:
        return self._clock.monotonic() >= self._due_s(held) - _TOLERANCE_S

    def _due_s(self, held: HeldLease) -> float:
        return held.moved_s + self._timings.renew_s - held.early_s

    def _measured(self, held: HeldLease) -> float | None:
        return held.throughput.at_renewal(now_s=self._clock.monotonic())

    def _wait_s(self) -> float:
        now_s = self._clock.monotonic()
        first_s = min(map(self._due_s, self._held.values()), default=now_s + self._timings.renew_s)
        return max(self._timings.renew_s / 4, first_s - now_s)

    async def _renew(self, held: HeldLease) -> None:
        began_s, ok = self._clock.monotonic(), True
        try:
            await self._write(
                held,
                lambda lease: (
                    lease_row.renewal(lease, self._measured(held), held.lanes())
                    if self._is_due(held)
                    else None
                ),
            )
            faults.maybe("after-lease-renewed")
        except (LeaseLost, InvariantViolated):
            pass  # _lose has logged it; the other ends the consumer
        except AwsError as error:
            ok = False
            self._log.warning("lease_renewal_failed", lease_key=held.key, error=str(error))
        self.renewals.renewed(began_s, ok=ok)

    async def checkpoint(self, held: HeldLease, position: ExtendedSequenceNumber) -> None:
        """Does nothing if it is stored already; at LATEST with where reading began.

        Raises:
            LeaseLost: nothing was stored.
            AwsError: it was not stored, or that is unknown; the same checkpoint may be tried again.
        """
        # KCL stores throughput with renewals only; here a frequent checkpoint replaces the renewal.
        with self.renewals.checkpoint(held.lease):
            await self._write(held, lambda lease: self._checkpointed(held, lease, position))
            faults.maybe("after-checkpoint-write")

    def _checkpointed(
        self, held: HeldLease, lease: Lease, position: ExtendedSequenceNumber
    ) -> RowUpdate | None:
        if position <= lease.checkpoint:
            is_known = position != LATEST or lease.lanes == held.lanes()
            return None if is_known else lease_row.renewal(lease, self._measured(held), held.lanes())
        held.progress.invariants.stores(position, lease.checkpoint)
        return lease_row.checkpoint(lease, position, self._measured(held), held.lanes())

    async def reach(self, held: HeldLease, until_ms: int) -> None:
        """Note that a bounded run has nothing left to read here. Raises as `checkpoint` does."""
        await self._write(
            held,
            lambda lease: (
                None
                if lease.is_at(until_ms)
                else lease_row.renewal(lease, self._measured(held), held.lanes(), until_ms)
            ),
        )
        faults.maybe("after-bound-stored")

    async def write_children(self, held: HeldLease, child_shard_ids: frozenset[ShardId]) -> None:
        """Raises as `checkpoint` does."""
        self._require_held(held)
        written = await self._call(lease_row.child_ids_update(held.lease, child_shard_ids))
        if not written.applied:
            self._lose(held, "its row was deleted")
            raise LeaseLost(held.lost)
        faults.maybe("after-children-named")

    async def begin_handoff(self, held: HeldLease, to: WorkerId, *, standby: bool = False) -> None:
        """Does nothing if a handoff has begun. Raises as `checkpoint` does."""
        held.announced = True
        await self._write(
            held,
            lambda lease: (
                None
                if lease.checkpoint_owner
                else lease_row.handoff(lease, to, only_if_untouched=True, standby=standby)
            ),
        )
        faults.maybe("after-handoff-begun")

    def awaits_standby(self, held: HeldLease) -> bool:
        waited_s = self._clock.monotonic() - held.handoff_s
        return held.lease.awaits_standby and waited_s < self._timings.standby_s

    async def read_standby(self, held: HeldLease) -> None:
        """Do not wait for the next renewal to see that the next owner is ready."""
        lease = lease_row.readable_lease(await self._call_get(held.key))
        if lease is not None and held.lease.awaits_standby and not lease.awaits_standby:
            held.lease = replace(held.lease, standby=lease.standby)
            held.on_change()

    async def release_lease(self, held: HeldLease, *, degraded: bool = False) -> None:
        """To the next owner of its handoff, else to nobody. Never raises for AWS: the lease expires.

        `degraded`: its children keep failing here, so another worker should take it.
        """
        held.releasing = True
        try:
            await self._hand_on(held, degraded=degraded)
            faults.maybe("after-lease-released")
            self._log.info("lease_released", lease_key=held.key, to=held.lease.lease_owner)
        except (LeaseLost, InvariantViolated):
            pass  # _lose has logged it; the other ends the consumer
        except AwsError as error:
            self._log.warning(
                "lease_release_failed", lease_key=held.key, error=str(error), advice="it expires by itself"
            )
        finally:
            self.drop(held)

    async def _hand_on(self, held: HeldLease, *, degraded: bool) -> None:
        allowed: dict[WorkerId, bool] = {}
        while True:  # the leader may name another next owner meanwhile
            next_owner = held.next_owner
            if next_owner is not None and next_owner not in allowed:
                allowed[next_owner] = self.may_receive is None or await self.may_receive(next_owner)
            await self._write(held, lambda lease: self._handed_on(lease, allowed, degraded=degraded))
            if held.next_owner is None:
                return

    def _handed_on(
        self, lease: Lease, allowed: Mapping[WorkerId, bool], *, degraded: bool
    ) -> RowUpdate | None:
        """None: the lease has a next owner that is not judged yet."""
        next_owner = lease.lease_owner if lease.checkpoint_owner is not None else None
        if next_owner is None or allowed.get(next_owner) is False:
            return lease_row.release(lease, degraded_by=self._context.worker_id if degraded else None)
        return lease_row.assignment(lease, next_owner) if next_owner in allowed else None

    def drop(self, held: HeldLease) -> None:
        if self._held.get(held.key) is held:
            del self._held[held.key]

    async def _write(self, held: HeldLease, make: Callable[[Lease], RowUpdate | None]) -> None:
        """`make` gets the current lease; it returns None if nothing is left to write."""
        async with held.writing:
            # If an earlier write took effect after all, make this one again on top of it.
            for _ in range(2):
                self._require_held(held)
                update = make(held.lease)
                if update is None or await self._attempt(held, update):
                    return
            raise Unavailable("the row kept changing during the write", operation="UpdateItem")

    async def _attempt(self, held: HeldLease, update: RowUpdate) -> bool:
        """False if the lease changed but is still ours: make the write again."""
        began_s = self._clock.monotonic()
        before = held.uncertain_since_s
        if before is None:
            held.uncertain_since_s = began_s  # also for a cancelled call that may still arrive
        written: WriteResult | None = None
        try:
            written = await self._call(update)
            held.uncertain_since_s = before
        except Unavailable:
            faults.maybe("after-unclear-lease-write")
        except AwsError:
            held.uncertain_since_s = before
            raise
        if written is not None and written.applied:
            self._moved(held, self._parsed(held, written.row), began_s)
            return True
        row = await self._call_get(held.key) if written is None else written.row
        uncertain_since_s = held.uncertain_since_s
        verdict = judge_written_row(
            held.lease, row, me=self._context.worker_id, uncertain=uncertain_since_s is not None
        )
        if isinstance(verdict, LeaseGone):
            self._lose(held, verdict.reason)
            if verdict.by_duplicate:
                self._on_duplicate()
            raise LeaseLost(verdict.reason)
        if verdict.moved and uncertain_since_s is not None:
            # Others may have seen the counter change this early; our lease must not outlast their view.
            self._moved(held, verdict.lease, uncertain_since_s)
        elif verdict.lease.checkpoint_owner != held.lease.checkpoint_owner:
            self._handoff_began(held, verdict.lease)
        else:
            raise Unavailable("the write got no answer and had no effect", operation="UpdateItem")
        return False

    def _parsed(self, held: HeldLease, row: Row | None) -> Lease:
        try:
            return lease_row.lease_from_row(row or {})
        except MalformedRowError as malformed:
            self._lose(held, str(malformed))
            raise LeaseLost(str(malformed)) from malformed

    def _moved(self, held: HeldLease, lease: Lease, began_s: float) -> None:
        handoff_began = lease.checkpoint_owner is not None and held.lease.checkpoint_owner is None
        waited = held.lease.awaits_standby
        held.progress.invariants.moved(held.lease.lease_counter, lease.lease_counter, lease.checkpoint)
        if lease.lease_counter != held.lease.lease_counter:
            # The start of a handoff keeps the counter: it proves no renewal, and earlier writes may still
            # apply.
            held.moved_s, held.early_s, held.uncertain_since_s = began_s, 0.0, None
        held.lease = lease
        if handoff_began:
            self._handoff_began(held, lease)
        elif waited and not self.awaits_standby(held):
            held.on_change()

    def _handoff_began(self, held: HeldLease, lease: Lease) -> None:
        held.lease, held.handoff_s = lease, self._clock.monotonic()
        if held.announced:
            self._log.info("lease_handoff_announced", lease_key=held.key, to=held.next_owner)
            return
        self._log.info("lease_handoff_requested", lease_key=held.key, to=held.next_owner)
        held.on_change()

    def _require_held(self, held: HeldLease) -> None:
        now_s = self._clock.monotonic()
        if held.lost is None and now_s - held.moved_s > self._timings.failover_s:
            self._expire(held, now_s)
        if held.lost is not None or self._held.get(held.key) is not held:
            raise LeaseLost(held.lost or "it was released")

    def _expire(self, held: HeldLease, now_s: float) -> None:
        self._lose(held, f"it could not be renewed for {now_s - held.moved_s:.1f} s")

    def _lose(self, held: HeldLease, reason: str) -> None:
        if held.lost is None:
            held.lost = reason
            held.progress.invariants.note("lost", reason)
            expected = held.releasing or held.lease.is_finished
            self.renewals.lost += not expected
            report = self._log.info if expected else self._log.warning
            report("lease_lost", lease_key=held.key, reason=reason)
            self.drop(held)
            held.on_change()

    async def _call(self, update: RowUpdate) -> WriteResult:
        return await self._context.call(self._table.update(update), "UpdateItem")

    async def _call_get(self, key: LeaseKey) -> Row | None:
        return await self._context.call(self._table.get(key), "GetItem")


class MalformedRowLog:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._reported: set[str] = set()

    def lease(self, row: Row | None) -> Lease | None:
        try:
            return lease_row.lease_from_row(row) if row is not None and lease_row.is_lease_row(row) else None
        except MalformedRowError as malformed:
            self.report(malformed)
            return None

    def report(self, malformed: MalformedRowError) -> None:
        if malformed.key not in self._reported:
            self._reported.add(malformed.key)
            self._log.error(
                "lease_row_malformed",
                lease_key=malformed.key,
                error=str(malformed),
                advice="repair or delete the row",
            )
