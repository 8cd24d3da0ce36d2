"""Leases that change hands: hand-off, release, claim."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.coordination.keeper import HeldLease
from kcl_daemon.errors import Unavailable
from tests.unit.coordination.keeper_stage import KEY, ME, OTHER, Stage, at, play
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
        await stage.keeper.checkpoint(held, at(5))
        assert (await stage.stored()).checkpoint == at(5)
        assert (await stage.stored()).checkpoint_owner == ME

    play(scene)


def test_giving_up_during_a_handoff_passes_the_lease_to_the_next_owner() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.handed_to(OTHER)
        await stage.keeper.give_up(held)
        lease = await stage.stored()
        assert (lease.lease_owner, lease.checkpoint_owner) == (OTHER, None)
        assert not stage.keeper.holds(KEY)

    play(scene)


def test_giving_up_leaves_the_lease_to_anybody() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.keeper.give_up(held)
        assert (await stage.stored()).lease_owner is None
        assert not stage.keeper.holds(KEY)
        assert stage.log.events("warning") == []

    play(scene)


def test_a_release_whose_answer_got_lost_is_no_reason_to_worry() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.FAILED_AFTER)
        await stage.keeper.give_up(held)
        assert (await stage.stored()).lease_owner is None
        assert stage.log.events("warning") == []

    play(scene)


def test_a_release_on_top_of_an_unclear_write_goes_through() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.append(Trouble.FAILED_AFTER)
        stage.table.reads.append(Trouble.FAILED_BEFORE)
        with pytest.raises(Unavailable):
            await stage.keeper.checkpoint(held, at(5))
        await stage.keeper.give_up(held)
        assert (await stage.stored()).lease_owner is None

    play(scene)


def test_a_release_that_fails_leaves_the_lease_to_expire() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.extend([Trouble.THROTTLED] * 2)
        await stage.keeper.give_up(held)
        assert not stage.keeper.holds(KEY)
        assert stage.log.events("warning") == ["lease_release_failed"]

    play(scene)


def test_claiming_a_lease_proves_by_a_write_that_it_is_ours() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.keeper.drop(held)
        stale = held.lease
        fresh = await stage.keeper.claim(await stage.stored())
        assert fresh is not None
        assert fresh.lease.lease_counter == 8
        assert await stage.keeper.claim(stale) is None

    play(scene)
