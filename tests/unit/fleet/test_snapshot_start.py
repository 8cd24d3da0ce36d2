"""How a snapshot begins and ends: once for a stream, whoever leads, and never beside leases or Java workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from kcl_daemon import faults
from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.errors import Unavailable
from kcl_daemon.fleet.shard_sync import ShardSync
from kcl_daemon.fleet.snapshot_start import SnapshotStart
from kcl_daemon.fleet.streams import StreamMonitor, TrackedStream
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.worker_row import Incarnation, report
from kcl_daemon.shards.lineage import InitialPosition, StartAt, segment_of
from kcl_daemon.shards.snapshot import first_shards, segment_leases
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.items import STREAM, Stream, Table, shard
from tests.unit.troubled import Trouble, TroubledTable

OLD, CLOSED, OPEN = shard(-600), shard(-300, shard(-600).shard_id), shard(-60, shard(-300).shard_id)


class Stage:
    """A table with a stream, no leases yet, and leaders that take a snapshot."""

    def __init__(self, settings: ChangesSettings) -> None:
        self.settings = settings
        self.clock, self.log = LoopClock(), MemoryLog()
        self.leases_table = TroubledTable()
        self.coordinator = TroubledTable("coordinator", "key")
        self.workers = TroubledTable("workers", "wid")
        self.scan = Table([f"item-{number}" for number in range(9)])
        self.stream = Stream((*(replace(each, ending_sequence_number=1) for each in (OLD, CLOSED)), OPEN))
        self.leads = True
        self.leader = self.new_leader()

    def new_leader(self) -> ShardSync:
        context = worker_context(clock=self.clock, log=self.log)
        watch = StreamMonitor(kinesis=self.stream, stream=STREAM, clock=self.clock, log=self.log)
        return ShardSync(
            context,
            table=self.leases_table,
            kinesis=self.stream,
            stream=TrackedStream(STREAM, InitialPosition(StartAt.LATEST), watch),
            settings=ShardSettings(),
            leads=lambda: self.leads,
            snapshot=SnapshotStart(
                context,
                table=self.coordinator,
                workers=self.workers,
                scan=self.scan,
                settings=self.settings,
            ),
        )

    async def leases(self) -> list[Lease]:
        rows = await TroubledTable.scan(self.leases_table)
        return sorted(map(lease_row.lease_from_row, rows), key=lambda lease: lease.lease_key)

    async def ensure(self) -> None:
        await self.leader.ensure(await self.leases())

    async def store(self, *leases: Lease) -> None:
        for lease in leases:
            await self.leases_table.put(lease_row.new_lease_row(lease))

    def said(self, event: str) -> list[dict[str, object]]:
        return [fields for _, name, fields in self.log.lines if name == event]


def play(scene: Callable[[Stage], Awaitable[None]], *, read_units: int = 500) -> Stage:
    changes = ChangesSettings(snapshot=True, segments=3, read_units=read_units)

    async def main() -> Stage:
        stage = Stage(changes)
        for table in (stage.leases_table, stage.coordinator, stage.workers):
            await table.ensure()
        await scene(stage)
        return stage

    return run_virtual(main)


def test_only_segments_have_leases_at_first() -> None:
    async def scene(stage: Stage) -> None:
        await stage.ensure()
        leases = await stage.leases()
        found = [segment_of(lease.shard_id) for lease in leases]
        assert [(each.index, each.count) for each in found if each is not None] == [(0, 3), (1, 3), (2, 3)]
        assert {lease.checkpoint for lease in leases} == {TRIM_HORIZON}
        await anyio.sleep(300)
        await stage.ensure()
        assert await stage.leases() == leases

    stage = play(scene)
    assert [each["items"] for each in stage.said("snapshot_begun")] == [9]
    assert not stage.said("snapshot_not_taken")


def test_a_leader_whose_date_was_set_ahead_still_has_the_changes_since_the_snapshot_began_read() -> None:
    class SetAhead(LoopClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + 3_000_000

        def passed_ms(self) -> int:
            return super().wall_ms()

    async def scene(stage: Stage) -> None:
        stage.clock = SetAhead()
        began_ms = stage.clock.passed_ms()
        await stage.new_leader().ensure([])
        segments = [segment_of(lease.shard_id) for lease in await stage.leases()]
        assert {each.begun_ms for each in segments if each is not None} == {began_ms}

    play(scene)


def test_two_leaders_make_the_same_leases() -> None:
    async def scene(stage: Stage) -> None:
        stage.leases_table.writes.extend([Trouble.NONE, Trouble.LATE])
        first, second = stage.leader, stage.new_leader()
        with pytest.raises(Unavailable):
            await first.ensure([])
        await anyio.sleep(20)
        await second.ensure([])
        await stage.leases_table.land()
        assert len(await stage.leases()) == 3

    assert len(play(scene).said("snapshot_begun")) == 1


def test_a_leader_that_stood_still_makes_no_leases_of_segments_that_may_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: Stage) -> None:
        def another_leads(_point: str) -> None:
            stage.leads = False

        monkeypatch.setattr(faults, "_at", another_leads)
        await stage.ensure()
        assert await stage.leases() == []

    play(scene)


def test_leases_that_a_dead_leader_left_out_follow() -> None:
    async def scene(stage: Stage) -> None:
        await stage.ensure()
        everything = await stage.leases()
        await stage.leases_table.delete(everything[1].lease_key)
        await stage.new_leader().ensure(await stage.leases())
        assert await stage.leases() == everything

    play(scene)


def test_a_table_with_leases_is_not_scanned_and_that_is_said_once() -> None:
    async def scene(stage: Stage) -> None:
        await stage.store(new_lease(OPEN, LATEST))
        for _ in range(3):
            await stage.ensure()
            await anyio.sleep(200)
        assert [lease.shard_id for lease in await stage.leases()] == [OPEN.shard_id]

    stage = play(scene)
    assert len(stage.said("snapshot_not_taken")) == 1
    assert not stage.said("snapshot_begun")


def test_without_shards_there_is_no_snapshot_yet() -> None:
    async def scene(stage: Stage) -> None:
        stage.stream.shards = ()
        await stage.ensure()
        assert await stage.leases() == []

    assert not play(scene).said("snapshot_begun")


def test_java_workers_are_refused_and_ours_are_not() -> None:
    async def scene(stage: Stage) -> None:
        now_s = stage.clock.wall_ms() // 1000
        await stage.workers.update(report(WorkerId("java"), now_s=now_s))
        await stage.workers.update(report(WorkerId("ours"), now_s=now_s, incarnation=Incarnation(1, "nonce")))
        await stage.ensure()
        assert await stage.leases() == []
        await anyio.sleep(600)
        await stage.ensure()
        assert len(await stage.leases()) == 3

    assert [each["worker_ids"] for each in play(scene).said("snapshot_refused")] == [["java"]]


def test_its_end_is_said_once_and_the_segments_go_when_the_stream_is_read() -> None:
    async def scene(stage: Stage) -> None:
        await stage.ensure()
        segments = await stage.leases()
        await anyio.sleep(60)
        segment = segment_of(segments[0].shard_id)
        assert segment is not None
        roots = first_shards(stage.stream.shards, segment)
        over = [
            replace(each, checkpoint=SHARD_END, child_shard_ids=frozenset(root.shard_id for root in roots))
            for each in segments
        ]
        assert [root.shard_id for root in roots] == [OPEN.shard_id]
        await stage.store(*over[:2])
        await stage.ensure()
        assert not stage.said("snapshot_over")
        await stage.store(over[2])
        await stage.ensure()
        assert stage.said("snapshot_over"), "at once, before the leases are deleted"
        await stage.new_leader().ensure(await stage.leases())
        assert [each["seconds"] for each in stage.said("snapshot_over")] == [60]
        await anyio.sleep(400)
        await stage.ensure()
        assert len(await stage.leases()) == 4, "the shard's lease was made, and waits for its child to begin"
        await stage.store(new_lease(roots[0], ExtendedSequenceNumber("1" * 21)))
        for _ in range(4):
            await anyio.sleep(400)
            await stage.ensure()
        assert [lease.shard_id for lease in await stage.leases()] == [OPEN.shard_id]

    play(scene)


def test_a_budget_that_cannot_do_it_in_a_day_is_said_with_what_to_set() -> None:
    async def scene(stage: Stage) -> None:
        stage.scan.item_bytes = 10**9
        await stage.ensure()

    stage = play(scene, read_units=10)
    (warned,) = stage.said("snapshot_budget_small")
    assert "snapshotReadUnits = 51" in str(warned["advice"])
    assert not play(scene, read_units=100).said("snapshot_budget_small")


def test_the_rows_of_segments_are_as_those_of_shards() -> None:
    for lease in segment_leases(1_770_000_000_000, 2):
        assert lease_row.lease_from_row(lease_row.new_lease_row(lease)) == lease
