"""Two tables of a store with two rows, for transactions over both."""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.leases.row import Row, RowPart
from kcl_daemon.ports import CommitResult, Table, TablePart
from tests.contract.table_backends import Store

KEY = "leaseKey"
LEADER: Row = {KEY: "Leader", "ownerName": "w-1", "n": 3}
MOVED: Row = {KEY: "Migration3.0", "cv": "3X", "h": ({"cv": "INIT", "mts": 1},)}


@dataclass(frozen=True)
class Pair:
    """Two tables, of which the first has two rows, and the transactions over them."""

    store: Store
    one: Table
    other: Table

    async def commit(self, *parts: tuple[Table, RowPart]) -> CommitResult:
        return await self.store.transactions.commit([TablePart(table, what) for table, what in parts])

    async def rows(self) -> tuple[list[Row], list[Row]]:
        scans = [await table.scan() for table in (self.one, self.other)]
        one, other = (sorted(rows, key=lambda row: str(row[KEY])) for rows in scans)
        return one, other


async def a_pair(store: Store) -> Pair:
    pair = Pair(store, store.new_table(False), store.new_table(True))
    for table in (pair.one, pair.other):
        await table.ensure()
    await pair.one.put(LEADER)
    await pair.one.put(MOVED)
    return pair
