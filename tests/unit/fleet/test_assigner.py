"""The leader at work over real rows, and workers that find what it gave them."""

from __future__ import annotations

from itertools import cycle

import anyio

from kcl_daemon.assignment.load import BalanceOptions
from kcl_daemon.assignment.utilization import by_utilization
from kcl_daemon.fleet.assigner import AssignmentStrategies
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, RowUpdate
from kcl_protocol.sequence import SHARD_END
from tests.simulator.loop import run_virtual
from tests.unit.fleet.assigner_stage import GONE, ME, OTHER, Stage, play
from tests.unit.troubled import Trouble, TroubledTable

UTILIZATION = AssignmentStrategies(
    place=by_utilization(BalanceOptions(balance_this_run=False)), balance=by_utilization(BalanceOptions())
)


def test_a_fresh_application_gets_its_leases_and_its_first_worker_holds_them_at_once() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert set((await stage.owners()).values()) == {"me"}
        assert sorted(stage.renewer.held) == sorted(stage.found)
        assert len(stage.found) == 4

    play(scene)


def test_a_bootstrap_that_was_cut_off_is_completed_by_the_next_leader() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert len(await stage.owners()) == 4

    play(scene, before=lambda stage: stage.has_lease(2, None))


def test_a_dead_workers_leases_are_taken_after_the_failover_time_and_not_before() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, GONE)
        await stage.has_worker(GONE)  # its row is still fresh

    async def scene(stage: Stage) -> None:
        await anyio.sleep(9.9)
        assert stage.found == []
        await anyio.sleep(5.0)
        assert len(stage.found) == 4
        assert set((await stage.owners()).values()) == {"me"}

    play(scene, before=before)


def test_a_new_worker_is_handed_half_of_the_leases_by_their_owner() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(5.0)
        await stage.has_worker(OTHER)
        await anyio.sleep(15.0 + 4.5)  # a leader alone looks rarely; its own renewals tell it of the hand-off
        handed = [held for held in stage.renewer.held.values() if held.next_owner == OTHER]
        assert len(handed) == 2
        for held in handed:
            await stage.renewer.release_lease(held)
        await anyio.sleep(5.0)
        assert sorted(str(owner) for owner in (await stage.owners()).values()) == [
            "me",
            "me",
            "other",
            "other",
        ]

    play(scene)


def test_a_handoff_that_never_ends_is_cut_short() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(5.0)
        await stage.has_worker(OTHER)
        for _ in range(6):
            await anyio.sleep(10.0)
            await stage.has_worker(OTHER)  # it lives, but we never pass anything on
        rows = await TroubledTable.scan(stage.leases)
        assert not any("checkpointOwner" in row for row in rows)

    stage = play(scene)
    assert any("took too long" in str(fields) for _, _, fields in stage.log.lines)


def test_a_next_owner_that_stands_by_is_asked_to_start_its_children_and_has_more_time() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(5.0)
        for _ in range(7):
            await stage.has_worker(OTHER, stands_by=True)
            await anyio.sleep(10.0)
        rows = await TroubledTable.scan(stage.leases)
        on_the_way = [row for row in rows if "checkpointOwner" in row]
        assert [row["daemonStandby"] for row in on_the_way] == [f"asked {OTHER}"] * 2
        for _ in range(3):
            await stage.has_worker(OTHER, stands_by=True)
            await anyio.sleep(10.0)
        rows = await TroubledTable.scan(stage.leases)
        assert not any({"checkpointOwner", "daemonStandby"} & row.keys() for row in rows)

    play(scene)


def test_a_worker_that_left_is_given_nothing() -> None:
    async def scene(stage: Stage) -> None:
        await stage.reporter.retire()
        await anyio.sleep(5.0)
        assert set((await stage.owners()).values()) == {None}

    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, None)

    async def main() -> None:
        stage = Stage()
        for table in (stage.leases, stage.tables.worker_metrics, stage.tables.coordinator):
            await table.ensure()
        await before(stage)
        async with anyio.create_task_group() as background:
            for loop in (stage.elector, stage.assigner, stage.discovery):
                background.start_soon(loop.run)
            await scene(stage)
            background.cancel_scope.cancel()

    run_virtual(main)


