"""Holding leases: one writer each, unclear writes read back, expiry on our own clock."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.errors import LeaseLost, Throttled, Unavailable
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.leases.row import RowUpdate, lease_from_row
from kcl_protocol.sequence import TRIM_HORIZON
from tests.unit.fleet.renewer_stage import KEY, ME, OTHER, Stage, at, play
from tests.unit.troubled import Trouble, TroubledTable


def test_a_checkpoint_is_stored_and_moves_the_counter() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.renewer.checkpoint(held, at(5))
        assert (await stage.stored()).checkpoint == at(5)
        assert held.lease == await stage.stored()
        assert held.lease.lease_counter == 8

    play(scene)


def test_a_checkpoint_that_is_stored_already_is_not_written_again() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.renewer.checkpoint(held, at(5))
        stage.table.calls.clear()
        await stage.renewer.checkpoint(held, at(5))
        assert stage.table.calls == []

    play(scene)


@pytest.mark.parametrize("trouble", [Trouble.FAILED_AFTER, Trouble.HANGS_AFTER])
def test_a_checkpoint_whose_answer_got_lost_is_found_in_the_row(trouble: Trouble) -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(trouble)
        await stage.renewer.checkpoint(held, at(5))
        assert held.lost is None
        assert held.lease.checkpoint == at(5)
        assert stage.table.calls == ["update", "get"]

    play(scene)


@pytest.mark.parametrize("trouble", [Trouble.FAILED_BEFORE, Trouble.HANGS_BEFORE, Trouble.LATE])
def test_a_checkpoint_that_did_not_take_effect_is_an_error_and_the_lease_stays(trouble: Trouble) -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(trouble)
        with pytest.raises(Unavailable):
            await stage.renewer.checkpoint(held, at(5))
        assert held.lost is None
        await stage.renewer.checkpoint(held, at(6))
        assert (await stage.stored()).checkpoint == at(6)

    play(scene)


def test_a_late_write_after_a_newer_one_changes_nothing() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.LATE)
        with pytest.raises(Unavailable):
            await stage.renewer.checkpoint(held, at(5))
        await stage.renewer.checkpoint(held, at(6))
        await stage.table.land()
        assert (await stage.stored()).checkpoint == at(6)

    play(scene)


def test_a_late_write_that_lands_first_is_recognised_and_the_checkpoint_never_goes_back() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.LATE)
        with pytest.raises(Unavailable):
            await stage.renewer.checkpoint(held, at(9))
        await stage.table.land()  # counter 8, checkpoint 9; we still believe counter 7
        await stage.renewer.checkpoint(held, at(6))  # a child that began again from the old checkpoint
        assert held.lost is None
        assert (await stage.stored()).checkpoint == at(9)
        await stage.renewer.checkpoint(held, at(12))
        assert (await stage.stored()).checkpoint == at(12)

    play(scene)


def test_a_write_whose_outcome_cannot_even_be_read_is_cleared_up_by_the_next() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.FAILED_AFTER)
        stage.table.reads.append(Trouble.FAILED_BEFORE)
        with pytest.raises(Unavailable):
            await stage.renewer.checkpoint(held, at(5))
        await stage.renewer.checkpoint(held, at(6))
        assert held.lost is None
        assert (await stage.stored()).checkpoint == at(6)

    play(scene)


def test_a_cancelled_write_is_remembered_as_unclear() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.HANGS_AFTER)
        with anyio.move_on_after(0.5):
            await stage.renewer.checkpoint(held, at(5))
        assert held.uncertain_since_s is not None
        await stage.renewer.checkpoint(held, at(6))
        assert held.lost is None
        assert (await stage.stored()).checkpoint == at(6)

    play(scene)


def test_a_throttled_checkpoint_leaves_no_doubt() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.THROTTLED)
        with pytest.raises(Throttled):
            await stage.renewer.checkpoint(held, at(5))
        assert held.uncertain_since_s is None
        assert (await stage.stored()).checkpoint == TRIM_HORIZON

    play(scene)


def test_a_lease_that_another_was_given_cannot_write_a_checkpoint() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.taken_by(OTHER)
        with pytest.raises(LeaseLost, match="other owns it"):
            await stage.renewer.checkpoint(held, at(5))
        assert (await stage.stored()).checkpoint == TRIM_HORIZON
        assert stage.changes == 1
        assert not stage.renewer.holds(KEY)
        with pytest.raises(LeaseLost):
            await stage.renewer.checkpoint(held, at(6))

    play(scene)


def test_another_process_with_our_worker_id_is_not_mistaken_for_a_lost_answer() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.table.update(lease_row.renewal(await stage.stored(), None))
        with pytest.raises(LeaseLost, match="this worker's id"):
            await stage.renewer.checkpoint(held, at(5))

    play(scene)


def test_a_lease_that_cannot_be_renewed_is_not_ours_after_the_failover_time() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.extend([Trouble.HANGS_BEFORE] * 100)
        stage.table.reads.extend([Trouble.HANGS_BEFORE] * 100)
        await anyio.sleep(9.9)
        assert stage.changes == 0
        await anyio.sleep(1.2)
        assert "could not be renewed" in (held.lost or "")
        assert stage.changes == 1

    play(scene, running=True)


def test_an_expired_lease_writes_nothing_even_before_the_loop_notices() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await anyio.sleep(10.1)
        with pytest.raises(LeaseLost):
            await stage.renewer.checkpoint(held, at(5))
        assert stage.table.calls == []

    play(scene)


def test_leases_are_renewed_in_time_and_only_when_due() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await anyio.sleep(3600)
        assert held.lost is None
        renewals = stage.table.calls.count("update")
        assert 3600 / 4.05 < renewals <= 3600 / 4

    play(scene, running=True)


def test_a_lease_whose_checkpoints_move_the_counter_is_not_renewed_as_well() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        for number in range(100):
            await stage.renewer.checkpoint(held, at(number))
            await anyio.sleep(1.0)
        assert stage.table.calls.count("update") == 100

    play(scene, running=True)


def test_renewals_survive_any_single_trouble() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        for trouble in (
            Trouble.THROTTLED,
            Trouble.FAILED_BEFORE,
            Trouble.FAILED_AFTER,
            Trouble.HANGS_AFTER,
            Trouble.LATE,
        ):
            stage.table.writes.append(trouble)
            await anyio.sleep(9.0)
            await stage.table.land()
            await anyio.sleep(4.0)
            assert held.lost is None

    play(scene, running=True)


def test_one_hanging_lease_does_not_keep_another_from_being_renewed() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        second = LeaseKey("shardId-2")
        await stage.table.put(*lease_row.creation(Lease(second, 1, TRIM_HORIZON, lease_owner=ME)))
        row = await MemoryGet.get(stage.table, second)
        healthy = stage.renewer.adopt(row, moved_s=anyio.current_time())
        real_update = stage.table.update

        async def update(update: RowUpdate) -> object:
            if update.key == KEY:
                await anyio.sleep_forever()
            return await real_update(update)

        stage.table.update = update  # type: ignore[method-assign, assignment]
        await anyio.sleep(60)
        assert held.lost is not None
        assert healthy.lost is None

    play(scene, running=True)


class MemoryGet:
    """Reads a lease past the script of troubles."""

    @staticmethod
    async def get(table: TroubledTable, key: LeaseKey) -> Lease:
        row = await TroubledTable.get(table, key)
        assert row is not None
        return lease_from_row(row)


def test_a_renewal_found_late_does_not_lengthen_our_time_beyond_what_others_grant_us() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.FAILED_AFTER)  # takes effect at 0 s, unknown to us
        stage.table.reads.append(Trouble.FAILED_BEFORE)
        with pytest.raises(Unavailable):
            await stage.renewer.checkpoint(held, at(5))
        await anyio.sleep(6.0)
        stage.table.writes.append(Trouble.FAILED_BEFORE)
        await stage.renewer.checkpoint(held, at(5))  # the row shows that it is stored, since 0 s
        assert held.moved_s == 0.0

    play(scene)


def test_a_row_made_unreadable_costs_the_lease_and_nothing_else() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.table.update(RowUpdate(KEY, put={"parentShardId": "not a set"}))
        await anyio.sleep(5.0)
        assert "parentShardId" in (held.lost or "")

    play(scene, running=True)
