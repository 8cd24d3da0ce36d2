"""A monitor beside another one sees the same fleet."""

from __future__ import annotations

from kcl_daemon.assignment.plan import LeaseLimits
from kcl_daemon.fleet.lease_renewer import MalformedRowLog
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.leases.row import new_lease_row
from kcl_daemon.ports import Tables
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fleet.contexts import worker_context


def test_another_monitor_sees_the_fleet_in_the_same_order_and_with_the_same_limits() -> None:
    async def scene() -> None:
        table, context = MemoryTable("app", "leaseKey", has_owner_index=True), worker_context()
        await table.ensure()
        for number in range(3):
            await table.put(new_lease_row(Lease(LeaseKey(f"shardId-{number}"), 1, TRIM_HORIZON)))
        first = FleetMonitor(
            context,
            tables=Tables(table, table, table),
            limits=LeaseLimits(2),
            malformed=MalformedRowLog(context.log),
            prioritize=lambda leases: leases[::-1],
        )
        second = first.another()
        for each in (first, second):
            await each.poll()
        assert second.fleet().leases == first.fleet().leases == first.leases[::-1]
        assert second.fleet().limits == LeaseLimits(2)

    run_virtual(scene)