def test_a_malformed_row_is_reported_once_and_left_alone() -> None:
    bad: Row = {"leaseKey": "shardId-bad", "leaseOwner": "me", "checkpoint": "soon"}

    async def scene(stage: Stage) -> None:
        await anyio.sleep(150.0)
        assert await TroubledTable.get(stage.leases, "shardId-bad") == bad
        assert len(stage.found) == 4

    stage = play(scene, before=lambda stage: stage.leases.put(bad))
    # Not twice, though the leader reads it as well as the owner it names.
    assert stage.log.events("error").count("lease_row_malformed") == 1


def test_rows_of_other_kinds_in_the_lease_table_are_no_leases() -> None:
    metrics: Row = {"leaseKey": "w-9", "entityType": "WORKER_METRIC_STATS", "lut": 5}

    async def scene(stage: Stage) -> None:
        await anyio.sleep(5.0)
        assert len(stage.found) == 4

    assert play(scene, before=lambda stage: stage.leases.put(metrics)).log.events("error") == []


def test_a_finished_lease_given_to_us_is_not_consumed() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(30.0)
        assert stage.found.count(LeaseKey("shardId-000000000000")) == 0

    play(scene, before=lambda stage: stage.has_lease(0, ME, checkpoint=str(SHARD_END)))


def test_a_lease_in_handoff_to_us_waits_until_its_old_owner_is_done() -> None:
    async def before(stage: Stage) -> None:
        await stage.has_lease(0, ME, checkpointOwner="other")
        await stage.has_worker(OTHER)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(9.0)
        key = LeaseKey("shardId-000000000000")
        assert key not in stage.found
        row = await TroubledTable.get(stage.leases, key)
        assert row is not None
        await TroubledTable.update(stage.leases, lease_row.assignment(lease_row.lease_from_row(row), ME))
        await anyio.sleep(2.5)
        assert key in stage.found

    play(scene, before=before)


def test_a_restarted_worker_of_the_same_name_resumes_its_leases_at_once() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, ME)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(2.1)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_a_leader_that_was_restarted_hands_off_no_lease_that_it_does_not_hold_yet() -> None:
    async def handed_off(stage: Stage) -> int:
        return sum("checkpointOwner" in row for row in await TroubledTable.scan(stage.leases))

    async def main() -> None:
        stage = Stage()
        for table in (stage.leases, stage.tables.worker_metrics, stage.tables.coordinator):
            await table.ensure()
        for number in range(4):
            await stage.has_lease(number, ME)
        await stage.has_worker(OTHER)
        await stage.reporter.report()
        async with anyio.create_task_group() as background:
            for loop in (stage.renewer, stage.elector, stage.assigner):
                background.start_soon(loop.run)
            await anyio.sleep(5.0)
            assert stage.elector.is_leader
            assert await handed_off(stage) == 0
            background.start_soon(stage.discovery.run)
            await anyio.sleep(5.0)
            assert len(stage.renewer.held) == 4
            assert await handed_off(stage) == 2
            background.cancel_scope.cancel()

    run_virtual(main)


def test_a_lone_worker_gets_back_what_it_was_handing_to_one_that_died_when_it_was_restarted() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, GONE, checkpointOwner=ME)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(30.0)
        assert set((await stage.owners()).values()) == {"me"}
        assert len(stage.renewer.held) == 4

    play(scene, before=before)


def test_handoffs_to_a_dead_worker_that_were_lost_in_an_outage_are_ended() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(70.0)
        for key in stage.renewer.held:
            row = await TroubledTable.get(stage.leases, key)
            assert row is not None
            await TroubledTable.update(stage.leases, lease_row.handoff(lease_row.lease_from_row(row), GONE))
        stage.leases.writes.extend([Trouble.FAILED_BEFORE] * 2000)
        await anyio.sleep(15.0)
        assert not stage.renewer.held
        stage.leases.writes.clear()
        await anyio.sleep(60.0)
        assert len(stage.renewer.held) == 4

    play(scene)


def test_without_the_owner_index_leases_are_found_by_a_scan() -> None:
    async def before(stage: Stage) -> None:
        stage.leases._has_owner_index = False
        for number in range(4):
            await stage.has_lease(number, ME)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(2.1)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_a_leader_whose_runs_keep_failing_lets_another_lead() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        stage.leases.reads.extend([Trouble.THROTTLED] * 30)
        await anyio.sleep(12.0)

    stage = play(scene)
    assert "leadership_released" in stage.log.events("info")


