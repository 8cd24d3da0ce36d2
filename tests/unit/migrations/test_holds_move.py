"""The rows of pauses and limits, and of the stream, while the tables of an application become one."""

from __future__ import annotations

from msgspec.structs import replace

from kcl_daemon.fleet.hold_watch import change_holds, tell_holds, with_holds
from kcl_daemon.fleet.streams import read_own_stream, write_own_stream
from kcl_daemon.fleet.table_views import COORDINATOR_KINDS, DualTable, RowKindTable
from kcl_daemon.leases.holds import HOLDS_KEY, Hold, holds_from_row
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import RowDelete, RowPut
from kcl_daemon.leases.text_row import OwnStream
from kcl_daemon.migrations.one_table_rules import RowBatch, TableSide, next_row_batch
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable

PAUSE = Hold(by="ann@host", reason="the sink is down", since_ms=1)


def test_the_row_moves_with_the_others_and_commands_find_it_on_both_sides() -> None:
    async def play() -> None:
        legacy, leases = MemoryTable("app-CoordinatorState", "key"), MemoryTable("app", "leaseKey")
        await legacy.ensure()
        await leases.ensure()
        both = DualTable(legacy, leases, written=legacy)
        await tell_holds(both, lambda before: with_holds(before, [PAUSE]), token="token")
        batch = next_row_batch(await legacy.scan(), WorkerId("w-1"))
        assert isinstance(batch, RowBatch)
        assert batch.keys == (HOLDS_KEY,)
        for part in batch.parts[1:]:
            table = legacy if part.place is TableSide.LEGACY else leases
            if isinstance(part.what, RowPut):
                assert (await table.put(part.what.row, part.what.require)).applied
            else:
                assert isinstance(part.what, RowDelete)
                assert (await table.delete(part.what.key, part.what.require)).applied
        more = replace(PAUSE, lease_key="shardId-0")
        await change_holds(both, lambda before: with_holds(before, [more]))
        assert await legacy.get(HOLDS_KEY) is None
        assert set(holds_from_row(await leases.get(HOLDS_KEY))) == {PAUSE, more}
        await change_holds(both, lambda _before: ())
        assert await leases.get(HOLDS_KEY) is None

    run_virtual(play)


def test_the_row_of_the_stream_moves_and_is_found_on_both_sides() -> None:
    async def play() -> None:
        legacy, leases = MemoryTable("app-CoordinatorState", "key"), MemoryTable("app", "leaseKey")
        await legacy.ensure()
        await leases.ensure()
        both, own = DualTable(legacy, leases, written=legacy), OwnStream(arn="arn", created_s=1)
        assert (await write_own_stream(both, None, own)).applied
        batch = next_row_batch(await legacy.scan(), WorkerId("w-1"))
        assert isinstance(batch, RowBatch)
        assert (await read_own_stream(both))[1] == own
        for part in batch.parts[1:]:
            if isinstance(part.what, RowPut):
                assert (await leases.put(part.what.row, part.what.require)).applied
            elif isinstance(part.what, RowDelete):
                assert (await legacy.delete(part.what.key, part.what.require)).applied
        row, found = await read_own_stream(both)
        assert found == own
        other = OwnStream(arn="other", created_s=2)
        assert not (await write_own_stream(leases, None, other)).applied
        assert (await write_own_stream(both, row, other)).applied
        assert (await read_own_stream(RowKindTable(leases, COORDINATOR_KINDS)))[1] == other

    run_virtual(play)
