"""A whole Java KCL 3.x worker, with the timing of KCL 3.x: start-up, its loops, its dispatcher, its shutdown.

A small model of its own: it shares no loop and no rule with the daemon, only the codecs of rows, the ports and the
ledger of deliveries. It is there so that our workers meet strangers with other habits: a leader that looks every 20 s and
holds its lock for 120 s, leases found every 10 s, no lease released at shutdown.

Java's known faults are kept out: a worker that loses the race for `Migration3.0` continues with the row it finds,
and whoever loses a conditional write on the lock does not sleep in the call. Left out besides:
fan-out, prefetching, aggregates with records of other shards, and migrations.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import anyio
import anyio.abc

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.row import is_lease_row, lease_from_row
from kcl_daemon.ports import IndexState
from kcl_protocol.sequence import AT_TIMESTAMP, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.java import host as java_host
from tests.simulator.java import rows as java_rows
from tests.simulator.java.assigner import JavaAssigner
from tests.simulator.java.auditor import JavaAuditor
from tests.simulator.java.consumer import JavaConsumer
from tests.simulator.java.host import Host
from tests.simulator.java.leases import Held, JavaLeases
from tests.simulator.java.lock import JavaLock

_AVERAGES_MOST: Final = 10
_SHUTDOWN_S: Final = 30.0


class JavaWorker:
    """One Scheduler with all that belongs to it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = JavaLock(host)
        self._leases = JavaLeases(host, self._hand_off)
        self._assigner = JavaAssigner(host, self._lock)
        self._schedule = JavaAuditor(host, self._lock)
        self._consumers: dict[Held, JavaConsumer] = {}
        self._cpu: deque[float] = deque(maxlen=_AVERAGES_MOST)
        self._stop = anyio.Event()
        self._leads = anyio.CancelScope()

    def request_stop(self) -> None:
        """SIGTERM."""
        self._stop.set()

    async def run(self) -> None:
        """Work until asked to stop, then stop gracefully (SD1)."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._live)
            await self._stop.wait()
            await self._shut_down()
            group.cancel_scope.cancel()

    async def _live(self) -> None:
        async with anyio.create_task_group() as keeping:
            with self._leads:
                async with anyio.create_task_group() as leading:
                    await self._start(leading)
                    leading.start_soon(self._every, java_host.DISCOVER_S, self._leases.discover)
                    leading.start_soon(
                        self._every, java_host.AUDIT_S, self._schedule.poll, java_host.AUDIT_FIRST_S
                    )
                    keeping.start_soon(self._every, java_host.RENEW_S, self._leases.renew)
                    keeping.start_soon(self._every, java_host.HANDOFF_LOOK_S, self._leases.watch_handoffs)
                    keeping.start_soon(
                        self._every, java_host.CLEANUP_S, self._clean_up, java_host.CLEANUP_FIRST_S
                    )
                    keeping.start_soon(self._dispatch)

    async def _every(self, period_s: float, run: java_host.Run, first_s: float = 0.0) -> None:
        await self._host.at_fixed_rate(period_s, run, first_s=first_s)

    async def _start(self, leading: anyio.abc.TaskGroup) -> None:
        """Up to 20 attempts; what has been done is not done again."""
        steps = [
            self._make_tables,
            self._state_version,
            self._await_index,
            self._first_sync,
            self._leases.adopt,
        ]
        attempts = 0
        while steps:
            try:
                await steps[0]()
            except AwsError as error:
                attempts += 1
                self._host.log.info("java_start_failed", attempt=attempts, error=str(error))
                if attempts == java_host.START_TRIES:
                    raise
                await self._host.clock.sleep(java_host.START_PAUSE_S)
                continue
            if steps.pop(0) == self._await_index:
                leading.start_soon(self._lock.run)
                leading.start_soon(self._assigner.run)
                leading.start_soon(
                    self._every, java_host.REPORT_S, self._report_result, java_host.REPORT_FIRST_S
                )

    async def _make_tables(self) -> None:
        """All three, as 3.4 does; 3.5 uses them where they are there."""
        tables = self._host.tables
        for table in (tables.leases, tables.coordinator, tables.worker_metrics):
            await table.ensure()

    async def _state_version(self) -> None:
        table, host = self._host.tables.coordinator, self._host
        if await table.get(java_rows.VERSION_KEY) is None:
            row = java_rows.version_row(
                host.dialect, table.key_attribute, host.me, now_ms=host.clock.wall_ms()
            )
            await table.put(row, java_rows.absent(table.key_attribute))

    async def _await_index(self) -> None:
        """Create it where it is missing; nothing else goes on until it is there."""
        table = self._host.tables.leases
        while True:
            state = await table.describe()
            index = IndexState.ABSENT if state is None else state.owner_index
            if index is IndexState.ACTIVE:
                return
            if index is IndexState.ABSENT:
                await table.add_owner_index()
            await self._host.clock.sleep(java_host.INDEX_LOOK_S)

    async def _first_sync(self) -> None:
        """A while after the start, by the leader, where there is no lease yet; then a minute's rest."""
        host = self._host
        until_s = host.now_s() + host.chance.uniform(*java_host.START_WAIT_S)
        while not await self._has_leases():
            if host.now_s() < until_s:
                await host.clock.sleep(java_host.TABLE_EMPTY_LOOK_S)
                continue
            if await self._lock.is_leader():
                await self._create_leases()
                await host.clock.sleep(java_host.AFTER_SYNC_S)
            return

    async def _has_leases(self) -> bool:
        return any(is_lease_row(row) for row in await self._host.tables.leases.scan())

    async def _create_leases(self) -> None:
        host = self._host
        shards = await host.kinesis.list_shards(host.stream, host.position)
        for shard in sorted(shards, key=lambda shard: (shard.starting_sequence_number, shard.shard_id)):
            row, condition = java_rows.new_lease(
                host.dialect,
                shard.shard_id,
                parents=shard.parent_shard_ids,
                hash_range=shard.hash_range,
                position=host.position.checkpoint,
            )
            await host.tables.leases.put(row, condition)

    async def _report_result(self) -> None:
        """I5: with figures of the CPU where there are any."""
        host = self._host
        if host.cpu is not None:
            self._cpu.append(host.cpu())
        now_s = host.clock.wall_ms() // 1000
        await host.tables.worker_metrics.update(
            java_rows.report(host.dialect, host.me, now_s=now_s, cpu=tuple(self._cpu))
        )

    async def _dispatch(self) -> None:
        """A5: every second a consumer for what is held, none for what is not; then the leader's duties."""
        async with anyio.create_task_group() as consuming:
            while True:
                for held in self._leases.current:
                    if held not in self._consumers and not self._stop.is_set():
                        self._consumers[held] = consumer = JavaConsumer(self._host, self._leases, held)
                        consuming.start_soon(consumer.run)
                for held, consumer in list(self._consumers.items()):
                    if not self._leases.holds(held):
                        consumer.scope.cancel()
                        del self._consumers[held]
                if not self._stop.is_set():
                    await self._lead()
                await self._host.clock.sleep(java_host.DISPATCH_S)

    async def _lead(self) -> None:
        try:
            await self._lock.is_leader()
        except AwsError as error:
            self._host.log.info("java_lock_unreachable", error=str(error))

    def _hand_off(self, held: Held) -> bool:
        """None while we stop; without a consumer the next renewal asks again."""
        consumer = self._consumers.get(held)
        if consumer is None or consumer.is_over or self._stop.is_set():
            return False
        consumer.request_shutdown()
        return True

    async def _clean_up(self) -> None:
        """M11b: own finished leases, when their children have begun and their parents are gone; without condition."""
        leases = self._host.tables.leases
        for held in self._leases.current:
            lease = held.lease
            if not lease.is_finished:
                continue
            children = [await leases.get(child) for child in sorted(lease.child_shard_ids)]
            begun = [
                row for row in children if row is not None and _has_begun(lease_from_row(row).checkpoint)
            ]
            parents = [await leases.get(parent) for parent in sorted(lease.parent_shard_ids)]
            if children and len(begun) == len(children) and not any(row is not None for row in parents):
                await leases.delete(lease.lease_key)

    async def _shut_down(self) -> None:
        """SD1, SD2: consumers finish and drop their leases, the lock is given up; no lease row is written (SD3)."""
        self._leads.cancel()
        for consumer in self._consumers.values():
            consumer.request_shutdown()
        with self._host.clock.move_on_after(_SHUTDOWN_S):
            while not all(consumer.is_over for consumer in self._consumers.values()):
                await self._host.clock.sleep(0.1)
        self._leases.forget_all()
        await self._lock.release()


def _has_begun(checkpoint: ExtendedSequenceNumber) -> bool:
    return checkpoint not in {TRIM_HORIZON, AT_TIMESTAMP}
