"""One worker's coordination over real rows in memory, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.assignment.plan import by_lease_count
from kcl_daemon.fleet.assigner import Assigner, AssignmentListener, AssignmentStrategies
from kcl_daemon.fleet.discovery import AssignmentNotifier, Discovery
from kcl_daemon.fleet.lease_renewer import HeldLease, MalformedRowLog
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import Tables
from kcl_daemon.progress.progress import ActiveLeases
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import (
    NoStandby,
    elector_of,
    fleet_monitor,
    lease_renewer,
    nothing,
    reporter_of,
    words_sync,
    worker_context,
)
from tests.unit.fleet.slow_kinesis import SlowKinesis
from tests.unit.troubled import TroubledTable

ME, OTHER, GONE = WorkerId("me"), WorkerId("other"), WorkerId("gone")
BY_COUNT = AssignmentStrategies(place=by_lease_count, balance=by_lease_count)


class Stage:
    """One worker's coordination over empty tables and a stream of four shards; consumers are only noted."""

    def __init__(self, strategies: AssignmentStrategies = BY_COUNT) -> None:
        clock, self.log = LoopClock(), MemoryLog()
        self.clock = clock
        context = worker_context(ME, clock=clock, log=self.log)
        self.leases = TroubledTable()
        self.workers = TroubledTable("metrics", "wid")
        self.tables = Tables(self.leases, self.workers, TroubledTable("coordinator", "key"))
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 4})
        self.found: list[LeaseKey] = []
        self.kinesis = SlowKinesis(self.model)
        self.renewer = lease_renewer(context, self.leases)
        self.elector = elector_of(
            context,
            self.tables.coordinator,
            on_elected=lambda: self.assigner.begin_term(),  # noqa: PLW0108 - made below
        )
        self.reporter = reporter_of(context, self.tables.worker_metrics)
        malformed = MalformedRowLog(self.log)
        self.discovery = Discovery(
            context,
            table=self.leases,
            renewer=self.renewer,
            malformed=malformed,
            leading=lambda: self.elector.is_leader,
            on_found=self._on_found,
            notifier=AssignmentNotifier(context, on_assigned=nothing),
            standby=NoStandby(),
        )
        self.monitor = fleet_monitor(context, self.tables, malformed)
        self.assigner = Assigner(
            context,
            tables=self.tables,
            monitor=self.monitor,
            elector=self.elector,
            shard_sync=words_sync(context, self.leases, self.kinesis),
            strategies=strategies,
            stale_worker_s=86_400.0,
            listener=AssignmentListener(
                self.discovery.offer,
                self.discovery.take_assigned,
                ActiveLeases().decided,
                self.renewer.holds,
            ),
        )

    def _on_found(self, held: HeldLease) -> None:
        self.found.append(held.key)

    async def has_lease(self, number: int, owner: WorkerId | None, **changes: str) -> LeaseKey:
        """A lease is in the table already."""
        width = (MAX_HASH + 1) // 4
        hash_range = HashRange(number * width, (number + 1) * width - 1)
        key = LeaseKey(f"shardId-{number:012d}")
        lease = Lease(key, 3, TRIM_HORIZON, lease_owner=owner, hash_range=hash_range)
        await TroubledTable.put(self.leases, {**lease_row.new_lease_row(lease), **changes})
        return key

    async def has_worker(self, worker: WorkerId, *, stands_by: bool = False) -> None:
        """Another worker reports now."""
        now_s = self.clock.wall_ms() // 1000
        await self.tables.worker_metrics.update(report(worker, now_s=now_s, stands_by=stands_by))

    async def owners(self) -> dict[str, str | None]:
        """Who owns what."""
        rows = await TroubledTable.scan(self.leases)
        return {str(row["leaseKey"]): str(row["leaseOwner"]) if "leaseOwner" in row else None for row in rows}


def play(
    scene: Callable[[Stage], Awaitable[None]],
    *,
    before: Callable[[Stage], Awaitable[object]] | None = None,
    strategies: AssignmentStrategies = BY_COUNT,
) -> Stage:
    """Run all loops beside a scene, after the tables were prepared."""

    async def main() -> Stage:
        stage = Stage(strategies)
        for table in (stage.leases, stage.tables.worker_metrics, stage.tables.coordinator):
            await table.ensure()
        if before is not None:
            await before(stage)
        await stage.reporter.report()
        async with anyio.create_task_group() as background:
            loops = (stage.renewer, stage.elector, stage.reporter, stage.assigner, stage.discovery)
            for loop in loops:
                background.start_soon(loop.run)
            await scene(stage)
            background.cancel_scope.cancel()
        return stage

    return run_virtual(main)