def test_a_leader_gives_leases_away_while_kinesis_does_not_answer() -> None:
    async def before(stage: Stage) -> None:
        stage.kinesis.takes_s, stage.kinesis.fails = 380.0, True
        for number in range(2):  # the others are missing, so that shards are listed
            await stage.has_lease(number, None)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(4.0)
        assert len(stage.found) == 2
        key = await stage.has_lease(2, None)
        await anyio.sleep(16.0)
        assert key in stage.found, "it is found in the leader's later runs as well"
        await anyio.sleep(350.0)
        assert stage.kinesis.lists == 1, "one look at a time"
        assert stage.log.events("warning") == []
        await anyio.sleep(20.0)
        assert stage.log.events("warning") == ["lease_sync_failed"]

    play(scene, before=before)


def test_leases_that_are_created_late_are_given_away_at_once() -> None:
    async def before(stage: Stage) -> None:
        stage.kinesis.takes_s = 20.5

    async def scene(stage: Stage) -> None:
        await anyio.sleep(20.0)
        assert stage.found == []
        await anyio.sleep(1.0)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_leases_are_not_called_complete_before_each_shard_has_one() -> None:
    async def before(stage: Stage) -> None:
        stage.kinesis.takes_s = 20.5
        await stage.has_lease(0, None)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(20.0)
        assert stage.found, "the one that is there is read meanwhile"
        assert stage.assigner.complete is None
        await anyio.sleep(40.0)
        assert len(stage.assigner.complete or ()) == 4

    play(scene, before=before)


def test_who_leads_no_more_ends_its_look_at_the_shards_and_looks_anew_when_it_leads_again() -> None:
    async def before(stage: Stage) -> None:
        stage.kinesis.takes_s = 100.0

    async def scene(stage: Stage) -> None:
        await anyio.sleep(5.0)
        await stage.elector.resign(stand_back=True)
        await anyio.sleep(10.0)
        stage.kinesis.takes_s = 0.0
        await anyio.sleep(25.0)
        assert stage.elector.is_leader
        assert len(stage.found) == 4
        await anyio.sleep(80.0)
        assert stage.kinesis.lists == 2

    play(scene, before=before)


async def gives(stage: Stage, number: int, to: WorkerId) -> None:
    """Somebody gives a lease to a worker, by KCL's assignment."""
    key = f"shardId-{number:012d}"
    await stage.leases.update(RowUpdate(key, put={"leaseOwner": to}, add={"leaseCounter": 1}))


async def renews(stage: Stage, *numbers: int) -> None:
    """The owner of leases does."""
    for number in numbers:
        await stage.leases.update(RowUpdate(f"shardId-{number:012d}", add={"leaseCounter": 1}))
    await stage.has_worker(OTHER)


async def handed_over(stage: Stage) -> int:
    """How many leases of the other worker are being handed to us."""
    rows = await TroubledTable.scan(stage.leases)
    return sum(row.get("checkpointOwner") == OTHER for row in rows)


def test_evening_out_waits_until_a_worker_has_found_what_it_was_given() -> None:
    """A Java worker finds a lease up to 10 s later, and one that is handed over by then never."""

    async def scene(stage: Stage) -> None:
        await anyio.sleep(5.0)
        for number in range(4):
            await gives(stage, number, OTHER)
        for _ in range(4):
            await renews(stage)
            await anyio.sleep(3.0)
            assert await handed_over(stage) == 0
        await renews(stage, 0, 1, 2, 3)
        await anyio.sleep(3.0)
        assert await handed_over(stage) == 2

    play(scene, strategies=UTILIZATION)


def test_where_leases_are_given_all_the_time_it_waits_for_twenty_seconds() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(5.0)
        for number in range(4):
            await gives(stage, number, OTHER)
        began_s = anyio.current_time()
        for to in cycle((GONE, OTHER)):
            await gives(stage, 3, to)
            await renews(stage, 0, 1, 2)
            await anyio.sleep(2.5)  # a little more than from one look to the next
            if await handed_over(stage):
                break
        # A leader that was alone looks once in fifteen seconds.
        assert 20.0 <= anyio.current_time() - began_s <= 15.0 + 20.0 + 5.0

    play(scene, strategies=UTILIZATION)
