"""Tables over tables: the rows of one kind in a shared table, a route that changes, and throttling that is told."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.errors import Throttled
from kcl_daemon.fleet.table_views import (
    COORDINATOR_KINDS,
    WORKER_KINDS,
    MonitoredTable,
    RowKindTable,
    TableWrapper,
)
from kcl_daemon.leases.leader import LeaderLock, lock_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, RowUpdate, creation
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import IndexState, TableState
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import at_once, run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.troubled import Trouble, TroubledTable

OLD_LEASE: Row = {"leaseKey": "shardId-000000000001", "leaseCounter": 3}


def made(name: str = "leases") -> TroubledTable:
    table = TroubledTable(name)
    at_once(table.ensure())
    return table


def test_a_view_of_the_lease_table_shows_the_rows_of_its_kind() -> None:
    table = made()
    workers, coordinator = RowKindTable(table, WORKER_KINDS), RowKindTable(table, COORDINATOR_KINDS)
    at_once(table.put(*creation(Lease(LeaseKey("shardId-000000000000"), 0, TRIM_HORIZON))))
    at_once(table.put(OLD_LEASE))
    at_once(workers.update(report(WorkerId("w-1"), now_s=5)))
    lock = LeaderLock(WorkerId("w-1"), "token", 30_000)
    at_once(coordinator.put(lock_row(coordinator.key_attribute, lock)))
    assert [row["leaseKey"] for row in at_once(workers.scan())] == ["w-1"]
    assert [row["leaseKey"] for row in at_once(coordinator.scan())] == ["Leader"]
    assert len(at_once(table.scan())) == 4
    assert at_once(table.get("Leader")) == at_once(coordinator.get("Leader"))


def test_a_route_may_change_from_one_call_to_the_next() -> None:
    one, other = made("one"), made("other")
    routed = TableWrapper(one)
    at_once(routed.put({"leaseKey": "k", "n": 1}))
    routed.route_to(other)
    assert routed.name == "other"
    assert at_once(routed.get("k")) is None
    assert at_once(one.get("k")) == {"leaseKey": "k", "n": 1}


def test_everything_is_passed_on() -> None:
    table = TroubledTable("leases")
    over = TableWrapper(table)
    assert at_once(over.describe()) is None
    assert at_once(over.ensure())
    table.exist_without_index()
    at_once(over.add_owner_index())
    assert at_once(over.describe()) == TableState(IndexState.ACTIVE)
    at_once(over.remove_owner_index())
    assert at_once(over.describe()) == TableState(IndexState.ABSENT)
    at_once(over.add_owner_index())
    at_once(over.enable_recovery())
    assert table.has_recovery
    at_once(over.put({"leaseKey": "k", "leaseOwner": "w-1"}))
    assert at_once(over.owned_keys("w-1")) == ["k"]
    assert at_once(over.update(RowUpdate("k", put={"n": 1}))).applied
    assert at_once(over.scan()) == [{"leaseKey": "k", "leaseOwner": "w-1", "n": 1}]
    assert at_once(over.delete("k")).applied


def test_throttling_is_counted_and_reported_once_in_ten_minutes() -> None:
    async def main() -> None:
        table, log = TroubledTable("leases"), MemoryLog()
        await table.ensure()
        watched = MonitoredTable(table, clock=LoopClock(), log=log)

        async def throttled(times: int) -> None:
            for _ in range(times):
                table.writes.append(Trouble.THROTTLED)
                with pytest.raises(Throttled):
                    await watched.delete("k")

        await throttled(3)
        await anyio.sleep(599)
        await throttled(1)
        await anyio.sleep(2)
        await throttled(1)
        reported = [(event, fields["table"], fields["calls"]) for _, event, fields in log.lines]
        assert reported == [("table_throttled", "leases", 1), ("table_throttled", "leases", 4)]
        assert "on-demand" in str(log.lines[0][2]["advice"])
        assert watched.throttled == 5

    run_virtual(main)


def test_other_errors_are_no_throttling() -> None:
    table, log = made(), MemoryLog()
    watched = MonitoredTable(table, clock=LoopClock(), log=log)
    table.writes.append(Trouble.FAILED_BEFORE)
    with pytest.raises(Exception, match="connection reset"):
        at_once(watched.delete("k"))
    assert (watched.throttled, log.lines) == (0, [])
