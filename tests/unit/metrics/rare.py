"""Scenes of what seldom happens to a worker, each of which is counted by a metric of KCL's.

Each plays real parts over tables in memory, with the meters of the scene in their place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, cast

import anyio

from kcl_daemon.capacity.figures import Bound, Capacity, StreamCapacity
from kcl_daemon.cli.leases.look import LeaseLag
from kcl_daemon.cli.watch.command import WatchFigures
from kcl_daemon.cli.watch.look import Position, Watched
from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.config.streams import FormerStreams
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.consumer import shard_end
from kcl_daemon.cpu.sources import CpuSampler
from kcl_daemon.errors import AwsError, CpuUnreadable, IteratorExpired
from kcl_daemon.fleet.tables import ApplicationTables
from kcl_daemon.leases.layout import TableStatus
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.leases.row import Absent, RowCheck, RowUpdate, steal_or_take
from kcl_daemon.migrations.kcl2_taking import LeaseTake
from kcl_daemon.migrations.one_table_rules import (
    AdvanceStatus,
    MigrationCompletion,
    MigrationStep,
    RowBatch,
    RowWrite,
    TableSide,
    WithdrawStatusRow,
)
from kcl_daemon.ports import FetchedRecords, Meters, StreamRef, Tables
from kcl_daemon.retrieval.readers import MeteredKinesis
from kcl_daemon.shards.lineage import StartAt
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog
from tests.unit.fleet import assigner_stage as assigning
from tests.unit.fleet import test_discovery as discovering
from tests.unit.fleet import test_streams_many
from tests.unit.fleet.shard_sync_stage import Stage as Syncing
from tests.unit.migrations import test_kcl2_lease_taker as taking_leases
from tests.unit.migrations import test_kcl2_versions as upgrading
from tests.unit.migrations import test_one_table_loops as moving
from tests.unit.troubled import Trouble, TroubledTable

_KEY: Final = LeaseKey("shardId-000000000000")


async def leases_cannot_be_read(meters: Meters) -> None:
    """Discovery finds a lease whose row it cannot read, and one whose row names somebody else."""
    stage = discovering.Stage()
    stage.discovery._meters = meters
    await stage.table.ensure()
    await stage.has_lease()
    stage.table.reads.append(Trouble.FAILED_BEFORE)
    with suppress(AwsError):
        await stage.discovery.poll()
    await stage.table.update(RowUpdate(discovering.KEY, put={"leaseOwner": "other"}))
    await stage.discovery._take(discovering.KEY)


async def leader_fails_and_resigns(meters: Meters) -> None:
    """A leader cannot read the lease table three times in a row."""
    stage = assigning.Stage()
    stage.assigner._meters = meters
    for table in (stage.tables.leases, stage.tables.worker_metrics, stage.tables.coordinator):
        await table.ensure()
    async with anyio.create_task_group() as loops:
        loops.start_soon(stage.elector.run)
        loops.start_soon(stage.assigner.run)
        await anyio.sleep(5.0)
        stage.leases.reads.extend([Trouble.FAILED_BEFORE] * 3)
        await anyio.sleep(20.0)
        loops.cancel_scope.cancel()


async def lease_is_taken_by_another(meters: Meters) -> None:
    """Of two workers that take the same lease one is too late."""
    stage = taking_leases.Stage()
    stage.taker._meters = meters
    await stage.table.ensure()
    lease = await stage.lease(await stage.has_lease(0, None))
    await stage.table.update(steal_or_take(lease, taking_leases.OTHER))
    await stage.taker._take(LeaseTake(lease, steal_or_take(lease, taking_leases.ME), None, "it was free"))


async def version_cannot_be_read(meters: Meters) -> None:
    """The row of the client version is out of reach for a moment."""
    stage = upgrading.Stage()
    stage.versions._meters = meters
    stage.coordinator.reads.append(Trouble.FAILED_BEFORE)
    await stage.versions._poll()


async def former_stream_goes(meters: Meters) -> None:
    """A stream is deleted and listed no more; its leases go."""
    stage = test_streams_many.Stage(test_streams_many.listing("clicks", "orders"))
    await stage.table.ensure()
    stage.create("clicks")
    stage.create("orders")
    await stage.poll()
    stage.delete("clicks")
    stage.configure(test_streams_many.listing("orders", former=FormerStreams.DELETE_ALL, wait_s=1e6))
    stage.shard_sync._meters = stage.shard_sync._former._meters = meters
    await stage.later(2.0)


async def stream_goes_before_the_audit(meters: Meters) -> None:
    """The stream is not there when its leases are looked through."""
    stage = Syncing(ShardSettings(), StartAt.TRIM_HORIZON)
    stage.shard_sync._meters = meters
    await stage.table.ensure()
    stage.delete_stream()
    await stage.ensure()


async def leases_begin_late(meters: Meters) -> None:
    """Fresh applications that begin at a time, and at the tip."""
    for position in (StartAt.TIMESTAMP, StartAt.LATEST):
        stage = Syncing(ShardSettings(), position)
        stage.shard_sync._meters = meters
        await stage.table.ensure()
        stage.kinesis.lists.append(tuple((await stage.shards()).values()))
        await stage.ensure()


async def iterator_expires(meters: Meters) -> None:
    """An iterator is used that is older than five minutes."""
    kinesis = MeteredKinesis(_OldIterators(KinesisModel(lambda: 0.0)), meters)
    with suppress(IteratorExpired):
        await kinesis.get_records(StreamRef("words"), ShardId(_KEY), "old", 100)


async def merge_lacks_a_parent(meters: Meters) -> None:
    """Of a merged shard one parent has no lease, and Kinesis has forgotten it."""
    stage = Syncing(ShardSettings(), StartAt.TRIM_HORIZON)
    await stage.table.ensure()
    parents = frozenset({ShardId(_KEY), ShardId("shardId-000000000999")})
    held: Any = _Only(lease=Lease(_KEY, 3, TRIM_HORIZON))

    def of(_lease: Lease) -> object:
        return _Only(ref=None)

    parts: Any = _Only(
        context=_Only(meters=meters), table=stage.table, kinesis=stage.kinesis, streams=_Only(of=of)
    )
    child = Lease(LeaseKey("shardId-000000001000"), 0, TRIM_HORIZON, parent_shard_ids=parents)
    stage.kinesis.lists.append(tuple((await stage.shards()).values()))
    await shard_end._missing_parents(parts, child, {ShardId(_KEY): held.lease})


async def steps_of_the_move_fail(meters: Meters) -> None:
    """DynamoDB is out of reach at each kind of step into one table."""
    stage = moving.Stage(TableStatus.INIT, migrate_all=False)
    stage.migrator._meters = meters
    await stage.begin()
    update = RowUpdate("TableMigration3.5", put={"tm": "x"})
    steps: tuple[MigrationStep, ...] = (
        WithdrawStatusRow("TableMigration3.5", (), "regressed"),
        AdvanceStatus(update, TableStatus.DEPLOYED, "all know it"),
    )
    for step in steps:
        stage.coordinator.writes.append(Trouble.FAILED_BEFORE)
        with suppress(AwsError):
            await stage.migrator._carry_out(step)
    part = RowWrite(TableSide.LEGACY, RowCheck("another", (Absent("key"),)))
    nothing_to_do = MigrationCompletion((part, part), "two parts on one row")
    with suppress(AwsError):
        await stage.migrator._carry_out(nothing_to_do)
    await stage.migrator._carry_out(RowBatch((part,), ("row",), "it is the last one"))
    stage.coordinator.reads.extend([Trouble.FAILED_BEFORE] * 2)
    with suppress(AwsError):
        await stage.migrator._poll()


async def tables_cannot_be_read_at_the_start(meters: Meters) -> None:
    """The row of the move is out of reach when the worker starts."""
    coordinator = TroubledTable("coordinator", "key")
    tables = ApplicationTables(
        Tables(TroubledTable(), TroubledTable("metrics", "wid"), coordinator),
        settings=TablesSettings(),
        clock=LoopClock(),
        log=MemoryLog(),
        meters=meters,
    )
    await coordinator.ensure()
    coordinator.reads.append(Trouble.FAILED_BEFORE)
    with suppress(AwsError):
        await tables.open()


async def cpu_cannot_be_read(meters: Meters) -> None:
    """The machine does not tell how busy it is."""
    sampler = CpuSampler(
        cpu=_BrokenCpu(), clock=LoopClock(), randomness=CalmChance(), log=MemoryLog(), meters=meters
    )
    await sampler.capture()


class _BrokenCpu:
    name = "broken"

    async def sample(self) -> float | None:
        raise CpuUnreadable("/proc/stat: no such file")


class _OldIterators(MemoryKinesis):
    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        raise IteratorExpired("it is older than five minutes", operation="GetRecords")


class _Only:
    """The few attributes of a large object that one function looks at."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


async def watcher_looks(meters: Meters) -> None:
    """It knows everything that can be known."""
    position = Position(TRIM_HORIZON, 0.0, LeaseLag(5000))
    whole = StreamCapacity(None, 1, 5.0, 1.0, 0.0, Bound.NOTHING, "", 1.0, 1.0)
    capacity = Capacity(0, WorkerId("w-1"), 1, 0, 1, "", "", "", whole)
    looked = Watched(9.0, 9000, seen_s=9.0, workers=1, positions={_KEY: position}, capacity=capacity)
    WatchFigures(meters).take(looked)


SCENES: Final = cast(
    "tuple[Callable[[Meters], Awaitable[None]], ...]",
    (
        leases_cannot_be_read,
        watcher_looks,
        leader_fails_and_resigns,
        lease_is_taken_by_another,
        version_cannot_be_read,
        former_stream_goes,
        stream_goes_before_the_audit,
        leases_begin_late,
        iterator_expires,
        merge_lacks_a_parent,
        steps_of_the_move_fail,
        tables_cannot_be_read_at_the_start,
        cpu_cannot_be_read,
    ),
)
