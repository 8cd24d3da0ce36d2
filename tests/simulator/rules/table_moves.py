"""The rules of the move into one table, checked at every write and at the end.

Owns what the row `TableMigration3.5` has shown. Reads rows by their wire names on its own. Also the reports of a worker
that does not know the single table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kcl_daemon.leases.row import Row, RowUpdate, WriteResult
from kcl_daemon.ports import Tables
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.ports import FaultyTable, RowWrite
from tests.simulator.loop import at_once, now
from tests.simulator.violation import report

_ROW: Final = "TableMigration3.5"
_PREFIX: Final = "TABLE_MIGRATION_STATUS_"
_STAY: Final = frozenset({"Leader", _ROW})
_NEXT: Final[dict[str | None, frozenset[str | None]]] = {
    None: frozenset({"INIT"}),
    "INIT": frozenset({None, "DEPLOYED"}),
    "DEPLOYED": frozenset({"PENDING"}),
    "PENDING": frozenset({"DEPLOYED", "COMPLETE"}),
    "COMPLETE": frozenset(),
}
# Between a decision and its write.
_DOUBT_S: Final = 6.0
# A write of which its worker hears that it was not answered may take effect so much later (`Trouble.belated_s`, and the call).
_BELATED_S: Final = 30.0
# A report in 30 s, with time for one that fails.
_FRESH_S: Final = 75.0


class OldReports(FaultyTable):
    """The table of worker rows as a worker up to KCL 3.4 writes it: nothing is said of the single table."""

    async def update(self, update: RowUpdate) -> WriteResult:
        """Without the support code."""
        kept = {name: value for name, value in update.put.items() if name not in {"sup", "slu"}}
        return await super().update(replace(update, put=kept))


class TableMoveRules:
    """Watches the row and what it says about the tables.

    Args:
        tables: as all workers share them.
        bakes_s: how long INIT and PENDING must last, by the dates of those who write their beginning and their end.
    """

    def __init__(self, tables: Tables, *, bakes_s: tuple[float, float]) -> None:
        self._tables = tables
        self._bakes_s = {"INIT": bakes_s[0], "PENDING": bakes_s[1]}
        self.ahead_s: Callable[[str], float] = lambda _worker_id: 0.0
        """How far the date of a worker is ahead of the true one now."""
        self._since_s = 0.0
        self.state: str | None = None
        self.states: list[str | None] = []

    def row_written(self, write: RowWrite) -> None:
        """Check a write on the coordinator table."""
        if write.table != self._tables.coordinator.name:
            return
        if write.key == _ROW:
            self._state_written(write)
        elif write.key not in _STAY and write.after is None:
            self._carried_over(write)

    def _state_written(self, write: RowWrite) -> None:
        before, after = _state(write.before), _state(write.after)
        if after not in _NEXT[before]:
            report("table_move_order", f"{write.worker_id} went from {before} to {after}")
        if after in {"DEPLOYED", "COMPLETE"} and before in {"INIT", "PENDING"} and after != before:
            self._baked(write, before, after)
        if after == "COMPLETE":
            left = [key for key in self._old_keys() if key not in _STAY]
            if left:
                report(
                    "table_move_incomplete", f"{write.worker_id} completed it with {left} in the old table"
                )
        self.state, self._since_s = after, self._decided_s(write)
        self.states.append(after)

    def _baked(self, write: RowWrite, before: str | None, after: str | None) -> None:
        if (before, after) == ("PENDING", "DEPLOYED"):
            return
        lasted_s, wanted_s = self._dated_s(write) - self._since_s, self._bakes_s[str(before)]
        if lasted_s < wanted_s - _DOUBT_S:
            report(
                "table_move_hurried",
                f"{write.worker_id} ended {before} after {lasted_s:.0f} s of {wanted_s:.0f} s",
            )

    def _dated_s(self, write: RowWrite) -> float:
        return write.at_s + self.ahead_s(write.worker_id)

    def _decided_s(self, write: RowWrite) -> float:
        """A state lasts from its decision, which the row has the date of, though the write took effect late."""
        dated_s, said_ms = self._dated_s(write), (write.after or {}).get("mts")
        said_s = said_ms / 1000 - EPOCH_S if isinstance(said_ms, int) else dated_s
        return min(dated_s, max(said_s, dated_s - _BELATED_S))

    def _carried_over(self, write: RowWrite) -> None:
        there = at_once(self._tables.leases.get(write.key))
        if there is None or not isinstance(there.get("entityType"), str):
            report("table_move_lost", f"{write.worker_id} took {write.key} away; the lease table has {there}")

    def _old_keys(self) -> list[str]:
        return sorted(str(row["key"]) for row in at_once(self._tables.coordinator.scan()))

    def judge(self, ahead_s: Mapping[str, float]) -> None:
        """What must be so a while after the end: everything in the lease table, all reporting there, by their own dates."""
        if self.state != "COMPLETE":
            report("table_move_unfinished", f"the application is in {self.state}, by way of {self.states}")
        for key in ("Leader", "Migration3.0", _ROW):
            if at_once(self._tables.leases.get(key)) is None:
                report("table_move_unfinished", f"the lease table has no row {key}")
        for worker_id, worker_ahead_s in ahead_s.items():
            oldest = EPOCH_S + now() + worker_ahead_s - _FRESH_S
            row = at_once(self._tables.leases.get(worker_id))
            reported = None if row is None else row.get("lut")
            if not isinstance(reported, int) or reported < oldest:
                report("table_move_unfinished", f"{worker_id} does not report to the lease table")


def _state(row: Row | None) -> str | None:
    return None if row is None else str(row.get("tm")).removeprefix(_PREFIX)
