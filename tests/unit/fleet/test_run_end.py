"""When a bounded run is over, and which bound the workers of a fleet agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.config.streams import ListedStream, StreamsSettings
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.fleet.many_streams import MultiStreamTracker
from kcl_daemon.fleet.run_end import RunEnd, agreed_bound_ms, not_there
from kcl_daemon.fleet.streams import SingleStreamTracker, StreamMonitor, TrackedStream, leases_of
from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, ShardId, Throughput, WorkerId
from kcl_daemon.leases.row import new_lease_row
from kcl_daemon.leases.worker_row import WorkerRow, report
from kcl_daemon.ports import StreamRef
from kcl_daemon.progress.progress import LeaseProgress, WaitReason
from kcl_daemon.shards.lineage import NO_HASH_KEYS, InitialPosition
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import LoopClock
from tests.unit.fleet.contexts import worker_context

UNTIL_MS = 1_000_000
MIDDLE = MAX_HASH // 2


def lease(number: int, low: int, high: int, *, reached_ms: int | None = None) -> Lease:
    key = LeaseKey(f"shardId-{number}")
    return Lease(key, 1, TRIM_HORIZON, hash_range=HashRange(low, high), reached_ms=reached_ms)


LEFT, RIGHT = (
    lease(1, 0, MIDDLE, reached_ms=UNTIL_MS),
    lease(2, MIDDLE + 1, MAX_HASH, reached_ms=UNTIL_MS + 5),
)
MERGED = replace(lease(3, 0, MAX_HASH), parent_shard_ids=frozenset({LEFT.shard_id, RIGHT.shard_id}))
AFTER_MERGED = replace(lease(4, 0, MAX_HASH), parent_shard_ids=frozenset({MERGED.shard_id}))
PARENT = replace(
    lease(0, 0, MAX_HASH),
    checkpoint=SHARD_END,
    child_shard_ids=frozenset({ShardId("shardId-1"), ShardId("shardId-2")}),
)


@pytest.mark.parametrize(
    ("leases", "missing"),
    [
        ((LEFT, RIGHT), None),
        ((PARENT, LEFT, RIGHT), None),
        ((), "leases that are not created yet"),
        ((LEFT,), "leases that are not created yet"),
        ((PARENT,), "leases that are not created yet"),
        ((LEFT, replace(RIGHT, reached_ms=UNTIL_MS - 1)), "shardId-2"),
        ((replace(LEFT, reached_ms=None), RIGHT), "shardId-1"),
        ((LEFT, RIGHT, MERGED), None),
        ((AFTER_MERGED, LEFT, RIGHT, MERGED), None),
        ((replace(LEFT, reached_ms=1), replace(RIGHT, checkpoint=SHARD_END), MERGED), "shardId-1"),
        ((replace(LEFT, checkpoint=SHARD_END), replace(RIGHT, checkpoint=SHARD_END), MERGED), "shardId-3"),
    ],
)
def test_a_run_is_over_when_all_shards_are_there_and_none_is_unknown(
    leases: Sequence[Lease], missing: str | None
) -> None:
    assert not_there(leases, UNTIL_MS, only=frozenset()) == missing


def test_a_run_of_some_shards_needs_only_them_and_the_children_that_were_named() -> None:
    only = frozenset({"shardId-0", "shardId-1"})
    assert not_there((LEFT,), UNTIL_MS, only=only) is None
    assert not_there((replace(PARENT, child_shard_ids=frozenset()),), UNTIL_MS, only=only) is None
    named = replace(PARENT, child_shard_ids=frozenset({ShardId("shardId-1")}))
    assert not_there((named,), UNTIL_MS, only=only) == "shardId-1"
    assert not_there((named, LEFT), UNTIL_MS, only=only) is None


def test_children_of_a_shard_that_reached_the_bound_need_no_lease() -> None:
    """Its worker died when it had named the shards that follow; who reads it next stops at the bound, before its end."""
    reader = replace(LEFT, hash_range=NO_HASH_KEYS, child_shard_ids=frozenset({ShardId("shardId-2")}))
    assert not_there((reader,), UNTIL_MS, only=frozenset()) is None
    finished = replace(reader, checkpoint=SHARD_END, reached_ms=None)
    assert not_there((finished,), UNTIL_MS, only=frozenset()) == "shardId-2"


def test_the_earliest_start_of_the_workers_that_live_is_the_tip() -> None:
    def row(updated_s: int, until_ms: int | None) -> WorkerRow:
        return WorkerRow(WorkerId("w"), updated_s, run_until_ms=until_ms)

    def agreed(*rows: WorkerRow) -> int:
        return agreed_bound_ms(9_000, rows, now_s=100.0, active_s=60.0)

    assert agreed() == 9_000
    assert agreed(row(100, None)) == 9_000
    assert agreed(row(90, 7_000), row(95, 8_000)) == 7_000
    assert agreed(row(39, 7_000), row(95, 8_000)) == 8_000, "the first one has been silent for too long"


class Stage:
    def __init__(self) -> None:
        self.clock = LoopClock()
        context = worker_context(clock=self.clock)
        self.model = KinesisModel(lambda: self.clock.wall_ms() / 1000)
        kinesis = MemoryKinesis(self.model)
        self.held = dict[LeaseKey, HeldLease]()
        ref = StreamRef("words")
        watch = StreamMonitor(kinesis=kinesis, stream=ref, clock=self.clock, log=context.log)
        self.leases = MemoryTable("leases", "leaseKey")
        self.workers = MemoryTable("workers", "wid")
        check_images = ChangesSettings().check_images
        one = TrackedStream(ref, InitialPosition(), watch)
        self.many = MultiStreamTracker(
            StreamsSettings(names=(ListedStream("words"), ListedStream("gone"))),
            position=InitialPosition(),
            leases=lambda: leases_of(self.leases),
            kinesis=kinesis,
            clock=self.clock,
            log=context.log,
            check_images=check_images,
        )

        def run_end(streams: SingleStreamTracker | MultiStreamTracker) -> RunEnd:
            return RunEnd(
                context,
                until_ms=None,
                clock=self.clock,
                leases=self.leases,
                workers=self.workers,
                streams=streams,
                held=lambda: self.held,
            )

        self.run_end = run_end(
            SingleStreamTracker(one, kinesis=kinesis, log=context.log, check_images=check_images)
        )
        self.run_end_of_many = run_end(self.many)

    async def open(self) -> None:
        await self.leases.ensure()
        await self.workers.ensure()

    async def add_worker(self, until_ms: int) -> None:
        now_s = self.clock.wall_ms() // 1000
        await self.workers.update(report(WorkerId("other"), now_s=now_s, run_until_ms=until_ms))

    def hold(self, one: Lease) -> LeaseProgress:
        progress = LeaseProgress(self.clock.monotonic)
        self.held[one.lease_key] = HeldLease(one, 0.0, Throughput(1.0, now_s=0.0), progress)
        return progress

    async def add(self, one: Lease, until_ms: int) -> None:
        row = new_lease_row(one)
        await self.leases.put({**row, "daemonReached": f"{until_ms} TRIM_HORIZON"})


def test_a_worker_joins_a_run_that_goes_on_but_none_that_is_over() -> None:
    async def play() -> None:
        stage = Stage()
        await stage.open()
        before_ms = stage.clock.wall_ms() - 5_000
        await stage.add_worker(before_ms)
        await stage.run_end.begin()
        await stage.run_end.settle()
        assert stage.run_end.until_ms == before_ms
        await stage.add(LEFT, before_ms)
        await stage.add(RIGHT, before_ms)
        await stage.run_end.begin()
        await stage.run_end.settle()
        assert stage.run_end.until_ms == stage.clock.wall_ms()

    run_virtual(play)


def test_a_run_ends_once_its_last_lease_is_marked() -> None:
    async def play() -> None:
        stage = Stage()
        await stage.open()
        await stage.run_end.begin()
        until_ms = stage.run_end.until_ms
        assert until_ms is not None
        await stage.add(LEFT, until_ms)
        await stage.add(RIGHT, until_ms - 1)
        ended = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.run_end.run, ended.set)
            await stage.clock.sleep(60)
            assert not ended.is_set()
            await stage.add(RIGHT, until_ms)
            await stage.clock.sleep(15)
            assert ended.is_set()
            assert stage.run_end.reached

    run_virtual(play)


@pytest.mark.parametrize("waits_for", [WaitReason.KINESIS, WaitReason.PARENT])
def test_a_run_of_many_streams_ends_although_one_of_them_is_deleted(waits_for: WaitReason) -> None:
    """Its leases stay with their workers, whose readers wait for it. Behind a parent nobody asks whether it is there."""

    async def play() -> None:
        stage = Stage()
        stage.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        stage.model.handle("CreateStream", {"StreamName": "gone", "ShardCount": 1})
        await stage.open()
        await stage.clock.sleep(30)
        await stage.many.prepare()
        run_end, (words, gone) = stage.run_end_of_many, (each.ref.identity for each in stage.many.current)
        assert words is not None
        assert gone is not None
        await run_end.begin()
        until_ms = run_end.until_ms
        assert until_ms is not None
        whole = lease(0, 0, MAX_HASH)
        await stage.add(replace(whole, lease_key=LeaseKey(f"{words}:shardId-0"), stream=words), until_ms)
        unread = replace(whole, lease_key=LeaseKey(f"{gone}:shardId-0"), stream=gone)
        await stage.leases.put(new_lease_row(unread))
        stage.hold(unread).waits(waits_for)
        ended, has_ended = anyio.Event(), False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_end.run, ended.set)
            await stage.clock.sleep(120)
            assert not ended.is_set(), "what is there is to be read"
            stage.model.handle("DeleteStream", {"StreamName": "gone"})
            await stage.clock.sleep(30)
            if waits_for is WaitReason.KINESIS:
                await stage.many.known(gone).watch.poll()  # as its reader does
            await stage.clock.sleep(120)
            has_ended = ended.is_set()
            tasks.cancel_scope.cancel()
        assert has_ended

    run_virtual(play)
