"""Looking at an application from outside, over tables in memory: which tables, what is read, and that nothing is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import anyio
import pytest

from kcl_daemon.app import streams_of
from kcl_daemon.cli.application import open_existing
from kcl_daemon.cli.leases.look import LeaseLag, ObservedFleet, lags, observe
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    StreamNotFound,
    TableNotFound,
    Throttled,
)
from kcl_daemon.fleet.streams import StreamTracker
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.leader import LeaderLock, heartbeat, lock_row
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.leases.row import Row, new_lease_row, renewal
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import FetchedRecords, IteratorKind, Kinesis, ReadFrom, StreamRef, StreamSummary, Tables
from kcl_daemon.records.payload import EMPTY
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.updates import apply_update
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.troubled import TroubledTable

T = TypeVar("T")

SETTINGS = Settings("billing", "orders", ChildSettings(("true",)), "w-1")
ONE, GONE = WorkerId("w-1"), WorkerId("w-gone")
FIRST, SECOND = LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001")
LOCK = LeaderLock(ONE, "v-1", 30_000)
# As KCL up to 3.4 writes it: no entityType, and an attribute that nobody knows.
JAVA_ROW: Row = {
    "leaseKey": FIRST,
    "leaseOwner": ONE,
    "leaseCounter": 31,
    "checkpoint": "TRIM_HORIZON",
    "checkpointSubSequenceNumber": 0,
    "ownerSwitchesSinceCheckpoint": 0,
    "startingHashKey": "0",
    "endingHashKey": "1",
    "comesLater": "yes",
}


class Stage:
    """Three tables, of which those exist that a test makes."""

    def __init__(self) -> None:
        self.leases = TroubledTable("billing")
        self.workers = TroubledTable("billing-WorkerMetricStats", "wid")
        self.coordinator = TroubledTable("billing-CoordinatorState", "key")
        self.clock = LoopClock()

    @property
    def now_s(self) -> int:
        return self.clock.wall_ms() // 1000

    async def make_separate(self) -> None:
        for table in (self.leases, self.workers, self.coordinator):
            await table.ensure()
        await self.coordinator.put(lock_row("key", LOCK))

    async def has_worker(self, table: TroubledTable, worker: WorkerId) -> None:
        await table.update(report(worker, now_s=self.now_s))

    def forget_calls(self) -> None:
        for table in (self.leases, self.workers, self.coordinator):
            table.calls.clear()

    async def poll(self, watch_s: float = 0.0) -> ObservedFleet:
        """Look, and make sure that it was reading only."""
        self.forget_calls()
        opened = await open_existing(Tables(self.leases, self.workers, self.coordinator), SETTINGS)
        seen = await observe(opened, SETTINGS, watch_s, clock=self.clock, log=MemoryLog())
        calls = {call for table in (self.leases, self.workers, self.coordinator) for call in table.calls}
        assert calls <= {"get", "scan", "other"}
        return seen


def on_stage(test: Callable[[Stage], Awaitable[T]]) -> T:
    return run_virtual(lambda: test(Stage()))


def test_an_application_without_lease_table_is_an_error_and_none_is_made() -> None:
    async def test(stage: Stage) -> None:
        with pytest.raises(TableNotFound, match="no lease table billing"):
            await stage.poll()
        assert await stage.leases.describe() is None

    on_stage(test)


def test_separate_tables_of_java_workers_are_read() -> None:
    async def test(stage: Stage) -> None:
        await stage.make_separate()
        await stage.leases.put(JAVA_ROW)
        await stage.has_worker(stage.workers, ONE)
        seen = await stage.poll()
        assert seen.origin.layout is TableLayout.SEPARATE
        assert seen.origin.tables == ("billing", "billing-WorkerMetricStats", "billing-CoordinatorState")
        assert [(lease.lease_key, lease.lease_owner) for lease in seen.leases] == [(FIRST, ONE)]
        assert seen.fleet.workers == {ONE}
        assert seen.leader is not None
        assert (seen.leader.worker, seen.leader.lease_s, seen.leading) == (ONE, 30.0, ONE)

    on_stage(test)


def test_a_fleet_of_kcl_2_has_neither_workers_nor_a_lock() -> None:
    async def test(stage: Stage) -> None:
        await stage.leases.ensure()
        await stage.leases.put(JAVA_ROW)
        seen = await stage.poll()
        assert seen.origin.tables == ("billing",)
        assert seen.leader is None
        assert not seen.fleet.workers
        assert await stage.workers.describe() is None
        assert await stage.coordinator.describe() is None

    on_stage(test)


def test_one_table_for_all_is_told_apart_by_kind() -> None:
    async def test(stage: Stage) -> None:
        await stage.leases.ensure()
        await stage.leases.put(new_lease_row(Lease(FIRST, 1, TRIM_HORIZON, lease_owner=ONE)))
        await stage.leases.put(lock_row("leaseKey", LOCK))
        await stage.has_worker(stage.leases, ONE)
        seen = await stage.poll()
        assert seen.origin.layout is TableLayout.SINGLE
        assert seen.origin.tables == ("billing",)
        assert len(seen.leases) == 1
        assert seen.fleet.workers == {ONE}
        assert seen.leader is not None
        assert seen.unreadable == ()

    on_stage(test)


def test_rows_that_are_not_what_they_should_be_are_named_with_table_and_problem() -> None:
    async def test(stage: Stage) -> None:
        await stage.make_separate()
        await stage.leases.put(JAVA_ROW)
        await stage.leases.put({"leaseKey": "odd", "leaseCounter": 1, "ownerSwitchesSinceCheckpoint": 0})
        await stage.workers.put({"wid": "strange", "lut": "yesterday"})
        await stage.coordinator.put({"key": "Leader", "ownerName": 3})
        seen = await stage.poll()
        assert len(seen.leases) == 1
        assert seen.leader is None
        assert [(row.table, row.key) for row in seen.unreadable] == [
            ("billing", "odd"),
            ("billing-WorkerMetricStats", "strange"),
            ("billing-CoordinatorState", "Leader"),
        ]
        assert "checkpoint" in seen.unreadable[0].problem

    on_stage(test)


def test_an_invalid_worker_row_in_the_single_table_is_no_lease_and_is_named() -> None:
    async def test(stage: Stage) -> None:
        await stage.leases.ensure()
        await stage.leases.put(lock_row("leaseKey", LOCK))
        await stage.leases.put({"leaseKey": "w-9", "entityType": "WORKER_METRIC_STATS"})
        seen = await stage.poll()
        assert [row.key for row in seen.unreadable] == ["w-9"]

    on_stage(test)


def test_one_look_never_calls_an_owner_silent() -> None:
    async def test(stage: Stage) -> None:
        await stage.make_separate()
        await stage.leases.put(new_lease_row(Lease(FIRST, 1, TRIM_HORIZON, lease_owner=GONE)))
        seen = await stage.poll()
        assert seen.watched_s == 0
        assert not seen.knows_abandoned
        assert not seen.fleet.abandoned

    on_stage(test)


def test_a_lease_without_an_owner_is_a_shard_that_nobody_reads() -> None:
    async def test(stage: Stage) -> None:
        await stage.make_separate()
        await stage.leases.put(new_lease_row(Lease(FIRST, 1, TRIM_HORIZON)))
        seen = await stage.poll()
        assert seen.covered[FIRST].cause == "no owner"
        assert seen.covered[FIRST].why == "no worker has its lease, and no worker runs"

    on_stage(test)


def test_watching_longer_than_the_fail_over_time_shows_what_stands_still() -> None:
    async def test(stage: Stage) -> None:
        await stage.make_separate()
        gone = Lease(FIRST, 1, TRIM_HORIZON, lease_owner=GONE)
        await stage.leases.put(new_lease_row(gone))
        await stage.leases.put(new_lease_row(Lease(SECOND, 1, TRIM_HORIZON, lease_owner=ONE)))
        await stage.has_worker(stage.workers, GONE)
        await stage.has_worker(stage.workers, ONE)
        seen: list[ObservedFleet] = []

        async def renew() -> None:
            lease, lock = Lease(SECOND, 1, TRIM_HORIZON, lease_owner=ONE), LOCK
            for number in range(8):
                await anyio.sleep(3)
                row = (await TroubledTable.get(stage.leases, SECOND)) or {}
                counted = renewal(lease, None)
                written = apply_update(counted, row, key_attribute="leaseKey").row
                assert written is not None
                counter = written["leaseCounter"]
                assert isinstance(counter, int)
                lease = Lease(SECOND, counter, TRIM_HORIZON, lease_owner=ONE)
                await stage.leases.update(counted)
                beat = heartbeat(lock, f"v-{number + 2}")
                await stage.coordinator.update(beat)
                lock = LeaderLock(ONE, f"v-{number + 2}", 30_000)

        async with anyio.create_task_group() as group:
            group.start_soon(renew)
            opened = await open_existing(Tables(stage.leases, stage.workers, stage.coordinator), SETTINGS)
            seen.append(await observe(opened, SETTINGS, 14.0, clock=stage.clock, log=MemoryLog()))
            group.cancel_scope.cancel()
        assert seen[0].knows_abandoned
        assert seen[0].fleet.abandoned == {FIRST}
        assert seen[0].fleet.workers == {ONE}
        assert seen[0].leader is not None
        assert seen[0].leader.silent_s <= 3

    on_stage(test)


def test_a_lock_that_stands_still_under_our_eyes_is_no_longer_in_force() -> None:
    async def test(stage: Stage) -> None:
        await stage.make_separate()
        seen = await stage.poll(watch_s=31.0)
        assert seen.leader is not None
        assert seen.leading is None

    on_stage(test)


class Answers:
    """The Kinesis port for lags: by shard what GetRecords says."""

    def __init__(self, answers: Mapping[str, int | AwsError | None]) -> None:
        self._answers = answers
        self.asked: dict[str, ReadFrom] = {}
        self.limits: set[int] = set()

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        raise NotImplementedError

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        raise NotImplementedError

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        raise NotImplementedError

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        self.asked[shard_id] = read_from
        return shard_id

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        self.limits.add(limit)
        answer = self._answers[shard_id]
        if isinstance(answer, AwsError):
            raise answer
        return FetchedRecords(EMPTY, None, answer, ())


def streams(kinesis: Kinesis) -> StreamTracker:
    return streams_of(SETTINGS, kinesis, LoopClock(), MemoryLog(), table=TroubledTable())


def lease(key: str, checkpoint: ExtendedSequenceNumber = TRIM_HORIZON) -> Lease:
    return Lease(LeaseKey(key), 1, checkpoint)


def test_the_lag_is_asked_at_the_checkpoint_with_one_record_of_each_unfinished_shard() -> None:
    async def test(stage: Stage) -> None:
        kinesis = Answers({"a": 85, "b": 0})
        asked = [lease("a", ExtendedSequenceNumber("77")), lease("b"), lease("c", SHARD_END)]
        assert await lags(asked, kinesis, streams(kinesis)) == {"a": LeaseLag(85), "b": LeaseLag(0)}
        assert kinesis.limits == {1}
        assert kinesis.asked["a"] == ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number="77")

    on_stage(test)


def test_a_shard_that_does_not_tell_its_lag_is_no_failure_of_the_others() -> None:
    async def test(stage: Stage) -> None:
        answers = {
            "gone": StreamNotFound("x"),
            "slow": Throttled("x"),
            "odd": InvalidRequest("number of another stream"),
            "mute": None,
            "fine": 3,
        }
        leases = [*map(lease, answers), lease("new", LATEST)]
        kinesis = Answers(answers)
        found = await lags(leases, kinesis, streams(kinesis))
        assert {key: lag.unknown_because or lag.millis for key, lag in found.items()} == {
            "gone": "no such shard",
            "slow": "throttled",
            "odd": "number of another stream",
            "mute": "no answer",
            "fine": 3,
            "new": "no checkpoint yet",
        }

    on_stage(test)


def test_not_being_allowed_to_read_the_stream_is_an_error() -> None:
    async def test(stage: Stage) -> None:
        kinesis = Answers({"a": AccessDenied("x"), "b": 1})
        with pytest.raises(AccessDenied):
            await lags([lease("a"), lease("b")], kinesis, streams(kinesis))

    on_stage(test)
