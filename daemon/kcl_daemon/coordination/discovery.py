"""Finds the leases that the leader has given to this worker (KCL: DynamoDBLeaseDiscoverer)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Final

import anyio

from kcl_daemon.coordination.bulletin import Bulletin
from kcl_daemon.coordination.handovers import Handovers
from kcl_daemon.coordination.keeper import HeldLease, LeaseKeeper
from kcl_daemon.coordination.malformed import MalformedRows
from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError, TableNotFound
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import KEY, OWNER, MalformedRowError, is_lease_row, lease_from_row, release
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Log, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters

# So long a finished lease is believed to be so: somebody may have set it back to be read anew.
_FINISHED_S: Final = 60.0
# Hundreds of leases must be claimed well within the fail-over time.
_AT_ONCE: Final = 10


class Discovery:
    """Asks the owner index for our leases, takes the new ones into the keeper and says so."""

    def __init__(
        self,
        *,
        table: Table,
        worker_id: WorkerId,
        keeper: LeaseKeeper,
        clock: Clock,
        timings: Timings,
        log: Log,
        malformed: MalformedRows,
        leading: Callable[[], bool],
        on_found: Callable[[HeldLease], None],
        bulletin: Bulletin | None = None,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._bulletin = bulletin or Bulletin(clock=clock, timings=timings)
        self._bulletin.on_news(self._on_news)
        self._handovers = Handovers(arrived=self._take, clock=clock, timings=timings, log=log)
        self._table = table
        self._me = worker_id
        self._keeper = keeper
        self._clock = clock
        self._timings = timings
        self._log = log
        self._malformed = malformed
        self._leading = leading
        self._on_found = on_found
        self._nudge = Nudge(clock)
        self._finished: dict[LeaseKey, float] = {}
        self._scanned_s: float | None = None

    @property
    def finished(self) -> Collection[LeaseKey]:
        """Finished leases that bear our name, as the last looks saw them; they are not held."""
        return self._finished.keys()

    def nudge(self) -> None:
        """Look now."""
        self._nudge.nudge()

    def _on_news(self) -> None:
        """Leases were given away, perhaps one to us that was finished before."""
        self._finished.clear()
        self.nudge()

    async def run(self) -> None:
        """Look in each period, or when nudged; for ever."""
        async with anyio.create_task_group() as beside:
            beside.start_soon(self._handovers.run)
            while True:
                await self._nudge.wait(self._pause_s())
                await self._clock.sleep(self._rest_s())
                try:
                    await self.look()
                except AwsError as error:
                    self._log.warning("lease_discovery_failed", error=str(error))

    def _pause_s(self) -> float:
        """Rarely where the leader's row tells of news; they end the wait."""
        bulletin, young = self._bulletin, self._keeper.is_young
        if bulletin.is_kept and not bulletin.is_fresh and not young:
            return self._timings.distrust_s
        return self._timings.discovery_s(self._keeper.activity, leading=self._leading(), young=young)

    def _rest_s(self) -> float:
        """Scans of the whole table are rare, whatever is asked for; 0 where the last look did with the index.

        What is given to us stands still meanwhile for half as long as it may.
        """
        if self._scanned_s is None:
            return 0.0
        return max(0.0, self._scanned_s + self._timings.failover_s / 2 - self._clock.monotonic())

    def offer(self, leases: Iterable[Lease]) -> None:
        """Leases as this worker, as leader, has just read them: look closer if one that is ours is not held."""
        for lease in leases:
            if lease.lease_owner != self._me or lease.is_finished or self._keeper.holds(lease.lease_key):
                continue
            self._finished.pop(lease.lease_key, None)
            if lease.checkpoint_owner is None:
                self.nudge()
            else:
                self._handovers.expect(lease.lease_key)

    async def look(self) -> None:
        """One look. AwsError where the index or a row could not be read; what was found before stays found."""
        with self._meters.operation(kcl.DISCOVERY):
            await self._look()

    async def _look(self) -> None:
        with self._meters.operation(kcl.DISCOVERY_LIST):
            keys = [LeaseKey(key) for key in await self._owned_keys()]
        self._finished = self._still_finished(keys)
        known = (self._keeper.holds, self._finished.__contains__, self._handovers.expects)
        new = [key for key in sorted(keys) if not any(is_known(key) for is_known in known)]
        self._meters.add(kcl.DISCOVERY_FOUND, len(new))
        with self._meters.operation(kcl.DISCOVERY_FETCH):
            await self._take_all(new)

    def _still_finished(self, keys: list[LeaseKey]) -> dict[LeaseKey, float]:
        since_s = self._clock.monotonic() - _FINISHED_S
        return {key: self._finished[key] for key in keys if self._finished.get(key, -inf) >= since_s}

    async def _take_all(self, new: Iterable[LeaseKey]) -> None:
        limiter, failures = anyio.CapacityLimiter(_AT_ONCE), list[AwsError]()

        async def take(key: LeaseKey) -> None:
            """One lease; a failure is told at the end, when the others have had their turn."""
            async with limiter:
                try:
                    await self._take(key)
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as takes:
            for key in new:
                takes.start_soon(take, key)
        if failures:
            self._meters.add(kcl.DISCOVERY_ERRORS, len(failures))
            raise failures[0]

    async def _owned_keys(self) -> list[str]:
        try:
            keys = await self._table.owned_keys(self._me)
        except TableNotFound:
            # The index is missing or still building: work goes on, at the price of reading the whole table.
            self._log.debug("owner_index_missing", advice="leases are found by scans until it exists")
            self._scanned_s = self._clock.monotonic()
            rows = await self._table.scan()
            return [str(row[KEY]) for row in rows if row.get(OWNER) == self._me and KEY in row]
        self._scanned_s = None
        return keys

    async def _take(self, key: LeaseKey) -> bool:
        """Take a lease if it is ours; False where it is still on its way to us."""
        row = await self._table.get(key)
        if row is None or not is_lease_row(row):
            return True
        try:
            lease = lease_from_row(row)
        except MalformedRowError as malformed:
            self._malformed.tell(malformed)
            return True
        if lease.is_finished:
            self._finished[key] = self._clock.monotonic()
        elif lease.lease_owner != self._me:
            self._meters.add(kcl.DISCOVERY_MISMATCH)
        elif lease.checkpoint_owner is None:
            held = await self._keeper.claim(lease)
            if held is not None:
                self._found(held)
        elif lease.checkpoint_owner != self._me:
            self._handovers.expect(key)
            return False
        return True

    async def give_back(self) -> None:
        """At the end: give up what was given to us and not found in time, so that nobody waits for it to expire.

        Never raises for AWS; a few seconds at most.
        """
        with self._clock.move_on_after(self._timings.call_s):
            try:
                for key in sorted(await self._table.owned_keys(self._me)):
                    if not self._keeper.holds(LeaseKey(key)):
                        await self._give_back(LeaseKey(key))
            except AwsError as error:
                self._log.warning("lease_discovery_failed", error=str(error))

    async def _give_back(self, key: LeaseKey) -> None:
        row = await self._table.get(key)
        if row is None or not is_lease_row(row):
            return
        try:
            lease = lease_from_row(row)
        except MalformedRowError:
            return
        if lease.is_finished or lease.lease_owner != self._me or lease.checkpoint_owner is not None:
            return
        written = await self._table.update(release(lease))
        if written.applied:
            self._log.info("lease_released", lease_key=key, to=None)

    def take_assigned(self, lease: Lease, moved_s: float) -> None:
        """Hold a lease that this worker, as leader, has just assigned; nothing where it went to another.

        One that is handed over is watched. `moved_s` is from before the write.
        """
        if lease.checkpoint_owner is not None:
            self.offer((lease,))
        elif lease.lease_owner == self._me and not self._keeper.holds(lease.lease_key):
            self._found(self._keeper.adopt(lease, moved_s=moved_s))

    def _found(self, held: HeldLease) -> None:
        self._log.info("lease_taken", lease_key=held.key, checkpoint=str(held.lease.checkpoint))
        self._on_found(held)
