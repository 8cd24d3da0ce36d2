"""Leader election as the Java lock client does it.

Owns one worker's lock, its heartbeats and what it remembers of another's. A lost conditional write fails at once, as in
the later fix of the client.
"""

from __future__ import annotations

import anyio

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.row import Row
from tests.simulator.java import rows as java_rows
from tests.simulator.java.host import HEARTBEAT_S, LOCK_S, LOOK_AGAIN_S, Host


class JavaLock:
    """One worker's part in the election."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._table = host.tables.coordinator
        self._turn = anyio.Lock()
        self._version: str | None = None
        self._alive_s = 0.0
        self._seen: tuple[object, float] | None = None
        self._denied_s: float | None = None

    async def is_leader(self) -> bool:
        """F1: a no is believed for 30 s; a yes is what is in memory, while the lock is not older than its lease."""
        async with self._turn:
            now_s = self._host.now_s()
            if self._denied_s is not None and now_s - self._denied_s < LOOK_AGAIN_S:
                return False
            if self._holds(now_s):
                return True
            leads = await self._acquire()
            self._denied_s = None if leads else self._host.now_s()
            return leads

    async def release(self) -> None:
        """F7: the row is deleted, where the lock is held and ours. Never raises for AWS."""
        async with self._turn:
            version, self._version = self._version, None
            if version is None or self._host.now_s() - self._alive_s > LOCK_S:
                return
            try:
                await self._table.delete(java_rows.LEADER_KEY, java_rows.lock_is(self._host.me, version))
                self._host.log.info("java_leadership_released")
            except AwsError as error:
                self._host.log.info("java_leadership_release_failed", error=str(error))

    async def run(self) -> None:
        """Heartbeats, for ever; a conditional failure drops the lock, other errors keep it until it is too old."""
        while True:
            began_s = self._host.now_s()
            await self._send_heartbeat()
            await self._host.clock.sleep(HEARTBEAT_S - (self._host.now_s() - began_s))

    def _holds(self, now_s: float) -> bool:
        return self._version is not None and now_s - self._alive_s <= LOCK_S

    async def _send_heartbeat(self) -> None:
        version, me = self._version, self._host.me
        if version is None:
            return
        began_s, new = self._host.now_s(), self._host.chance.token()
        try:
            written = await self._table.update(java_rows.lock_heartbeat(me, version, new))
        except AwsError as error:
            self._host.log.info("java_heartbeat_failed", error=str(error))
            return
        if self._version != version:
            return  # released or lost meanwhile
        if written.applied:
            self._version, self._alive_s = new, began_s
        else:
            self._version = None
            self._host.log.info("java_leadership_lost")

    async def _acquire(self) -> bool:
        """F2, without blocking."""
        row = await self._table.get(java_rows.LEADER_KEY)
        condition = java_rows.lock_condition(row, self._table.key_attribute, stale=self._is_stale(row))
        if condition is None:
            return False
        began_s, version = self._host.now_s(), self._host.chance.token()
        taken = java_rows.lock_row(self._host.dialect, self._table.key_attribute, self._host.me, version)
        if not (await self._table.put(taken, condition)).applied:
            return False
        self._version, self._alive_s, self._seen = version, began_s, None
        self._host.log.info("java_leadership_taken")
        return True

    def _is_stale(self, row: Row | None) -> bool:
        """Whether this version was first seen longer ago than its owner's lease lasts; else remember it."""
        if row is None:
            return False
        version, duration = row.get("recordVersionNumber"), row.get("leaseDuration")
        now_s = self._host.now_s()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now_s)
        lease_s = int(duration) / 1000 if isinstance(duration, str) else LOCK_S
        return now_s - self._seen[1] > lease_s
