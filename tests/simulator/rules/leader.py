"""The rules of the leader's lock row: who may take it, and when (reference: the lock client's row).

Owns what the row has shown. Knows nothing of elections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kcl_daemon.leases.row import Row
from tests.simulator.faults.ports import RowWrite
from tests.simulator.violation import report

_KEY: Final = "Leader"
_NEWS: Final = "daemonAssigned"


class LeaderRules:
    """Watches the lock row.

    Args:
        tables: name of the coordinator table, and of others to which the lock may move.
        drift: how wrong clocks may run.
    """

    def __init__(self, *tables: str, drift: float) -> None:
        self._tables = tables
        self._drift = drift
        self._moved_at_s = dict.fromkeys(tables, 0.0)
        self.owner: str | None = None
        self.may_succeed: Callable[[str, str], bool] = lambda _writer, _former: False
        self.terms = 0
        self.owners: list[str] = []

    def row_written(self, write: RowWrite) -> None:
        """Check a write on the lock row."""
        if write.table not in self._tables or write.key != _KEY:
            return
        if write.after is not None:
            if self._is_word(write.before, write.after):
                return
            self._well_formed(write, write.after)
        if write.before is not None and write.before.get("isReleased") is None:
            self._check_taking(write, write.before)
        owner = None if write.after is None else write.after.get("ownerName")
        if isinstance(owner, str) and owner != self.owner:
            self.terms += 1
            self.owners.append(owner)
        self.owner = owner if isinstance(owner, str) else None
        self._moved_at_s[write.table] = write.at_s

    def _is_word(self, before: Row | None, after: Row) -> bool:
        """Whether only our own attribute has changed, which anybody may, and which shows nothing of the leader."""
        return before is not None and {**before, _NEWS: ""} == {**after, _NEWS: ""} and _NEWS in before

    def _well_formed(self, write: RowWrite, row: Row) -> None:
        for name in ("ownerName", "leaseDuration", "recordVersionNumber"):
            value = row.get(name)
            if not (isinstance(value, str) and value):
                report("malformed_row", f"{write.worker_id} wrote the leader row with {name} {value!r}")
        version = row.get("recordVersionNumber")
        if write.before is not None and version == write.before.get("recordVersionNumber"):
            report("leader_version_kept", f"{write.worker_id} wrote the leader row without a new version")

    def _check_taking(self, write: RowWrite, before: Row) -> None:
        """A row that its owner has touched lately belongs to its owner."""
        owner = before.get("ownerName")
        if owner == write.worker_id or (isinstance(owner, str) and self.may_succeed(write.worker_id, owner)):
            return
        duration = before.get("leaseDuration")
        lease_s = int(duration) / 1000 if isinstance(duration, str) else 0.0
        stood_still_s = write.at_s - self._moved_at_s[write.table]
        if stood_still_s < lease_s * (1 - 2 * self._drift):
            report(
                "leader_deposed",
                f"{write.worker_id} wrote over {owner!r}'s leader row after {stood_still_s:.1f} s",
            )
