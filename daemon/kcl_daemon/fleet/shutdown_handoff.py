"""Begins handoffs before a worker stops, so that next owners are ready; not in KCL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Final

from kcl_daemon.assignment.plan import Fleet, LeaseMove, Strategy, handoffs_on_shutdown
from kcl_daemon.context import WorkerContext, for_each
from kcl_daemon.errors import AwsError, InvariantViolated, LeaseLost
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.lease_renewer import LeaseRenewer
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.leases.lease import WorkerId

_MAX_PARALLEL_WRITES: Final = 10
_MARGIN_S: Final = 0.5
_GRACE_FRACTION: Final = 0.5
_MAX_LIVENESS_WAIT_S: Final = 2.0
_MIN_HANDOFF_S: Final = 1.0
_STANDBY_LOOK_S: Final = 0.5


class ShutdownHandoff:
    """`place` None: isGracefulLeaseHandoffEnabled is false. `grace_s` is the children's time to stop."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        renewer: LeaseRenewer,
        monitor: FleetMonitor,
        elector: Elector,
        place: Strategy | None,
        grace_s: float,
    ) -> None:
        self._context = context
        self._renewer = renewer
        self._monitor = monitor
        self._elector = elector
        self._place = place
        self._max_s = min(context.timings.max_handoff_wait_s, _GRACE_FRACTION * grace_s)
        self._standby_s = min(context.timings.standby_s, _GRACE_FRACTION * grace_s)
        self._clock = context.clock
        self._timings = context.timings
        self._log = context.log
        self._began_s = 0.0
        self._reading: Counter[WorkerId | None] = Counter()
        self._possible_owners: frozenset[WorkerId] = frozenset()

    async def begin_handoff(self) -> None:
        """Returns when next owners should have seen the handoffs. Never raises for AWS."""
        if self._place is None or not self._renewer.held or self._max_s < _MIN_HANDOFF_S:
            return
        moves: tuple[LeaseMove, ...] = ()
        waiting_s = 0.0
        with self._clock.move_on_after(self._timings.call_s):
            try:
                fleet = await self._poll()
                moves = handoffs_on_shutdown(fleet, self._context.worker_id, self._place)
                waiting_s = self._waiting_s(moves)
                await self._begin(moves)
            except AwsError as error:
                self._log.warning(
                    "shutdown_handoff_failed", error=str(error), advice="leases are released instead"
                )
        owners = [held.next_owner for held in self._renewer.held.values()]
        following = frozenset(owner for owner in owners if owner is not None)
        if following:
            self._log.info("shutdown_handoff_planned", to=sorted(following), waiting_s=waiting_s)
            await self._clock.sleep(waiting_s)
            await self._recheck_owners(following)
            await self._await_standby()

    async def _await_standby(self) -> None:
        while self._clock.monotonic() < self._began_s + self._standby_s:
            waiting = [
                held
                for held in self._renewer.held.values()
                if self._renewer.awaits_standby(held) and held.next_owner in self._possible_owners
            ]
            if not waiting:
                return
            await for_each(waiting, self._renewer.read_standby, at_once=_MAX_PARALLEL_WRITES)
            await self._clock.sleep(_STANDBY_LOOK_S)

    async def _poll(self) -> Fleet:
        self._began_s = self._clock.monotonic()
        await self._read_fleet()
        # The leader may have begun a handoff to a worker that is stopping too.
        self._possible_owners = self._live_workers()
        self._renewer.may_receive = self._may_receive
        fleet = self._monitor.fleet()
        self._reading = Counter(lease.actual_owner for lease in fleet.unfinished)
        return fleet

    def _waiting_s(self, moves: tuple[LeaseMove, ...]) -> float:
        reading = self._reading
        periods_s = (
            max(
                self._timings.epoch_poll_s(reading[move.to]),
                self._timings.discovery_s(reading[move.to], leading=False),
            )
            for move in moves
        )
        return min(max(periods_s, default=0.0) + _MARGIN_S, self._max_s)

    async def _begin(self, moves: tuple[LeaseMove, ...]) -> None:
        held = self._renewer.held

        async def begin(move: LeaseMove) -> None:
            try:
                standby = self._standby_s > 0 and self._monitor.stands_by(move.to)
                await self._renewer.begin_handoff(held[move.lease.lease_key], move.to, standby=standby)
            except (AwsError, LeaseLost, InvariantViolated) as error:
                self._log.info("lease_not_handed_off", lease_key=move.lease.lease_key, error=str(error))

        await for_each(
            [move for move in moves if move.lease.lease_key in held], begin, at_once=_MAX_PARALLEL_WRITES
        )
        if moves:
            await self._elector.notify_assigned()

    async def _recheck_owners(self, following: AbstractSet[WorkerId]) -> None:
        try:
            doubtful = await self._silent_owners(following)
            more_s = self._renewal_wait_s()
            if doubtful and more_s > 0.0 and self._has_time_for(more_s):
                await self._clock.sleep(more_s)
                doubtful = await self._silent_owners(following)
        except AwsError as error:
            self._log.debug("shutdown_handoff_not_checked", error=str(error))
            return
        if self._renewal_wait_s() > 0.0:
            doubtful = frozenset()
        # Who holds leases shows its life by renewing them, whatever the date of its report.
        late = frozenset(
            owner for owner in following if not self._reading[owner] and self._monitor.is_report_late(owner)
        )
        self._possible_owners = self._live_workers() - doubtful - late

    async def _may_receive(self, owner: WorkerId) -> bool:
        """Where all stop at once, the next owner may have left since the look at the fleet."""
        if owner not in self._possible_owners:
            return False
        try:
            return await self._context.call(self._monitor.has_row(owner), "GetItem")
        except AwsError as error:
            self._log.debug("shutdown_handoff_not_checked", error=str(error))
            return True

    def _live_workers(self) -> frozenset[WorkerId]:
        return frozenset(worker.worker_id for worker in self._monitor.workers)

    def _renewal_wait_s(self) -> float:
        enough_s = self._timings.renew_s + _MARGIN_S
        return max(0.0, self._began_s + enough_s - self._clock.monotonic())

    def _has_time_for(self, more_s: float) -> bool:
        return (
            more_s <= _MAX_LIVENESS_WAIT_S and self._clock.monotonic() + more_s <= self._began_s + self._max_s
        )

    async def _silent_owners(self, following: AbstractSet[WorkerId]) -> frozenset[WorkerId]:
        """Worker rows outlive workers, so a next owner with leases must renew or report."""
        await self._context.call(self._read_fleet(), "Scan")
        return frozenset(
            owner
            for owner in following
            if self._reading[owner] and not self._monitor.has_lived_since(owner, self._began_s)
        )

    async def _read_fleet(self) -> None:
        await self._monitor.poll()
        await self._monitor.refresh_workers()
