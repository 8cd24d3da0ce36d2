"""The port `Transactions` in memory: all parts at one moment, or none.

Owns no rows; works on tables none of whose calls waits, so that nothing comes in between. Knows no failure and no delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kcl_daemon.aws.dynamodb import check_parts, row_key
from kcl_daemon.errors import InvalidRequest, TableNotFound
from kcl_daemon.leases.row import RowCheck, RowDelete, RowPut
from kcl_daemon.ports import CommitResult, Table, TablePart
from tests.simulator.memory.table import frozen_row
from tests.simulator.memory.updates import holds


class MemoryTransactions:
    """Transactions of one account.

    Args:
        tables: its tables; parts may name them through other adapters, only the name counts.
    """

    def __init__(self, tables: Iterable[Table] = ()) -> None:
        self._tables = {table.name: table for table in tables}

    def add(self, table: Table) -> None:
        """One more table of the account."""
        self._tables[table.name] = table

    async def commit(self, parts: Sequence[TablePart]) -> CommitResult:
        """As the port says."""
        check_parts(parts)
        own = [TablePart(self._own(part), part.what) for part in parts]
        for part in own:
            if isinstance(part.what, RowPut):
                frozen_row(part.what.row)
            if isinstance(part.what, RowCheck) and not part.what.require:
                raise InvalidRequest(f"nothing to check of row {row_key(part)}")
        refused = tuple([number for number, part in enumerate(own) if not await _allowed(part)])
        if refused:
            return CommitResult(applied=False, refused=refused)
        for part in own:
            match part.what:
                case RowPut(row):
                    await part.table.put(row)
                case RowDelete(key):
                    await part.table.delete(key)
                case RowCheck():
                    pass
        return CommitResult(applied=True)

    def _own(self, part: TablePart) -> Table:
        try:
            return self._tables[part.table.name]
        except KeyError:
            raise TableNotFound(f"table {part.table.name} does not exist") from None


async def _allowed(part: TablePart) -> bool:
    row = await part.table.get(row_key(part))
    return all(holds(condition, row) for condition in part.what.require)
