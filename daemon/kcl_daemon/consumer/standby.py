"""Children of leases that are being handed off to this worker, started before the old owner releases the lease.

A child gets nothing but the first byte of its first line until its lease has come. If it does not come, the child gets
SIGTERM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup

from kcl_daemon import faults
from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import AwsError, ChildStartFailed
from kcl_daemon.fleet.streams import StreamTracker
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity
from kcl_daemon.leases.row import ready
from kcl_daemon.ports import Child, ChildLane, Children, Log, Table

_RETRY_S: Final = 1.0


@dataclass(eq=False, slots=True)
class _Standby:
    """`child` is there only while it lives, and after `ended` only if it was taken."""

    lane: ChildLane | None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    started: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    child: Child | None = None
    is_ready: bool = False
    taken: bool = False
    dismissed: bool = False


class StandbyChildren:
    """At most one for each lane of a lease; `run` must run for them to live.

    Args:
        lanes_of: how many children the shards of a stream have.
        is_read: whether a consumer of this worker still has the shard.
        on_ready: called when a child stands by, so the lease will come soon.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        children: Children,
        streams: StreamTracker,
        table: Table,
        exit_grace_s: float,
        lanes_of: Callable[[StreamIdentity | None], int],
        is_read: Callable[[LeaseKey], bool],
        on_ready: Callable[[LeaseKey], None],
    ) -> None:
        self._context = context
        self._children = children
        self._streams = streams
        self._table = table
        self._exit_grace_s = exit_grace_s
        self._lanes_of = lanes_of
        self._is_read = is_read
        self._on_ready = on_ready
        self._standing: dict[LeaseKey, dict[int, _Standby]] = {}
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    def prepare(self, lease: Lease) -> None:
        """Idempotent: a child that has failed is not started again before the lease has come."""
        key = lease.lease_key
        if self._tasks is None or not self._context.timings.standby_s:
            return
        if key in self._standing or self._is_read(key):
            return
        count = self._lanes_of(lease.stream)
        for number in range(count):
            standby = _Standby(ChildLane(number, count) if count > 1 else None)
            self._standing.setdefault(key, {})[number] = standby
            self._tasks.start_soon(self._stand_by, lease, standby)

    def dismiss(self, key: LeaseKey) -> None:
        """No effect on those that were taken."""
        for standby in list(self._standing.get(key, {}).values()):
            if standby.taken:
                continue
            standby.dismissed = True
            standby.scope.cancel()
            if standby.ended.is_set():
                self._forget(key, standby)

    def _forget(self, key: LeaseKey, standby: _Standby) -> None:
        standing, number = self._standing.get(key, {}), 0 if standby.lane is None else standby.lane.number
        if standing.get(number) is standby:
            del standing[number]
        if not standing:
            self._standing.pop(key, None)

    async def take(self, key: LeaseKey, lane: ChildLane | None = None) -> Child | None:
        """None: start another one. No other child of the lane lives then."""
        standby = self._standing.get(key, {}).get(0 if lane is None else lane.number)
        if standby is None:
            return None
        try:
            if not standby.dismissed:
                standby.taken = True
                await standby.started.wait()
                standby.scope.cancel()
            await standby.ended.wait()
        except BaseException:
            standby.taken = False
            self.dismiss(key)
            raise
        self._forget(key, standby)
        return standby.child

    async def _stand_by(self, lease: Lease, standby: _Standby) -> None:
        stream = self._streams.of(lease).for_child
        named: dict[str, object] = {} if lease.stream is None else {"stream": str(lease.stream)}
        if standby.lane is not None:
            named["lane"] = standby.lane.number
        log = self._context.log.bind(**named, shard_id=lease.shard_id)
        try:
            with standby.scope:
                child = await self._children.start(lease.shard_id, stream, standby.lane)
                standby.child = child
                standby.started.set()
                log = log.bind(pid=child.pid)
                log.info("standby_child_started", of=lease.checkpoint_owner)
                await self._watch(lease, standby, child, log)
                await child.aclose()
                standby.child = None
        except ChildStartFailed as failed:
            log.info("standby_child_ended", reason=str(failed))
        finally:
            try:
                if standby.child is not None and not standby.taken:
                    await self._end(standby.child, log)
                    standby.child = None
            finally:
                standby.started.set()
                standby.ended.set()
                if standby.dismissed:
                    self._forget(lease.lease_key, standby)

    async def _watch(self, lease: Lease, standby: _Standby, child: Child, log: Log) -> None:
        began_s = self._context.clock.monotonic()

        async def announce() -> None:
            await child.until_reading()
            seconds = self._context.clock.monotonic() - began_s
            log.info("child_stands_by", seconds=round(seconds, 3))
            standby.is_ready = True
            if all(
                each.is_ready or each.ended.is_set()
                for each in self._standing.get(lease.lease_key, {}).values()
            ):
                await self._tell(lease, log)
                self._on_ready(lease.lease_key)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(announce)
            log.info("standby_child_ended", reason=f"it ended with {await child.wait()}")
            tasks.cancel_scope.cancel()

    async def _tell(self, lease: Lease, log: Log) -> None:
        while lease.awaits_standby:
            try:
                await self._context.call(self._table.update(ready(lease)), "UpdateItem")
            except AwsError as error:
                log.debug("standby_not_told", error=str(error))
                await self._context.clock.sleep(_RETRY_S)
            else:
                faults.maybe("after-standby-told")
                return  # refused: the handoff is over

    async def _end(self, child: Child, log: Log) -> None:
        """It has done nothing yet, and the end of stdin would leave it with half a line."""
        log.info("standby_child_ended", reason="its lease did not come")
        try:
            child.terminate()
            with self._context.clock.move_on_after(self._exit_grace_s):
                await child.wait()
        finally:
            await child.aclose()
