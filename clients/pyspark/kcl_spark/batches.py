"""What a function that handles micro-batches is told about the batch in hand.

Owns the contexts of the running queries, found by Spark's id of the query. The engine registers them; sinks and `@batch`
look them up from within Spark's callback. Under Spark Connect that callback runs on the server: there a handler has its
context with it, bound by the engine (`connect`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame

from kcl_spark.positions import START, Position
from kcl_spark.querylog import QueryLog

_QUERY_ID: Final = "sql.streaming.queryId"
_CONNECT: Final = "pyspark.sql.connect."


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    Args:
        id: its number; the same number always means the same records.
        query: name of the query.
        shards: of each shard that has records in it, the range: after the first position, up to and with the second.
            Positions are (sequence number, sub-sequence number), (-1, 0) is the shard's beginning.
        is_replay: whether this batch may have been handled before, wholly or in part.
        state: id of the state folder in which the number counts; empty where nobody can tell (outside of an engine).
    """

    id: int
    query: str
    shards: Mapping[str, tuple[Position, Position]]
    is_replay: bool
    state: str = ""


@dataclass(slots=True)
class QueryContext:
    """What is known of a query while it runs.

    Args:
        name: of the query.
        log: its books.
        state_id: of the state folder that they are in.
        planned_before: the newest batch that had been planned when the engine started; None: none.
    """

    name: str
    log: QueryLog
    state_id: str
    planned_before: int | None
    tried: set[int] = field(default_factory=set[int])

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query; None before its first start."""
        try:
            told = json.loads((self.log.folder / "metadata").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return str(told["id"])

    def batch(self, batch_id: int) -> Batch:
        """The batch of this number, which is about to be handled."""
        start = self.log.end_of(batch_id - 1) if batch_id else {}
        end = self.log.end_of(batch_id)
        replay = batch_id in self.tried or (
            self.planned_before is not None and batch_id <= self.planned_before
        )
        self.tried = {batch_id}
        ranges = {
            shard: (start.get(shard, START), last)
            for shard, last in end.items()
            if last > start.get(shard, START)
        }
        return Batch(batch_id, self.name, ranges, replay, self.state_id)


_contexts: dict[str, QueryContext] = {}


def register(contexts: Mapping[str, QueryContext]) -> None:
    """The queries that run from now on, by name."""
    _contexts.clear()
    _contexts.update(contexts)


def is_connect(each: object) -> bool:
    """Whether a session, DataFrame or writer is one of Spark Connect: its driver is in another process."""
    return type(each).__module__.startswith(_CONNECT)


def context_of(frame: DataFrame) -> QueryContext | None:
    """The query in whose callback this is; None outside of an engine, and on a server of Spark Connect."""
    if is_connect(frame):
        return None
    query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    return next((each for each in _contexts.values() if each.query_id == query_id), None)


class BatchHandler:
    """A function for Spark's foreachBatch that calls one that wants a `Batch`.

    Args:
        function: that one.
        context: of the query where it cannot be looked up.
    """

    def __init__(
        self, function: Callable[[DataFrame, Batch], Any], context: QueryContext | None = None
    ) -> None:
        self.function = function
        self.context = context

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle one batch."""
        context = self.context or context_of(frame)
        if context is None:
            self.function(frame, Batch(batch_id, "", {}, is_replay=True))  # nobody can tell
        else:
            self.function(frame, context.batch(batch_id))


def with_batch(function: Callable[[DataFrame, Batch], Any]) -> Callable[[DataFrame, int], None]:
    """A function for Spark's foreachBatch that calls one that wants a `Batch`."""
    return BatchHandler(function)
