"""What a user's file is written with: `@pipeline` and `@batch`.

Owns what these mark, and how a marked function becomes streaming queries. Knows nothing of shards, relays or where Spark
runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final, TypeVar, overload

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kcl_spark.batches import Batch, is_connect, with_batch

__all__ = ["Batch", "NotAPipeline", "batch", "load", "pipeline", "writers_of"]

F = TypeVar("F", bound=Callable[..., Any])
BatchFunction = Callable[[DataFrame, Batch], object]
_MARK: Final = "__kcl_spark__"


class NotAPipeline(Exception):
    """Raised when what `sparkPipeline` names cannot be found or does not give queries; says what to change."""


def pipeline(function: F) -> F:
    """Mark a function that declares queries: `def f(records, spark)`, which yields or returns DataStreamWriters.

    Each writer needs a `queryName`; the engine sets its checkpoint location and starts it, and its trigger where the
    function has set none.
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

    It may be called again for the same batch with the same records: `batch.is_replay` says so.

    Args:
        function: the function.
        name: of the query; the function's own where it is not given. State belongs to this name.
    """

    def mark(each: BatchFunction) -> BatchFunction:
        setattr(each, _MARK, name or getattr(each, "__name__", "batch"))
        return each

    return mark if function is None else mark(function)


def load(reference: str) -> Callable[..., Any]:
    """The function that `module:function` names.

    Raises:
        NotAPipeline: there is none.
    """
    module_name, colon, function_name = reference.partition(":")
    if not colon or not module_name or not function_name:
        raise NotAPipeline(f"sparkPipeline = {reference}: write module:function, such as orders:pipeline")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise NotAPipeline(
            f"sparkPipeline = {reference}: there is no module {error.name!r} in the daemon's directory or among the "
            "installed packages"
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise NotAPipeline(f"sparkPipeline = {reference}: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]  # whatever is callable


def writers_of(
    function: Callable[..., Any], records: DataFrame, spark: SparkSession
) -> list[DataStreamWriter]:
    """The queries that a function declares.

    Raises:
        NotAPipeline: it gives something else.
    """
    mark = getattr(function, _MARK, "pipeline")
    if mark != "pipeline":
        return [records.writeStream.queryName(mark).foreachBatch(with_batch(function))]
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
