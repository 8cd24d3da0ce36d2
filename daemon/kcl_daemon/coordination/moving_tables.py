"""Tables while an application moves from three tables to one: rows that may be in either of two, and the leader's lock.

Owns where a row is looked for and written. Knows nothing of how far the move is (`table_routes`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from kcl_daemon.coordination.table_views import Routed, TableOver
from kcl_daemon.leases.table import Conditions, Row, RowUpdate, Written
from kcl_daemon.ports import Table


class TwoTables(TableOver):
    """Rows of one kind that are carried from a table of their own into the lease table (KCL: WorkerMetricStatsDAO).

    Rows look as those of the old table wherever they are, also in their key. A row is looked for in the old table
    first: it is only ever carried the other way, so that none is missed.

    Args:
        legacy: the old table.
        leases: the lease table.
        written: which of the two gets new rows.
    """

    def __init__(self, legacy: Table, leases: Table, *, written: Table) -> None:
        super().__init__(legacy)
        self._leases = leases
        self._written = written

    async def get(self, key: str) -> Row | None:
        """As the port says."""
        row = await super().get(key)
        return row if row is not None else self._as_legacy(await self._leases.get(key))

    async def scan(self) -> list[Row]:
        """The rows of the old table only; those of the lease table come with any scan of that one."""
        return await super().scan()

    async def put(self, row: Row, require: Conditions = ()) -> Written:
        """As the port says, for new rows; the conditions are on the table that gets them."""
        if self._written is not self._leases:
            return await super().put(row, require)
        old, new = self._table.key_attribute, self._leases.key_attribute
        renamed = {new if name == old else name: value for name, value in row.items()}
        written = await self._leases.put(renamed, self._as_leases(require))
        return replace(written, row=self._as_legacy(written.row))

    async def update(self, update: RowUpdate) -> Written:
        """As the port says, where the row is; without conditions, where new rows go."""
        in_leases = replace(update, require=self._as_leases(update.require))
        if update.require or self._written is not self._leases:
            written = await super().update(update)
            if written.applied or written.row is not None:
                return written
        written = await self._leases.update(in_leases)
        return replace(written, row=self._as_legacy(written.row))

    async def delete(self, key: str, require: Conditions = ()) -> Written:
        """As the port says, where the row is; without conditions, in both."""
        deleted = await super().delete(key, require)
        if require and deleted.applied:
            return deleted
        in_leases = await self._leases.delete(key, self._as_leases(require))
        if deleted.row is not None and not in_leases.applied:
            return deleted
        return replace(in_leases, row=self._as_legacy(in_leases.row))

    def _as_leases(self, require: Conditions) -> Conditions:
        old, new = self._table.key_attribute, self._leases.key_attribute
        return tuple(
            replace(condition, attribute=new) if condition.attribute == old else condition
            for condition in require
        )

    def _as_legacy(self, row: Row | None) -> Row | None:
        if row is None:
            return None
        old, new = self._table.key_attribute, self._leases.key_attribute
        return {old if name == new else name: value for name, value in row.items()}


class LockTable(Routed):
    """The table of the leader's lock, which nobody takes without having seen that the lock is still there.

    Args:
        table: where it is at first.
        is_here: whether the lock is still in the table that calls are led to now; AwsError where that cannot be known.
    """

    def __init__(self, table: Table, is_here: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(table)
        self._is_here = is_here
        self._on_taken: Callable[[], None] | None = None

    def on_taken(self, callback: Callable[[], None]) -> None:
        """Have a function called when the lock was taken, or was found to be elsewhere."""
        self._on_taken = callback

    async def put(self, row: Row, require: Conditions = ()) -> Written:
        """Take the lock; refused without a row where it is elsewhere by now, or was when the caller looked at it."""
        is_here = await self._is_here()
        taken = Written(applied=False, row=None)
        if is_here and self._is_made_for(row, require):
            taken = await super().put(row, require)
        if self._on_taken is not None and (taken.applied or not is_here):
            self._on_taken()
        return taken

    def _is_made_for(self, row: Row, require: Conditions) -> bool:
        """Whether row and conditions are of the table that calls lead to now.

        The condition that there is no lock in the old table would hold in the new one, whoever has it.
        """
        key = self.key_attribute
        return key in row and any(condition.attribute == key for condition in require)
