"""Says of a row of the lease table that it cannot be a lease: once for each row, whoever in this process reads it.

Owns what has been said. Knows nothing of who reads the table, or why.
"""

from __future__ import annotations

from kcl_daemon.leases.row import MalformedRowError
from kcl_daemon.ports import Log


class MalformedRows:
    """One for a worker; its leader's part and its discovery see the same rows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: set[str] = set()

    def tell(self, malformed: MalformedRowError) -> None:
        """Say it, unless it has been said of this row."""
        if malformed.key not in self._told:
            self._told.add(malformed.key)
            self._log.error(
                "lease_row_malformed",
                lease_key=malformed.key,
                error=str(malformed),
                advice="repair or delete the row",
            )
