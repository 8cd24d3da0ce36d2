"""The decorators `@pipeline` and `@batch`, and the `Batch` that a handler receives."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kcl_landing.positions import Position
    from kcl_spark.positions import QueryLog
else:
    from pyspark.sql.streaming import DataStreamWriter  # every Spark from 3.3 has it here

_START: Final = (-1, 0)
_QUERY_ID: Final = "sql.streaming.queryId"
_CONNECT: Final = "pyspark.sql.connect."
_MARK: Final = "__kcl_spark__"
__all__ = ["Batch", "NotAPipeline", "batch", "load", "pipeline", "writers_of"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Args:
        id: the same number has the same records, except those of a shard that another host has now.
        shards: with an engine, per shard the range: after the first position, up to and including the second. Positions are
            (sequence number, sub-sequence number); (-1, 0) is the shard's beginning.
        is_replay: whether this batch may have been handled before, wholly or in part.
        state: id of the state that numbers the batches; empty if it is not known.
    """

    id: int
    query: str
    shards: Mapping[str, tuple[Position, Position]]
    is_replay: bool
    state: str = ""


class BatchContext(Protocol):
    @property
    def query_id(self) -> str | None: ...
    def batch(self, batch_id: int) -> Batch:
        """Call it once per attempt."""
        ...


@dataclass
class QueryContext:
    """`planned_before`: newest batch that was planned before the last start."""

    name: str
    log: QueryLog
    state_id: str
    planned_before: int | None
    tried: set[int] = field(default_factory=set[int])

    @property
    def query_id(self) -> str | None:
        try:
            reported = json.loads((self.log.folder / "metadata").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return str(reported["id"])

    def batch(self, batch_id: int) -> Batch:
        start = self.log.end_of(batch_id - 1) if batch_id else {}
        end = self.log.end_of(batch_id)
        replay = batch_id in self.tried or (
            self.planned_before is not None and batch_id <= self.planned_before
        )
        self.tried = {batch_id}
        ranges = {
            shard: (start.get(shard, _START), last)
            for shard, last in end.items()
            if last > start.get(shard, _START)
        }
        return Batch(batch_id, self.name, ranges, replay, self.state_id)


_contexts: dict[str, BatchContext] = {}


def register(contexts: Mapping[str, BatchContext]) -> None:
    _contexts.clear()
    _contexts.update(contexts)


def is_connect(each: object) -> bool:
    return type(each).__module__.startswith(_CONNECT)


def _query_id(frame: DataFrame) -> str | None:
    """None on a Spark Connect server."""
    return None if is_connect(frame) else frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)


@dataclass(frozen=True, eq=False)
class BatchHandler:
    """In a plain `foreachBatch` the query's id in its checkpoint says whose batches these are."""

    function: Callable[[DataFrame, Batch], Any]
    context: BatchContext | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        context, query_id = self.context, None
        if context is None and (query_id := _query_id(frame)) is not None:
            context = next((each for each in _contexts.values() if each.query_id == query_id), None)
        unknown = Batch(batch_id, "", {}, is_replay=True, state=query_id or "")
        self.function(frame, context.batch(batch_id) if context else unknown)


BatchFunction = Callable[[DataFrame, Batch], object]


class NotAPipeline(Exception):
    """Says what to change."""


def pipeline(function: F) -> F:
    """Mark a function that declares queries: `def f(records, spark)` yields or returns DataStreamWriters.

    Each needs a `queryName`. The engine gives it a checkpoint location and perhaps a trigger, and starts it.
    """
    setattr(function, _MARK, "pipeline")
    return function


@overload
def batch(function: BatchFunction) -> BatchFunction:  # noqa: D418 - every function has one
    """`@batch`."""


@overload
def batch(*, name: str) -> Callable[[BatchFunction], BatchFunction]:  # noqa: D418 - every function has one
    """`@batch(name=...)`."""


def batch(
    function: BatchFunction | None = None, *, name: str | None = None
) -> BatchFunction | Callable[[BatchFunction], BatchFunction]:
    """Mark a function that is called with every micro-batch: `def f(df, batch)`.

    It may be called again with the same records; then `batch.is_replay` is true. State belongs to `name`, by default
    the function's.
    """

    def mark(each: BatchFunction) -> BatchFunction:
        setattr(each, _MARK, name or getattr(each, "__name__", "batch"))
        return each

    return mark if function is None else mark(function)


def load(reference: str) -> Callable[..., Any]:
    module_name, colon, function_name = reference.partition(":")
    if not colon or not module_name or not function_name:
        raise NotAPipeline(f"sparkPipeline = {reference}: write module:function, such as orders:pipeline")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise NotAPipeline(
            f"sparkPipeline = {reference}: there is no module {error.name!r} in the working directory or among the "
            "installed packages"
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise NotAPipeline(f"sparkPipeline = {reference}: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]  # whatever is callable


def writers_of(
    function: Callable[..., Any], records: DataFrame, spark: SparkSession
) -> list[DataStreamWriter]:
    mark = getattr(function, _MARK, "pipeline")
    if mark != "pipeline":
        return [records.writeStream.queryName(mark).foreachBatch(BatchHandler(function))]
    takes_spark = len(inspect.signature(function).parameters) > 1
    given = function(records, spark) if takes_spark else function(records)
    writers = list(given) if isinstance(given, Iterable) else [given]
    for each in writers:
        if not isinstance(each, DataStreamWriter) and not (is_connect(each) and hasattr(each, "queryName")):
            raise NotAPipeline(
                f"the pipeline gave {each!r}; yield DataStreamWriters (df.writeStream.queryName(...)...), not started"
            )
    if not writers:
        raise NotAPipeline("the pipeline gave no query; yield at least one DataStreamWriter")
    return writers
