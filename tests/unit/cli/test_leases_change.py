"""What the hand does to leases, over a table in memory with workers that write meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.leases.change import (
    ChangeResult,
    all_leases,
    carry_out,
    carry_out_all,
    chosen_leases,
    move_past,
    release_all,
    release_lease,
)
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, checkpoint, lease_from_row, new_lease_row, renewal
from kcl_daemon.shards.sync import LeaseChange, ResetKind
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.at_point import killed_at

KEY = LeaseKey("shardId-000000000000")
OWNER = WorkerId("w-1")
LEASE = Lease(KEY, 7, ExtendedSequenceNumber("49", 3), lease_owner=OWNER, owner_switches_since_checkpoint=2)
BACK = LeaseChange(ResetKind.RESET, LEASE, TRIM_HORIZON, "")


class Busy(MemoryTable):
    """A table whose lease is renewed by its owner right after each of the next reads."""

    renewals = 0

    async def get(self, key: str) -> Row | None:
        row = await super().get(key)
        if row is not None and self.renewals:
            self.renewals -= 1
            await self.update(renewal(lease_from_row(row), None))
        return row


def on_table(test: Callable[[Busy], Awaitable[None]]) -> None:
    async def run() -> None:
        table = Busy("billing", "leaseKey")
        await table.ensure()
        await table.put(new_lease_row(LEASE))
        await test(table)

    run_virtual(run)


async def stored(table: MemoryTable) -> Lease:
    row = await MemoryTable.get(table, KEY)
    assert row is not None
    return lease_from_row(row)


def test_a_reset_takes_the_lease_from_its_owner_who_cannot_write_any_more() -> None:
    async def scene(table: Busy) -> None:
        assert await carry_out(table, BACK) is ChangeResult.WRITTEN
        now = await stored(table)
        assert now == replace(
            LEASE,
            lease_counter=8,
            checkpoint=TRIM_HORIZON,
            lease_owner=None,
            owner_switches_since_checkpoint=0,
        )
        for late in (renewal(LEASE, None), checkpoint(LEASE, ExtendedSequenceNumber("50"))):
            assert not (await table.update(late)).applied

    on_table(scene)


def test_a_renewal_in_between_is_met_by_another_try() -> None:
    async def scene(table: Busy) -> None:
        table.renewals = 3
        assert await carry_out(table, BACK) is ChangeResult.WRITTEN
        assert (await stored(table)).lease_counter == 7 + 3 + 1

    on_table(scene)


def test_a_lease_that_never_holds_still_is_given_up_and_reported() -> None:
    async def scene(table: Busy) -> None:
        table.renewals = 1_000
        with pytest.raises(NotChanged, match="kept changing"):
            await carry_out(table, BACK)
        assert (await stored(table)).checkpoint == LEASE.checkpoint
        with pytest.raises(NotChanged, match="kept changing"):
            await release_lease(table, KEY)

    on_table(scene)


def test_a_lease_that_is_gone_or_there_already_is_reported_and_left_alone() -> None:
    async def scene(table: Busy) -> None:
        create = LeaseChange(ResetKind.CREATE, replace(LEASE, lease_owner=None), TRIM_HORIZON, "")
        assert await carry_out(table, create) is ChangeResult.THERE
        delete = LeaseChange(ResetKind.DELETE, LEASE, None, "")
        assert await carry_out(table, delete) is ChangeResult.WRITTEN
        assert await carry_out(table, delete) is ChangeResult.GONE
        assert await carry_out(table, BACK) is ChangeResult.GONE
        assert await carry_out(table, create) is ChangeResult.WRITTEN
        with pytest.raises(NotChanged, match="no longer exists"):
            await release_lease(table, LeaseKey("shardId-9"))

    on_table(scene)


def test_a_released_lease_has_no_owner_and_keeps_its_checkpoint() -> None:
    async def scene(table: Busy) -> None:
        assert await release_lease(table, KEY)
        assert not await release_lease(table, KEY)
        now = await stored(table)
        assert (now.lease_owner, now.checkpoint, now.lease_counter) == (None, LEASE.checkpoint, 8)

    on_table(scene)


def test_a_checkpoint_is_moved_ahead_only_from_where_it_was_seen() -> None:
    past = ExtendedSequenceNumber("49", 4)

    async def scene(table: Busy) -> None:
        table.renewals = 2
        assert await move_past(table, LEASE, past) is ChangeResult.WRITTEN
        now = await stored(table)
        assert (now.lease_owner, now.checkpoint) == (None, past)
        with pytest.raises(NotChanged, match="has just moved to 49/4"):
            await move_past(table, LEASE, past)
        await table.delete(KEY)
        assert await move_past(table, LEASE, past) is ChangeResult.GONE

    on_table(scene)


def test_rows_that_are_no_leases_are_left_alone() -> None:
    async def scene(table: Busy) -> None:
        await table.put({"leaseKey": "odd", "leaseCounter": "many"})
        await table.put({"leaseKey": "Leader", "entityType": "LEADER"})
        assert [lease.lease_key for lease in await all_leases(table)] == [KEY]
        await table.put({"leaseKey": KEY, "leaseCounter": "many"})
        with pytest.raises(NotChanged, match="repair or delete"):
            await carry_out(table, BACK)

    on_table(scene)


def test_a_name_that_is_no_lease_is_reported() -> None:
    assert chosen_leases([LEASE], [KEY, KEY]) == (LEASE,)
    with pytest.raises(NotChanged, match="shardId-9"):
        chosen_leases([LEASE], ["shardId-9", KEY])


def test_only_leases_that_were_written_are_counted_and_the_others_are_reported() -> None:
    gone = replace(BACK, lease=replace(LEASE, lease_key=LeaseKey("shardId-000000000009")))

    async def scene(table: Busy) -> None:
        said: list[str] = []
        assert await carry_out_all(table, (gone, BACK), said.append) == 1
        assert said == ["shardId-000000000009: nothing to do, the lease no longer exists"]

    on_table(scene)


def test_a_change_that_is_killed_between_two_leases_can_be_repeated() -> None:
    other = replace(LEASE, lease_key=LeaseKey("shardId-000000000001"))
    changes = (BACK, replace(BACK, lease=other))

    async def scene(table: Busy) -> None:
        said: list[str] = []
        await table.put(new_lease_row(other))
        with killed_at("after-lease-changed"):
            await carry_out_all(table, changes, said.append)
        rows = {str(row["leaseKey"]): lease_from_row(row) for row in await table.scan()}
        assert rows[KEY].checkpoint == TRIM_HORIZON != rows[other.lease_key].checkpoint
        assert await carry_out_all(table, changes, said.append) == 2
        assert {lease_from_row(row).checkpoint for row in await table.scan()} == {TRIM_HORIZON}

    on_table(scene)


def test_only_leases_that_had_an_owner_are_counted_as_let_go() -> None:
    async def scene(table: Busy) -> None:
        said: list[str] = []
        assert await release_all(table, (KEY,), said.append) == 1
        assert await release_all(table, (KEY,), said.append) == 0
        assert said == [f"{KEY}: it no longer has an owner"]

    on_table(scene)
