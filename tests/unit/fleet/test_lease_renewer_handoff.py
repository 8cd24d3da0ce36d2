"""Leases that change hands: hand-off, release, claim."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.errors import Unavailable
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import RowUpdate, WriteResult
from tests.unit.fleet.renewer_stage import KEY, ME, OTHER, Stage, at, play
from tests.unit.troubled import Trouble


def test_a_handoff_is_noticed_by_the_next_renewal_and_renewals_go_on() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.handed_to(OTHER)
        await anyio.sleep(4.5)
        assert held.next_owner == OTHER
        assert stage.changes == 1
        await anyio.sleep(20.0)
        assert held.lost is None
        assert stage.changes == 1

    play(scene, running=True)


def test_checkpoints_are_stored_during_a_handoff() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.handed_to(OTHER)
        await stage.renewer.checkpoint(held, at(5))
        assert (await stage.stored()).checkpoint == at(5)
        assert (await stage.stored()).checkpoint_owner == ME

    play(scene)


def test_giving_up_during_a_handoff_passes_the_lease_to_the_next_owner() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.handed_to(OTHER)
        await stage.renewer.release_lease(held)
        lease = await stage.stored()
        assert (lease.lease_owner, lease.checkpoint_owner) == (OTHER, None)
        assert not stage.renewer.holds(KEY)

    play(scene)


def test_giving_up_leaves_the_lease_to_anybody() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.renewer.release_lease(held)
        assert (await stage.stored()).lease_owner is None
        assert not stage.renewer.holds(KEY)
        assert stage.log.events("warning") == []

    play(scene)


def test_a_release_whose_answer_got_lost_is_no_reason_to_worry() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.FAILED_AFTER)
        await stage.renewer.release_lease(held)
        assert (await stage.stored()).lease_owner is None
        assert stage.log.events("warning") == []

    play(scene)


def test_a_release_on_top_of_an_unclear_write_goes_through() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.FAILED_AFTER)
        stage.table.reads.append(Trouble.FAILED_BEFORE)
        with pytest.raises(Unavailable):
            await stage.renewer.checkpoint(held, at(5))
        await stage.renewer.release_lease(held)
        assert (await stage.stored()).lease_owner is None

    play(scene)


def test_a_release_that_fails_leaves_the_lease_to_expire() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.extend([Trouble.THROTTLED] * 2)
        await stage.renewer.release_lease(held)
        assert not stage.renewer.holds(KEY)
        assert stage.log.events("warning") == ["lease_release_failed"]

    play(scene)


def test_claiming_a_lease_proves_by_a_write_that_it_is_ours() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.renewer.drop(held)
        stale = held.lease
        fresh = await stage.renewer.claim(await stage.stored())
        assert fresh is not None
        assert fresh.lease.lease_counter == 8
        assert await stage.renewer.claim(stale) is None

    play(scene)


def test_a_claimed_lease_is_ours_from_before_its_write_however_long_the_answer_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        update = stage.table.update

        async def slowly(write: RowUpdate) -> WriteResult:
            written = await update(write)
            await anyio.sleep(2.0)
            return written

        stage.renewer.drop(held)
        monkeypatch.setattr(stage.table, "update", slowly)
        began_s = anyio.current_time()
        fresh = await stage.renewer.claim(await stage.stored())
        assert fresh is not None
        assert fresh.moved_s == began_s

    play(scene)


# --- announced by ourselves


def test_a_handoff_that_we_announce_is_written_as_the_leader_would_and_the_consumer_goes_on() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        before = await stage.stored()
        await stage.renewer.begin_handoff(held, OTHER)
        assert await stage.stored() == replace(before, lease_owner=OTHER, checkpoint_owner=ME)
        await anyio.sleep(20.0)
        assert stage.changes == 0
        await stage.renewer.checkpoint(held, at(5))
        await stage.renewer.release_lease(held)
        lease = await stage.stored()
        assert (lease.lease_owner, lease.checkpoint_owner, lease.checkpoint) == (OTHER, None, at(5))

    play(scene, running=True)


def test_an_announcement_is_no_sign_of_life_for_our_own_clock_either() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        moved_s = held.moved_s
        await anyio.sleep(3.0)
        await stage.renewer.begin_handoff(held, OTHER)
        assert held.moved_s == moved_s

    play(scene)


@pytest.mark.parametrize("trouble", [Trouble.FAILED_AFTER, Trouble.HANGS_AFTER])
def test_an_announcement_without_an_answer_is_read_back(trouble: Trouble) -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(trouble)
        await stage.renewer.begin_handoff(held, OTHER)
        assert held.next_owner == OTHER
        await stage.renewer.release_lease(held)
        lease = await stage.stored()
        assert (lease.lease_owner, lease.checkpoint_owner) == (OTHER, None)

    play(scene)


def test_an_earlier_write_that_is_still_on_its_way_is_not_forgotten_by_an_announcement() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.LATE)
        with pytest.raises(Unavailable):
            await stage.renewer.checkpoint(held, at(5))
        await stage.renewer.begin_handoff(held, OTHER)
        await stage.table.land()
        await stage.renewer.release_lease(held)
        lease = await stage.stored()
        assert (lease.lease_owner, lease.checkpoint_owner, lease.checkpoint) == (OTHER, None, at(5))

    play(scene)


def test_a_handoff_that_the_leader_began_first_stays_as_it_is() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        third = WorkerId("third")
        await stage.handed_to(third)
        await stage.renewer.begin_handoff(held, OTHER)
        assert held.next_owner == third

    play(scene)


def test_nothing_is_passed_on_to_a_worker_that_has_left() -> None:
    async def third_only(worker_id: WorkerId) -> bool:
        return worker_id == WorkerId("third")

    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.renewer.begin_handoff(held, OTHER)
        stage.renewer.may_receive = third_only
        counter = (await stage.stored()).lease_counter
        await stage.renewer.release_lease(held)
        lease = await stage.stored()
        assert (lease.lease_owner, lease.checkpoint_owner) == (None, None)
        assert lease.lease_counter == counter + 1

    play(scene)


def test_the_old_owner_reads_on_until_the_next_one_is_ready() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.handed_to(OTHER, standby=True)
        await anyio.sleep(25.0)
        assert stage.renewer.awaits_standby(held)
        await stage.table.update(lease_row.ready(await stage.stored()))
        before = stage.changes
        await anyio.sleep(4.5)
        assert not stage.renewer.awaits_standby(held)
        assert stage.changes == before + 1
        await anyio.sleep(20.0)
        assert stage.changes == before + 1
        await stage.renewer.release_lease(held)
        after = await stage.stored()
        assert (after.lease_owner, after.checkpoint_owner, after.standby) == (OTHER, None, None)

    play(scene, running=True)


def test_the_old_owner_reads_on_for_so_long_at_most() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.handed_to(OTHER, standby=True)
        await anyio.sleep(5.0)
        assert stage.renewer.awaits_standby(held)
        before = stage.changes
        await anyio.sleep(40.0)
        assert not stage.renewer.awaits_standby(held)
        assert stage.changes > before

    play(scene, running=True)


def test_a_stopping_owner_can_look_whether_the_next_one_is_ready() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.renewer.begin_handoff(held, OTHER, standby=True)
        assert stage.renewer.awaits_standby(held)
        await stage.renewer.read_standby(held)
        assert stage.changes == 0
        await stage.table.update(lease_row.ready(await stage.stored()))
        await stage.renewer.read_standby(held)
        assert stage.changes == 1
        assert not stage.renewer.awaits_standby(held)
        await stage.renewer.checkpoint(held, at(5))
        assert (await stage.stored()).checkpoint == at(5)

    play(scene)
