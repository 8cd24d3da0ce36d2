"""How a worker learns of its leases: by news, by asking, and by watching those that are on their way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.context import timings
from kcl_daemon.errors import TableNotFound
from kcl_daemon.fleet.discovery import AssignmentNotifier, Discovery
from kcl_daemon.fleet.lease_renewer import MalformedRowLog
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.leader import LeaderLock
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import NoStandby, lease_renewer, worker_context
from tests.unit.troubled import TroubledTable

ME, OTHER = WorkerId("me"), WorkerId("other")
KEY = LeaseKey("shard-1")


class Stage:
    """Discovery over a lease table, with a bulletin that a scene writes."""

    def __init__(self) -> None:
        clock, log = LoopClock(), MemoryLog()
        self.log = log
        self.table = CountingTable()
        self.found: list[tuple[float, LeaseKey]] = []
        context = worker_context(ME, clock=clock, log=log)
        self.renewer = lease_renewer(context, self.table)
        self.notifier = AssignmentNotifier(
            context,
            on_assigned=lambda: self.discovery.leases_assigned(),  # noqa: PLW0108 - made below
        )
        self.discovery = Discovery(
            context,
            table=self.table,
            renewer=self.renewer,
            malformed=MalformedRowLog(log),
            leading=lambda: False,
            on_found=lambda held: self.found.append((anyio.current_time(), held.key)),
            notifier=self.notifier,
            standby=NoStandby(),
        )

    async def assignment_epoch(self, assignment_epoch: str | None, for_s: float) -> None:
        """The leader's row is read every five seconds and says this."""
        until_s = anyio.current_time() + for_s
        while anyio.current_time() < until_s:
            self.notifier.read(LeaderLock(OTHER, "v", 30_000, assignment_epoch=assignment_epoch))
            await anyio.sleep(5.0)

    async def has_lease(self, *, old_owner: WorkerId | None = None, finished: bool = False) -> Lease:
        checkpoint = SHARD_END if finished else TRIM_HORIZON
        lease = Lease(KEY, 3, checkpoint, lease_owner=ME, checkpoint_owner=old_owner)
        row = lease_row.new_lease_row(lease)
        await self.table.put(row if old_owner is None else {**row, "checkpointOwner": old_owner})
        return lease


