"""How a worker learns of pauses and limits, and how they are written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest
from msgspec.structs import replace

from kcl_daemon.errors import AccessDenied, AwsError, TableNotFound, Unavailable
from kcl_daemon.fleet.hold_watch import (
    FRESH_S,
    HoldsNotWritten,
    HoldWatch,
    change_holds,
    tell_holds,
    with_holds,
)
from kcl_daemon.leases.holds import HOLDS_KEY, Hold, LimitUnit
from kcl_daemon.leases.leader import LEADER_KEY, LeaderLock, lock_from_row, lock_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import MemoryLog
from tests.unit.fleet.contexts import worker_context

NOW_MS = 1_770_000_000_000
PAUSE = Hold(by="ann@host", reason="the sink is down", since_ms=NOW_MS)
LIMIT = Hold("bob@host", "slow", NOW_MS, unit=LimitUnit.RECORDS, amount=90.0)
LEASES = [Lease(LeaseKey(f"shardId-{number}"), 1, TRIM_HORIZON) for number in range(3)]


class Coordinator(MemoryTable):
    """Counts reads of the row; the next ones may fail, and somebody may write right after a read."""

    def __init__(self) -> None:
        super().__init__("app-CoordinatorState", "key")
        self.reads = 0
        self.error: AwsError | None = None
        self.meanwhile: Hold | None = None

    async def get(self, key: str) -> Row | None:
        row = await super().get(key)
        if key != HOLDS_KEY:
            return row
        self.reads += 1
        if self.error is not None:
            raise self.error
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await self.put_hold(meanwhile)
        return row

    async def put_hold(self, *holds: Hold) -> None:
        await change_holds(self, lambda before: with_holds(before, holds))


class Watched:
    def __init__(self) -> None:
        self.table = Coordinator()
        self.log = MemoryLog()
        self.leads = False
        self.leases: Sequence[Lease] = []
        self.watch = HoldWatch(
            worker_context(log=self.log),
            table=self.table,
            leads=lambda: self.leads,
            leases=lambda: self.leases,
        )


def watch(scene: Callable[[Watched], Awaitable[None]]) -> Watched:
    """Play a scene beside the loop of a worker."""

    async def play() -> Watched:
        stage = Watched()
        await stage.table.ensure()
        await stage.watch.begin()
        async with anyio.create_task_group() as background:
            background.start_soon(stage.watch.run)
            await scene(stage)
            background.cancel_scope.cancel()
        return stage

    return run_virtual(play)


def test_an_idle_worker_hardly_ever_reads_the_row() -> None:
    async def scene(stage: Watched) -> None:
        await anyio.sleep(3_600)

    assert watch(scene).table.reads <= 5


def test_a_worker_that_gives_records_reads_every_three_seconds_and_knows_what_is_held() -> None:
    async def scene(stage: Watched) -> None:
        for second in range(60):
            if second == 30:
                await stage.table.put_hold(PAUSE)
            if not stage.watch.may_give():
                await stage.watch.until_changed()
            assert second < 35 or stage.watch.of(LEASES[0]).pause == PAUSE
            await anyio.sleep(1.0)

    assert watch(scene).table.reads <= 22


def test_before_records_are_given_after_a_while_the_row_is_read() -> None:
    async def scene(stage: Watched) -> None:
        await anyio.sleep(100.0)
        await stage.table.put_hold(PAUSE)
        assert not stage.watch.may_give()
        with anyio.fail_after(1.0):
            await stage.watch.until_changed()
        assert stage.watch.may_give()
        assert stage.watch.of(LEASES[0]).pause == PAUSE

    assert watch(scene).log.events("info") == ["hold_begun"]


def test_the_lock_row_tells_an_idle_worker() -> None:
    async def scene(stage: Watched) -> None:
        lock = LeaderLock(WorkerId("w-1"), "version", 1000)
        await stage.table.put(lock_row("key", lock))
        stage.watch.noticed((lock.owner, lock.holds))
        await anyio.sleep(10.0)
        await tell_holds(stage.table, lambda _before: [PAUSE], token="token")
        seen = lock_from_row(await stage.table.get(LEADER_KEY))
        assert seen is not None
        assert (seen.version, seen.holds) == ("version", "token")
        stage.watch.noticed((seen.owner, seen.holds))
        await anyio.sleep(3.1)
        assert stage.watch.holds == (PAUSE,)

    watch(scene)


def test_while_something_is_held_its_end_is_seen_within_seconds() -> None:
    async def scene(stage: Watched) -> None:
        await stage.table.put_hold(
            replace(PAUSE, until_ms=NOW_MS + 20_000), replace(LIMIT, lease_key="shardId-0")
        )
        await anyio.sleep(FRESH_S + 0.1)
        assert not stage.watch.may_give()
        await stage.watch.until_changed()
        await anyio.sleep(30.0)
        assert not any(hold.is_pause for hold in stage.watch.holds)
        await change_holds(stage.table, lambda _before: ())
        await anyio.sleep(3.1)
        assert stage.watch.holds == ()

    assert sorted(watch(scene).log.events("info")) == ["hold_begun", "hold_begun", "hold_ended", "hold_ended"]


def test_a_pause_stays_in_force_while_its_row_cannot_be_read() -> None:
    async def scene(stage: Watched) -> None:
        await stage.table.put_hold(PAUSE)
        stage.watch.noticed("another")
        await anyio.sleep(4.0)
        stage.table.error = Unavailable("no answer")
        await anyio.sleep(60.0)
        assert stage.watch.of(LEASES[0]).pause == PAUSE
        assert stage.watch.may_give()  # records of other shards are not kept waiting
        stage.table.error = None
        await anyio.sleep(4.0)

    assert watch(scene).log.events() == ["hold_begun", "holds_unreadable", "holds_readable_again"]


def test_one_read_without_an_answer_is_no_warning() -> None:
    async def scene(stage: Watched) -> None:
        stage.table.error = Unavailable("no answer within 3 s")
        stage.watch.noticed("another")
        reads = stage.table.reads
        await anyio.sleep(4.0)
        assert stage.table.reads == reads + 1
        stage.table.error = None
        await anyio.sleep(60.0)
        assert stage.table.reads > reads + 1

    assert watch(scene).log.events() == []


@pytest.mark.parametrize("error", [AccessDenied("no permission"), TableNotFound("no such table")])
def test_a_worker_without_permission_starts_and_says_so(error: AwsError) -> None:
    async def begin() -> Watched:
        stage = Watched()
        await stage.table.ensure()
        stage.table.error = error
        await stage.watch.begin()
        return stage

    told = [] if isinstance(error, TableNotFound) else ["holds_unreadable"]
    assert run_virtual(begin).log.events("warning") == told


def test_a_worker_does_not_start_while_it_cannot_know() -> None:
    async def begin() -> None:
        stage = Watched()
        await stage.table.ensure()
        stage.table.error = Unavailable("no answer")
        with pytest.raises(Unavailable):
            await stage.watch.begin()

    run_virtual(begin)


def test_a_row_of_a_later_version_stops_nothing() -> None:
    async def scene(stage: Watched) -> None:
        await stage.table.put(
            {"key": HOLDS_KEY, "entityType": "STREAM", "streamId": '{"version":2,"holds":[]}'}
        )
        stage.watch.noticed("another")
        await anyio.sleep(10.0)
        with pytest.raises(HoldsNotWritten, match="version 2"):
            await stage.table.put_hold(PAUSE)

    assert watch(scene).log.events() == ["holds_unreadable"]


@pytest.mark.parametrize(
    "text",
    [
        '{"version":1,"holds":[{"by":"a","reason":"r","sinceMs":1,"untilMs":100000000000000000}]}',
        '{"version":1,"holds":[],"more":' + "[" * 100_000,
    ],
)
def test_a_row_that_others_have_spoiled_ends_no_worker_and_is_not_a_matter_of_permissions(text: str) -> None:
    async def scene(stage: Watched) -> None:
        await stage.table.put({"key": HOLDS_KEY, "entityType": "STREAM", "streamId": text})
        stage.watch.noticed("another")
        await anyio.sleep(10.0)
        assert stage.watch.may_give()

    lines = watch(scene).log.lines
    (told,) = [fields for _, event, fields in lines if event == "holds_unreadable"]
    assert "delete that row" in str(told["advice"])
    assert "grant" not in str(told["advice"])


def test_two_operators_at_once_lose_nothing() -> None:
    async def play() -> None:
        table = Coordinator()
        await table.ensure()
        table.meanwhile = replace(PAUSE, lease_key="shardId-1")
        await table.put_hold(PAUSE)
        _, after = await change_holds(table, lambda before: before)
        assert {hold.lease_key for hold in after} == {None, "shardId-1"}

    run_virtual(play)


def test_the_leader_counts_the_shards_of_a_limit() -> None:
    async def scene(stage: Watched) -> None:
        stage.leads, stage.leases = True, LEASES
        await stage.table.put_hold(LIMIT)
        stage.watch.noticed("another")
        await anyio.sleep(4.0)
        assert [hold.share for hold in stage.watch.holds] == [30.0]
        stage.leases = LEASES[:1]
        await anyio.sleep(4.0)
        assert [hold.share for hold in stage.watch.holds] == [90.0]

    assert watch(scene).log.events() == ["hold_begun"]


def test_the_leader_tells_of_a_pause_without_an_end_once_a_day() -> None:
    async def scene(stage: Watched) -> None:
        stage.leads = True
        await stage.table.put_hold(PAUSE, replace(PAUSE, lease_key="shardId-0", until_ms=NOW_MS + 10**12))
        stage.watch.noticed("another")
        await anyio.sleep(3.5 * 86_400)

    told = [fields for _, event, fields in watch(scene).log.lines if event == "pause_without_end"]
    assert [(each["days"], "kcl-daemon resume" in str(each["advice"])) for each in told] == [
        (1, True),
        (2, True),
        (3, True),
    ]
