"""Finds the leases that the leader assigned to this worker (KCL: DynamoDBLeaseDiscoverer).

Our leaders announce assignments in the lock row, so the owner index is read less often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

import anyio

from kcl_daemon import faults
from kcl_daemon.context import Wakeup, WorkerContext, for_each, raise_first
from kcl_daemon.errors import AwsError, TableNotFound
from kcl_daemon.fleet.lease_renewer import HeldLease, LeaseRenewer, MalformedRowLog
from kcl_daemon.leases.leader import LeaderLock
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.leases.row import KEY, OWNER, assignment, readable_lease, release
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Table

_POLL_S: Final = 0.25
_BACKOFF_FRACTION: Final = 0.1
_MAX_WATCHED_READS: Final = 40


@dataclass(slots=True)
class _PendingHandoff:
    since_s: float
    polled_s: float


class PendingHandoffs:
    def __init__(
        self,
        context: WorkerContext,
        *,
        arrived: Callable[[LeaseKey], Awaitable[bool]],
        on_over: Callable[[LeaseKey], None],
    ) -> None:
        self._context = context
        self._arrived = arrived
        self._on_over = on_over
        self._clock = context.clock
        timings = context.timings
        self._max_s = timings.standby_s + timings.handoff_s + timings.failover_s
        self._wakeup = Wakeup(context.clock)
        self._expected: dict[LeaseKey, _PendingHandoff] = {}

    def expect(self, key: LeaseKey) -> None:
        now_s = self._clock.monotonic()
        if key not in self._expected:
            self._expected[key] = _PendingHandoff(now_s, now_s)
            self._wakeup.wake()

    def expect_soon(self, key: LeaseKey) -> None:
        if key in self._expected:
            del self._expected[key]
            self.expect(key)

    def is_expecting(self, key: LeaseKey) -> bool:
        return key in self._expected

    async def run(self) -> None:
        try:
            while True:
                await self._wakeup.wait(self._wait_s())
                await self._poll()
        finally:
            for key in list(self._expected):
                self._over(key)

    def _next_poll_s(self, handoff: _PendingHandoff) -> float:
        load_factor = max(1.0, len(self._expected) / _MAX_WATCHED_READS)
        waited_s = handoff.polled_s - handoff.since_s
        return handoff.polled_s + max(_POLL_S, _BACKOFF_FRACTION * waited_s) * load_factor

    def _wait_s(self) -> float:
        if not self._expected:
            return self._max_s
        first_s = min(map(self._next_poll_s, self._expected.values()))
        return max(0.0, first_s - self._clock.monotonic())

    async def _poll(self) -> None:
        now_s = self._clock.monotonic()
        due = [key for key, handoff in self._expected.items() if self._next_poll_s(handoff) <= now_s]
        async with anyio.create_task_group() as polls:
            for key in due[:_MAX_WATCHED_READS]:
                polls.start_soon(self._poll_row, key, now_s)

    def _over(self, key: LeaseKey) -> None:
        del self._expected[key]
        self._on_over(key)

    async def _poll_row(self, key: LeaseKey, now_s: float) -> None:
        expected = self._expected[key]
        expected.polled_s = now_s
        arrived = now_s - expected.since_s > self._max_s
        try:
            with self._clock.move_on_after(self._context.timings.call_s):
                arrived |= await self._arrived(key)
            if arrived:
                self._over(key)
        except AwsError as error:
            self._context.log.debug("lease_handoff_not_read", lease_key=key, error=str(error))


class AssignmentNotifier:
    """`on_assigned` is called when a notice comes, or when they stop."""

    def __init__(self, context: WorkerContext, *, on_assigned: Callable[[], None]) -> None:
        self._clock = context.clock
        self._timings = context.timings
        self._on_assigned = on_assigned
        self._assignment_epoch: str | None = None
        self._read_s: float | None = None
        self._changed_s = context.clock.monotonic()

    @property
    def is_kept(self) -> bool:
        return (
            self._assignment_epoch is not None
            and self._read_s is not None
            and self._clock.monotonic() - self._read_s <= 2 * self._timings.epoch_poll_s(0)
        )

    @property
    def is_recent(self) -> bool:
        """The index may lag behind a notice, so one query is not enough."""
        return self._clock.monotonic() - self._changed_s <= self._timings.failover_s / 2

    def read(self, lock: LeaderLock | None) -> None:
        """None: the next leader may assign leases before we see it."""
        self._take(None if lock is None else lock.assignment_epoch)
        self._read_s = self._clock.monotonic()

    def unreadable(self) -> None:
        self._take(None)

    def _take(self, assignment_epoch: str | None) -> None:
        if assignment_epoch != self._assignment_epoch:
            self._assignment_epoch, self._changed_s = assignment_epoch, self._clock.monotonic()
            self._on_assigned()


_FINISHED_S: Final = 60.0
# Hundreds of leases must be claimed well within the failover time.
_MAX_PARALLEL_READS: Final = 10


class Standby(Protocol):
    def prepare(self, lease: Lease) -> None: ...

    def dismiss(self, key: LeaseKey) -> None: ...


class Discovery:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        renewer: LeaseRenewer,
        malformed: MalformedRowLog,
        leading: Callable[[], bool],
        on_found: Callable[[HeldLease], None],
        notifier: AssignmentNotifier,
        standby: Standby,
    ) -> None:
        self._meters = context.meters
        self._notifier = notifier
        self._standby = standby
        self._handoffs = PendingHandoffs(context, arrived=self._take, on_over=self._handoff_over)
        self._table = table
        self._me = context.worker_id
        self._renewer = renewer
        self._clock = context.clock
        self._timings = context.timings
        self._log = context.log
        self._malformed = malformed
        self._leading = leading
        self._on_found = on_found
        self._wakeup = Wakeup(context.clock)
        self._finished: dict[LeaseKey, float] = {}
        self._scanned_s: float | None = None

    @property
    def finished(self) -> Collection[LeaseKey]:
        return self._finished.keys()

    def wake(self) -> None:
        self._wakeup.wake()

    def standby_ready(self, key: LeaseKey) -> None:
        self._handoffs.expect_soon(key)

    def _handoff_over(self, key: LeaseKey) -> None:
        if not self._renewer.holds(key):  # else its consumer has the child
            self._standby.dismiss(key)

    def leases_assigned(self) -> None:
        self._finished.clear()
        self.wake()

    async def run(self) -> None:
        async with anyio.create_task_group() as background:
            background.start_soon(self._handoffs.run)
            while True:
                await self._wakeup.wait(self._pause_s())
                await self._clock.sleep(self._cooldown_s())
                try:
                    await self.poll()
                except AwsError as error:
                    self._log.warning("lease_discovery_failed", error=str(error))

    def _pause_s(self) -> float:
        notifier, young = self._notifier, self._renewer.is_young
        if notifier.is_kept and not notifier.is_recent and not young:
            return self._timings.fallback_poll_s
        usual_s = self._timings.discovery_s(self._renewer.activity, leading=self._leading(), young=young)
        return min(usual_s, self._timings.poll_s) if notifier.is_recent else usual_s

    def _cooldown_s(self) -> float:
        if self._scanned_s is None:
            return 0.0
        return max(0.0, self._scanned_s + self._timings.failover_s / 2 - self._clock.monotonic())

    def offer(self, leases: Iterable[Lease]) -> None:
        """The leader has read these leases: look closer if one of ours is not held."""
        for lease in leases:
            is_ours = self._me in {lease.lease_owner, lease.checkpoint_owner}
            if not is_ours or lease.is_finished or self._renewer.holds(lease.lease_key):
                continue
            self._finished.pop(lease.lease_key, None)
            if lease.checkpoint_owner is None:
                self.wake()
            else:
                self._handoffs.expect(lease.lease_key)

    async def poll(self) -> None:
        """Leases found before an error stay held."""
        with self._meters.operation(kcl.DISCOVERY):
            await self._poll()

    async def _poll(self) -> None:
        with self._meters.operation(kcl.DISCOVERY_LIST):
            keys = [LeaseKey(key) for key in await self._owned_keys()]
        self._finished = self._still_finished(keys)
        known = (self._renewer.holds, self._finished.__contains__, self._handoffs.is_expecting)
        new = [key for key in sorted(keys) if not any(is_known(key) for is_known in known)]
        self._meters.add(kcl.DISCOVERY_FOUND, len(new))
        with self._meters.operation(kcl.DISCOVERY_FETCH):
            await self._take_all(new)

    def _still_finished(self, keys: list[LeaseKey]) -> dict[LeaseKey, float]:
        since_s = self._clock.monotonic() - _FINISHED_S
        return {key: self._finished[key] for key in keys if self._finished.get(key, -inf) >= since_s}

    async def _take_all(self, new: Iterable[LeaseKey]) -> None:
        errors = await for_each(new, self._take, at_once=_MAX_PARALLEL_READS)
        if errors:
            self._meters.add(kcl.DISCOVERY_ERRORS, len(errors))
        raise_first(errors)

    async def _owned_keys(self) -> list[str]:
        try:
            keys = await self._table.owned_keys(self._me)
        except TableNotFound:
            self._log.debug("owner_index_missing", advice="leases are found by scans until it exists")
            self._scanned_s = self._clock.monotonic()
            rows = await self._table.scan()
            return [str(row[KEY]) for row in rows if row.get(OWNER) == self._me and KEY in row]
        self._scanned_s = None
        return keys

    async def _take(self, key: LeaseKey) -> bool:
        lease = self._malformed.lease(await self._table.get(key))
        if lease is None:
            return True
        if lease.is_finished:
            self._finished[key] = self._clock.monotonic()
        elif lease.checkpoint_owner == self._me:
            await self._end_handoff(lease)
        elif lease.lease_owner != self._me:
            self._meters.add(kcl.DISCOVERY_MISMATCH)
        elif lease.checkpoint_owner is None:
            await self._claim(lease)
        else:
            self._standby.prepare(lease)
            self._handoffs.expect(key)
            return False
        return True

    async def _claim(self, lease: Lease) -> None:
        held = await self._renewer.claim(lease)
        if held is not None:
            self._found(held)
        elif not self._renewer.holds(lease.lease_key):
            after = self._malformed.lease(await self._table.get(lease.lease_key))
            if after is not None and not after.is_finished and after.checkpoint_owner == self._me:
                await self._end_handoff(after)

    async def _end_handoff(self, lease: Lease) -> None:
        """An earlier process of this worker had to hand it off; nobody reads it now."""
        if lease.lease_owner is None or self._renewer.holds(lease.lease_key):
            return
        written = await self._table.update(assignment(lease, lease.lease_owner, only_if_untouched=True))
        if written.applied:
            faults.maybe("after-handoff-ended")
            self._log.info("lease_released", lease_key=lease.lease_key, to=lease.lease_owner)

    async def give_back(self) -> None:
        """Release leases assigned to us but not found yet. Never raises for AWS; takes `timings.call_s` at most."""
        with self._clock.move_on_after(self._timings.call_s):
            try:
                for key in sorted(await self._table.owned_keys(self._me)):
                    if not self._renewer.holds(LeaseKey(key)):
                        await self._give_back(LeaseKey(key))
            except AwsError as error:
                self._log.warning("lease_discovery_failed", error=str(error))

    async def _give_back(self, key: LeaseKey) -> None:
        lease = readable_lease(await self._table.get(key))
        if (
            lease is None
            or lease.is_finished
            or lease.lease_owner != self._me
            or lease.checkpoint_owner is not None
        ):
            return
        written = await self._table.update(release(lease))
        if written.applied:
            faults.maybe("after-lease-given-back")
            self._log.info("lease_released", lease_key=key, to=None)

    def take_assigned(self, lease: Lease, moved_s: float) -> None:
        if lease.checkpoint_owner is not None:
            self.offer((lease,))
        elif lease.lease_owner == self._me and not self._renewer.holds(lease.lease_key):
            self._found(self._renewer.adopt(lease, moved_s=moved_s))

    def _found(self, held: HeldLease) -> None:
        self._log.info("lease_taken", lease_key=held.key, checkpoint=str(held.lease.checkpoint))
        self._on_found(held)