class CountingTable(TroubledTable):
    """Counts questions to the index."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = 0
        self.has_no_index = self.hangs = self.index_is_late = False
        self.after_reading: Row | None = None

    async def owned_keys(self, owner: str) -> list[str]:
        self.queries += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.has_no_index:
            raise TableNotFound("no index", operation="Query")
        return [KEY] if self.index_is_late else await super().owned_keys(owner)

    async def get(self, key: str) -> Row | None:
        row, after = await super().get(key), self.after_reading
        if after is not None:
            self.after_reading = None
            await self.put(after)
        return row


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        await stage.table.ensure()
        async with anyio.create_task_group() as background:
            background.start_soon(stage.discovery.run)
            background.start_soon(stage.renewer.run)
            await scene(stage)
            background.cancel_scope.cancel()

    run_virtual(main)


def test_while_nothing_is_given_away_it_asks_once_a_minute() -> None:
    async def scene(stage: Stage) -> None:
        await stage.assignment_epoch("a", 70.0)
        stage.table.queries = 0
        await stage.assignment_epoch("a", 600.0)
        assert 9 <= stage.table.queries <= 11

    play(scene)


def test_news_are_followed_by_a_question_at_once_and_some_more_for_a_late_index() -> None:
    async def scene(stage: Stage) -> None:
        await stage.assignment_epoch("a", 70.0)
        await stage.has_lease()
        at_s = anyio.current_time()
        stage.table.queries = 0
        await stage.assignment_epoch("b", 11.0)
        assert stage.found == [(at_s, KEY)]
        assert 3 <= stage.table.queries <= 5

    play(scene)


def test_a_lease_that_the_index_shows_late_is_found_two_seconds_after_the_notice() -> None:
    async def scene(stage: Stage) -> None:
        await stage.assignment_epoch("a", 70.0)
        at_s = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(stage.assignment_epoch, "b", 5.0)
            await anyio.sleep(0.1)
            await stage.has_lease()
        assert stage.found == [(at_s + 2.0, KEY)]

    play(scene)


def test_where_the_leader_does_not_tell_it_asks_as_often_as_ever() -> None:
    async def scene(stage: Stage) -> None:
        await stage.assignment_epoch("a", 70.0)
        await stage.assignment_epoch(None, 10.0)
        stage.table.queries = 0
        await stage.assignment_epoch(None, 60.0)
        assert stage.table.queries >= 12

    play(scene)


def test_a_worker_that_has_just_started_asks_every_second_whatever_the_row_says() -> None:
    async def scene(stage: Stage) -> None:
        await stage.assignment_epoch("a", 55.0)
        assert stage.table.queries >= 54

    play(scene)


def test_a_lease_that_is_handed_to_us_is_taken_a_fraction_of_a_second_after_it_was_passed_on() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(100.0)
        await stage.has_lease(old_owner=OTHER)
        await stage.assignment_epoch("a", 5.0)
        assert stage.found == []
        row = await TroubledTable.get(stage.table, KEY)
        assert row is not None
        await anyio.sleep(0.1)
        passed_on_s = anyio.current_time()
        await stage.table.update(lease_row.assignment(lease_row.lease_from_row(row), ME))
        await anyio.sleep(2.0)
        ((found_s, key),) = stage.found
        assert key == KEY
        assert found_s - passed_on_s <= 0.6

    play(scene)


def test_a_handoff_to_us_that_is_called_off_is_forgotten() -> None:
    async def scene(stage: Stage) -> None:
        await stage.has_lease(old_owner=OTHER)
        await anyio.sleep(3.0)
        row = await TroubledTable.get(stage.table, KEY)
        assert row is not None
        await stage.table.update(lease_row.assignment(lease_row.lease_from_row(row), OTHER))
        await anyio.sleep(1.0)
        stage.table.calls.clear()
        await anyio.sleep(20.0)
        assert "get" not in stage.table.calls
        assert stage.found == []

    play(scene)


@pytest.mark.parametrize("begins_after_the_read", [False, True])
def test_a_handoff_from_an_earlier_process_of_this_worker_is_ended_at_once(
    begins_after_the_read: bool,
) -> None:
    async def scene(stage: Stage) -> None:
        ours = lease_row.new_lease_row(Lease(KEY, 3, TRIM_HORIZON, lease_owner=ME))
        in_handoff: Row = {**ours, "leaseOwner": OTHER, "checkpointOwner": ME}
        await stage.table.put(ours if begins_after_the_read else in_handoff)
        stage.table.after_reading = in_handoff if begins_after_the_read else None
        stage.table.index_is_late = True
        await anyio.sleep(1.5)
        row = await stage.table.get(KEY)
        assert row is not None
        assert (row["leaseOwner"], row.get("checkpointOwner"), row["leaseCounter"]) == (OTHER, None, 4)
        assert stage.found == []
        assert not stage.renewer.holds(KEY)

    play(scene)


def test_a_handoff_of_what_is_held_is_left_to_its_child() -> None:
    async def scene(stage: Stage) -> None:
        await stage.has_lease()
        await anyio.sleep(1.5)
        held = await stage.table.get(KEY)
        assert held is not None
        await stage.table.put({**held, "leaseOwner": OTHER, "checkpointOwner": ME})
        stage.table.index_is_late = True
        stage.discovery.wake()
        await anyio.sleep(1.5)
        row = await stage.table.get(KEY)
        assert row is not None
        assert row["checkpointOwner"] == ME

    play(scene)


def test_while_the_index_is_missing_the_whole_table_is_scanned_rarely_however_often_it_is_asked_for() -> None:
    async def scene(stage: Stage) -> None:
        stage.table.has_no_index = True
        for _ in range(60):
            stage.discovery.wake()
            await anyio.sleep(1.0)
        assert 11 <= stage.table.calls.count("scan") <= 13
        stage.table.has_no_index = False
        await anyio.sleep(10.0)
        stage.table.calls.clear()
        await stage.assignment_epoch("a", 60.0)
        assert "scan" not in stage.table.calls
        await stage.has_lease()
        stage.discovery.wake()
        await anyio.sleep(0.1)
        assert [key for _, key in stage.found] == [KEY]

    play(scene)


async def _reset_and_given_again(stage: Stage) -> None:
    """A finished lease of ours was set back and given to us, between two looks."""
    stage.table.calls.clear()
    await stage.has_lease(finished=True)
    await anyio.sleep(10.0)
    assert stage.table.calls.count("get") == 1
    row = await TroubledTable.get(stage.table, KEY)
    assert row is not None
    await stage.table.update(lease_row.reposition(lease_row.lease_from_row(row), TRIM_HORIZON))
    row = await TroubledTable.get(stage.table, KEY)
    assert row is not None
    await stage.table.update(lease_row.assignment(lease_row.lease_from_row(row), ME))


def test_a_finished_lease_that_is_to_be_read_anew_is_taken_within_a_minute() -> None:
    async def scene(stage: Stage) -> None:
        await _reset_and_given_again(stage)
        await anyio.sleep(62.0)
        assert [key for _, key in stage.found] == [KEY]

    play(scene)


def test_news_and_what_the_leader_has_read_tell_of_it_at_once() -> None:
    async def assignment_epoch(stage: Stage) -> None:
        await _reset_and_given_again(stage)
        await stage.assignment_epoch("b", 1.0)
        assert [key for _, key in stage.found] == [KEY]

    async def offer(stage: Stage) -> None:
        await _reset_and_given_again(stage)
        row = await TroubledTable.get(stage.table, KEY)
        assert row is not None
        stage.discovery.offer([lease_row.lease_from_row(row)])
        await anyio.sleep(0.1)
        assert [key for _, key in stage.found] == [KEY]

    play(assignment_epoch)
    play(offer)


def test_an_assigned_lease_that_was_never_found_is_released_at_the_end() -> None:
    async def scene(stage: Stage) -> None:
        lease = await stage.has_lease()
        await stage.discovery.give_back()
        row = await stage.table.get(KEY)
        assert row is not None
        assert "leaseOwner" not in row
        assert row["leaseCounter"] == lease.lease_counter + 1

    play(scene)


def test_a_lease_that_is_held_or_handed_off_or_finished_is_not_given_back() -> None:
    async def held(stage: Stage) -> None:
        await stage.has_lease()
        await stage.discovery.poll()
        assert stage.renewer.holds(KEY)

    async def before_send(stage: Stage) -> None:
        await stage.has_lease(old_owner=OTHER)

    async def finished(stage: Stage) -> None:
        await stage.has_lease(finished=True)

    for prepare in (held, before_send, finished):

        async def scene(stage: Stage, prepare: Callable[[Stage], Awaitable[None]] = prepare) -> None:
            await prepare(stage)
            before = await stage.table.get(KEY)
            await stage.discovery.give_back()
            assert await stage.table.get(KEY) == before

        play(scene)


@pytest.mark.parametrize("hangs", [True, False])
def test_an_index_that_does_not_answer_holds_up_no_end(hangs: bool) -> None:
    async def scene(stage: Stage) -> None:
        await stage.has_lease()
        before = await stage.table.get(KEY)
        stage.table.hangs, stage.table.has_no_index = hangs, not hangs
        began_s = anyio.current_time()
        await stage.discovery.give_back()
        assert anyio.current_time() - began_s <= timings(LeaseSettings()).call_s
        assert await stage.table.get(KEY) == before
        assert stage.log.events("warning") == ([] if hangs else ["lease_discovery_failed"])

    play(scene)
