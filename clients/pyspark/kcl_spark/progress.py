"""How far all queries of the engine are, put together: what may be checkpointed, what must be kept.

Owns the minimum over the queries. Reads Spark's books (`querylog`), tells the spool; knows nothing of relays.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kcl_spark.clock import monotonic_s
from kcl_spark.positions import START, Position, Positions, minimum
from kcl_spark.querylog import Books, QueryLog
from kcl_spark.spool import Spool


class Progress:
    """The queries' progress. `look` is called by one thread, the rest by any.

    Args:
        spool: is told what may go.
        logs: of every query, by name.
    """

    def __init__(self, spool: Spool, logs: Mapping[str, QueryLog]) -> None:
        self._spool = spool
        self._logs = dict(logs)
        self._lock = threading.Lock()
        self._committed: Positions = {}
        self._books: dict[str, Books] = {}
        self._changed_s: dict[str, float] = {}

    def look(self) -> None:
        """Read the books again."""
        books = {name: log.read() for name, log in self._logs.items()}
        committed = minimum(each.committed for each in books.values() if each.is_ours)
        planned: dict[str, Position] = {}
        for each in books.values():
            for shard, where in each.planned.items():
                planned[shard] = max(where, planned.get(shard, START))
        now_s = monotonic_s()
        with self._lock:
            for name, each in books.items():
                before = self._books.get(name)
                if before is None or before.committed_batch != each.committed_batch:
                    self._changed_s[name] = now_s
            self._books, self._committed = books, committed
        self._spool.told(planned, committed)

    def committed(self, shard_id: str) -> Position:
        """What every query has committed of a shard."""
        with self._lock:
            return self._committed.get(shard_id, START)

    def batches(self) -> dict[str, int]:
        """The newest batch that each query has committed; -1: none yet."""
        with self._lock:
            return {
                name: -1 if books.committed_batch is None else books.committed_batch
                for name, books in self._books.items()
            }

    def ages_s(self) -> dict[str, float]:
        """Since each query's last commit, in seconds; since the first look where there was none after it."""
        now_s = monotonic_s()
        with self._lock:
            return {name: now_s - since_s for name, since_s in self._changed_s.items()}

    def is_new(self) -> bool:
        """Whether no query has planned anything yet: the state is fresh."""
        with self._lock:
            return all(books.planned_batch is None for books in self._books.values())
