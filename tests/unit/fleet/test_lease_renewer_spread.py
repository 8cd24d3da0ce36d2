"""Hundreds of leases that are given at once are not renewed at once for ever after."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import anyio

from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.leases.row import RowUpdate, WriteResult
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.chance import Chance
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fleet.contexts import lease_renewer, worker_context
from tests.unit.fleet.renewer_stage import ME

LEASES = 200


class TimedTable(MemoryTable):
    """Remembers when each row was written."""

    def __init__(self) -> None:
        super().__init__("leases", "leaseKey")
        self.writes: list[tuple[float, str]] = []

    async def update(self, update: RowUpdate) -> WriteResult:
        self.writes.append((anyio.current_time(), update.key))
        return await super().update(update)


def renewals(seconds: float) -> list[tuple[float, str]]:
    """When which lease was renewed, all of them adopted at 0."""

    async def main() -> list[tuple[float, str]]:
        table = TimedTable()
        await table.ensure()
        renewer = lease_renewer(replace(worker_context(ME), randomness=Chance("spread")), table)
        for number in range(LEASES):
            row, _ = lease_row.creation(Lease(LeaseKey(f"s-{number}"), 1, TRIM_HORIZON, lease_owner=ME))
            await table.put(row)
            renewer.adopt(lease_row.lease_from_row(row), moved_s=0.0)
        with anyio.move_on_after(seconds):
            await renewer.run()
        assert len(renewer.held) == LEASES
        return table.writes

    return run_virtual(main)


def test_renewals_are_spread_over_the_period() -> None:
    in_second = Counter(int(at_s) for at_s, _ in renewals(60.0) if at_s >= 10.0)
    assert max(in_second.values()) < LEASES / 2


def test_none_is_late_and_there_are_not_more_of_them() -> None:
    writes = renewals(120.0)
    last_s = dict.fromkeys((f"s-{number}" for number in range(LEASES)), 0.0)
    for at_s, key in writes:
        assert at_s - last_s[key] <= 5.1  # four seconds, and the loop wakes up once a second
        last_s[key] = at_s
    assert min(last_s.values()) >= 120.0 - 5.1
    assert len(writes) <= LEASES * 31
