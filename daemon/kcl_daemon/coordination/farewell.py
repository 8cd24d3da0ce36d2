"""What a worker does before it stops reading: it names the next owners, so that they stand ready.

Owns the order: look at the fleet, begin the hand-offs, give the next owners time to see them. Children work on meanwhile.
Knows nothing of consumers. Whatever goes wrong here, leases are given up as without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Final

import anyio

from kcl_daemon.assignment.parting import parting
from kcl_daemon.assignment.plan import Fleet, Move, Strategy
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError, LeaseLost, Unavailable
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import Clock, Log

_WRITES_AT_ONCE: Final = 10
# For the reads and writes between a beginning hand-off and a next owner that watches its row.
_MARGIN_S: Final = 0.5
# Reading on may take this part of the time that children have to stop.
_PART_OF_GRACE: Final = 0.5
# For a sign of life of next owners that may have died it is waited so much longer at most.
_DOUBT_MOST_S: Final = 2.0
# With less time it is not worth it.
_LEAST_S: Final = 1.0


class Farewell:
    """Used once, by a worker that has left the list of workers and whose other loops have ended.

    Args:
        place: gives away what nobody reads; None where leases are not handed over (isGracefulLeaseHandoffEnabled).
        grace_s: how long children have to stop.
    """

    def __init__(
        self,
        *,
        worker_id: WorkerId,
        keeper: LeaseKeeper,
        overview: Overview,
        elector: Elector,
        place: Strategy | None,
        grace_s: float,
        clock: Clock,
        timings: Timings,
        log: Log,
    ) -> None:
        self._me = worker_id
        self._keeper = keeper
        self._overview = overview
        self._elector = elector
        self._place = place
        self._most_s = min(timings.farewell_most_s, _PART_OF_GRACE * grace_s)
        self._clock = clock
        self._timings = timings
        self._log = log
        self._began_s = 0.0
        self._reading: Counter[WorkerId | None] = Counter()

    async def announce(self) -> None:
        """Begin the hand-offs and wait until their new owners should have seen them.

        Returns at once where there is nothing to hand over or nobody to take it. Never raises for AWS.
        """
        if self._place is None or not self._keeper.held or self._most_s < _LEAST_S:
            return
        moves: tuple[Move, ...] = ()
        waiting_s = 0.0
        with self._clock.move_on_after(self._timings.call_s):
            try:
                fleet = await self._look()
                moves = parting(fleet, self._me, self._place)
                waiting_s = self._waiting_s(moves)
                await self._begin(moves)
            except AwsError as error:
                self._log.warning("farewell_failed", error=str(error), advice="leases are released instead")
        owners = [held.next_owner for held in self._keeper.held.values()]
        following = frozenset(owner for owner in owners if owner is not None)
        if following:
            self._log.info("leases_announced", to=sorted(following), waiting_s=waiting_s)
            await self._clock.sleep(waiting_s)
            await self._look_back(following)

    async def _look(self) -> Fleet:
        self._began_s = self._clock.monotonic()
        await self._overview.look()
        await self._overview.refresh_workers()
        # The leader may have begun a handoff that we have not seen yet, to a worker that stops as we do.
        self._keeper.takers = self._there()
        fleet = self._overview.fleet()
        self._reading = Counter(lease.actual_owner for lease in fleet.unfinished)
        return fleet

    def _waiting_s(self, moves: tuple[Move, ...]) -> float:
        """Until the slowest of the next owners has looked, as often as it does with what it reads now, if that is soon."""
        reading = self._reading
        periods_s = (
            max(
                self._timings.news_s(reading[move.to]),
                self._timings.discovery_s(reading[move.to], leading=False),
            )
            for move in moves
        )
        return min(max(periods_s, default=0.0) + _MARGIN_S, self._most_s)

    async def _begin(self, moves: tuple[Move, ...]) -> None:
        limiter = anyio.CapacityLimiter(_WRITES_AT_ONCE)
        held = self._keeper.held

        async def begin(move: Move) -> None:
            """One hand-off; one that fails is no reason to leave the others."""
            async with limiter:
                try:
                    await self._keeper.announce(held[move.lease.lease_key], move.to)
                except (AwsError, LeaseLost) as error:
                    self._log.info("lease_not_announced", lease_key=move.lease.lease_key, error=str(error))

        async with anyio.create_task_group() as writes:
            for move in moves:
                if move.lease.lease_key in held:
                    writes.start_soon(begin, move)
        if moves:
            await self._elector.pass_word()

    async def _look_back(self, following: AbstractSet[WorkerId]) -> None:
        """Who has left meanwhile, perhaps because it stops as well, or seems to have died, gets nothing.

        The leader finds another.
        """
        try:
            doubtful = await self._doubtful(following)
            more_s = self._telling_s()
            if doubtful and more_s > 0.0 and self._has_time_for(more_s):
                await self._clock.sleep(more_s)
                doubtful = await self._doubtful(following)
        except AwsError as error:
            self._log.debug("farewell_not_looked_back", error=str(error))
            return
        if self._telling_s() > 0.0:
            doubtful = frozenset()
        self._keeper.takers = self._there() - doubtful

    def _there(self) -> frozenset[WorkerId]:
        return frozenset(worker.worker_id for worker in self._overview.workers)

    def _telling_s(self) -> float:
        """For how much longer to wait until everybody that lives should have renewed something; 0 once that is over."""
        enough_s = self._timings.renew_s + _MARGIN_S
        return max(0.0, self._began_s + enough_s - self._clock.monotonic())

    def _has_time_for(self, more_s: float) -> bool:
        return more_s <= _DOUBT_MOST_S and self._clock.monotonic() + more_s <= self._began_s + self._most_s

    async def _doubtful(self, following: AbstractSet[WorkerId]) -> frozenset[WorkerId]:
        """Those with leases of their own that have given no sign of life since the first look: rows outlive their workers.

        Raises:
            AwsError: that could not be read.
        """
        with self._clock.move_on_after(self._timings.call_s):
            await self._overview.look()
            await self._overview.refresh_workers()
            return frozenset(
                each
                for each in following
                if self._reading[each] and not self._overview.has_lived_since(each, self._began_s)
            )
        raise Unavailable(f"no answer within {self._timings.call_s:g} s", operation="Scan")
