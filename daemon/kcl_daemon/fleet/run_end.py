"""The end of a bounded run (`runUntil`; not in KCL): every lease is finished, or marked by its reader.

Marked leases stay with their workers, and whoever sees all marks stops. Workers need not agree on the bound: one with a later
bound reads on, alone, when the others have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.fleet.many_streams import MultiStreamTracker, by_stream
from kcl_daemon.fleet.streams import SingleStreamTracker, StreamState, leases_of
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity
from kcl_daemon.leases.worker_row import ACTIVE_REPORTS, WorkerRow, workers_of
from kcl_daemon.ports import Clock, Table
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.shards.lineage import NO_HASH_KEYS, lease_hole

_PAUSE_MOST_S: Final = 10.0


def agreed_bound_ms(mine_ms: int, others: Iterable[WorkerRow], *, now_s: float, active_s: float) -> int:
    """Of a run to the tip: the earliest start of the workers that live."""
    bounds = (each.run_until_ms for each in others if abs(now_s - each.last_update_s) <= active_s)
    return min((bound for bound in bounds if bound is not None), default=mine_ms)


def not_there(leases: Sequence[Lease], until_ms: int, *, only: frozenset[str]) -> str | None:
    """What of one stream is still to be read; None: nothing.

    `only`: it reads these shards, so holes between leases mean nothing.
    """
    # What follows a shard at the bound came after the bound. Its reader may have a later bound, and wait for
    # us.
    there = {lease.shard_id for lease in leases if not lease.is_finished and lease.is_at(until_ms)}
    while more := {lease.shard_id for lease in leases if there & lease.parent_shard_ids} - there:
        there |= more
    for lease in leases:
        if not (lease.is_finished or lease.shard_id in there):
            return lease.lease_key
    if not leases:
        return "leases that are not created yet"
    if only or any(lease.hash_range == NO_HASH_KEYS for lease in leases):
        seen, ended = {each.shard_id for each in leases}, [each for each in leases if each.is_finished]
        return min((child for lease in ended for child in lease.child_shard_ids - seen), default=None)
    return None if lease_hole(leases) is None else "leases that are not created yet"


class RunEnd:
    """`until_ms` None: at the tip as it is when the run begins. `clock` has Kinesis' time of day."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        until_ms: int | None,
        clock: Clock,
        leases: Table,
        workers: Table,
        streams: SingleStreamTracker | MultiStreamTracker,
        held: Callable[[], Mapping[LeaseKey, HeldLease]],
        only: frozenset[str] = frozenset(),
    ) -> None:
        self._context = context
        self._is_tip = until_ms is None
        self.until_ms = until_ms
        self._clock = clock
        self._leases = leases
        self._workers = workers
        self._streams = streams
        self._held = held
        self._only = only
        self.reached = False
        self.leases_seen = 0

    async def begin(self) -> None:
        if self._is_tip:
            self.until_ms = self._clock.wall_ms()

    async def settle(self) -> None:
        """After the first report: of workers that start together, each sees the others."""
        assert self.until_ms is not None, "the run has begun"
        if self._is_tip:
            agreed_ms = await self._agreed_ms(self.until_ms)
            # The row of a killed worker may be left of a run that is over; that is no run to join.
            if agreed_ms < self.until_ms and not await self._is_over(agreed_ms):
                self.until_ms = agreed_ms
        self._context.log.info("run_is_bounded", until_ms=self.until_ms)

    async def _agreed_ms(self, mine_ms: int) -> int:
        rows = workers_of(await self._workers.scan(), self._workers.key_attribute)
        now_s = self._context.clock.wall_ms() / 1000
        active_s = ACTIVE_REPORTS * self._context.timings.report_s
        return agreed_bound_ms(mine_ms, rows, now_s=now_s, active_s=active_s)

    async def run(self, on_end: Callable[[], None]) -> None:
        until_ms, pause_s = self.until_ms, min(self._context.timings.failover_s, _PAUSE_MOST_S)
        assert until_ms is not None, "the run has begun"
        while True:
            await self._context.clock.sleep(pause_s)
            try:
                reads = any(self._is_read(each, until_ms) for each in self._held().values())
                if not reads and await self._is_over(until_ms):
                    break
            except AwsError as error:
                self._context.log.warning("run_end_unknown", error=str(error))
        self.reached = True
        self._context.log.info("run_ended", until_ms=self.until_ms)
        on_end()

    def _is_read(self, held: HeldLease, until_ms: int) -> bool:
        if held.progress.cause is WaitReason.PARENT or held.lease.is_at(until_ms):
            return False
        return self._streams.of(held.lease).watch.state is StreamState.THERE

    async def _is_over(self, until_ms: int) -> bool:
        leases = await leases_of(self._leases)
        self.leases_seen = len(leases)
        missing = await self._missing(leases, until_ms)
        if missing:
            self._context.log.debug("run_goes_on", waits_for=missing[:3])
        return not missing

    async def _missing(self, leases: Sequence[Lease], until_ms: int) -> list[str]:
        if isinstance(self._streams, SingleStreamTracker):
            missing = not_there(leases, until_ms, only=self._only)
            return [] if missing is None else [missing]
        current = [each.ref.identity for each in self._streams.current if each.ref.identity is not None]
        if not current:
            return ["streams that are not found yet"]
        of_streams, found = by_stream(leases), list[str]()
        for identity in dict.fromkeys((*current, *of_streams)):
            missing = not_there(of_streams.get(identity, ()), until_ms, only=self._only)
            if missing is not None and await self._exists(identity):
                found.append(missing)
        return found

    async def _exists(self, identity: StreamIdentity) -> bool:
        assert isinstance(self._streams, MultiStreamTracker)
        return await self._streams.known(identity).watch.confirm() is StreamState.THERE
