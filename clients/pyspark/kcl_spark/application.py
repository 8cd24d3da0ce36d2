"""`run`: a pipeline as a Spark application. Restarts and scaling are the cluster manager's."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from kcl_spark.api import Batch, NotAPipeline, is_connect, load, register, writers_of
from kcl_spark.declared import DeclaredQuery, bind, by_name, file_sink_path
from kcl_spark.outputs import ahead_s, claim_path, files_of, state_of, watermark_ms

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOG: Final = logging.getLogger("kcl_spark")
AVAILABLE_NOW: Final = "availableNow"
_MODULE: Final = "kcl_spark_source"
_FIRST_WITH_SOURCES: Final = (4, 0)
_FIRST_WITH_LIMITS: Final = (4, 2)
_POLL_S: Final = 1.0
_ERROR_CHARACTERS: Final = 4_000
_INFO: Final = "_kcl_landing.json"
COLUMNS: Final = (
    ("data", "binary", "data"),
    ("partition_key", "string", "partitionKey"),
    ("stream", "string", "streamName"),
    ("shard_id", "string", "shardId"),
    ("sequence_number", "string", "sequenceNumber"),
    ("sub_sequence_number", "long", "subSequenceNumber"),
    ("approximate_arrival_timestamp", "timestamp", "approximateArrivalTimestamp"),
)
"""The last: with `columns="aws"`."""


class CannotRead(Exception): ...


class QueryFailed(Exception): ...


@dataclass
class StartedQuery:
    """`newest`: begun; None: after a restart, when the next may be a replay."""

    name: str
    state_id: str
    spark: SparkSession | None
    newest: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spark": None}

    @property
    def query_id(self) -> str | None:
        active = self.spark.streams.active if self.spark is not None else ()
        return next((each.id for each in active if each.name == self.name), None)

    def batch(self, batch_id: int) -> Batch:
        is_replay = self.newest is None or batch_id <= self.newest
        self.newest = batch_id
        return Batch(batch_id, self.name, {}, is_replay, self.state_id)


@dataclass(frozen=True)
class Application:
    queries: Mapping[str, StreamingQuery]
    ends_with_a_failure: bool = True

    def stop(self) -> None:
        """A batch that is interrupted runs again at the next start."""
        for query in self.queries.values():
            query.stop()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """False: some still run after `timeout_s`.

        QueryFailed: one failed; by default the others are stopped then.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s  # noqa: TID251 - as in kcl_landing.control
        while any([each.isActive for each in self.queries.values()]):  # noqa: C419 - each is asked first
            if self.ends_with_a_failure:
                self._raise_failures()
            left_s = _POLL_S if deadline_s is None else deadline_s - time.monotonic()  # noqa: TID251
            if left_s <= 0:
                return False
            time.sleep(min(left_s, _POLL_S))  # noqa: TID251
        self._raise_failures()
        return True

    def _raise_failures(self) -> None:
        ended = {name: query for name, query in self.queries.items() if not query.isActive}
        failures = {name: error for name, query in ended.items() if (error := query.exception()) is not None}
        if failures:
            self.stop()
            raise QueryFailed(
                "; ".join(
                    f"query {name!r} failed: {str(e)[:_ERROR_CHARACTERS]}" for name, e in failures.items()
                )
            )


def run(
    pipeline: str | Callable[..., Any],
    *,
    landing: str,
    checkpoint: str,
    stream: str = "",
    spark: SparkSession | None = None,
    trigger: str = "1 second",
    source: str = "",
    columns: str = "kcl",
    options: Mapping[str, str] | None = None,
    with_partitions: bool = False,
    ends_with_a_failure: bool = True,
) -> Application:
    """Start the queries of a pipeline over a landing log, in this session, and return at once.

    Args:
        pipeline: `module:function`, as in `sparkPipeline`, or the function.
        landing: the log: what the daemon's property `landing` says.
        checkpoint: where the queries keep their state, a folder for each: a URI or path of any file system of Spark's.
            Everything that runs the driver later must reach it.
        stream: only this stream of the log. `source="files"` needs it.
        spark: the session, also one of Spark Connect; by default the active one, or a new one.
        trigger: time between two micro-batches of queries without a trigger, or `availableNow`.
        source: `kcl`, the data source (Spark 4.0 or newer), or `files`, Spark's file stream over the layout `dated`. By
            default what this Spark can.
        columns: `kcl` or `aws`, as in `sparkColumns`.
        options: of the source: `maxBytesPerTrigger`, `startingTimestamp`, `shards` (kcl); `maxFilesPerTrigger`, by
            default 1000 (files).
        with_partitions: whether to keep `dt` and `hour` of the layout `dated`, for `source="files"`.
        ends_with_a_failure: whether a query that fails stops the others.

    Raises:
        NotAPipeline: no function with queries, or two queries of one name.
        CannotRead: not with this Spark, or this layout.
        OutputTaken: a file sink's path belongs to another query, or to other state.
    """
    spark = spark or SparkSession.builder.getOrCreate()
    if isinstance(pipeline, str):
        find_here()
    function = load(pipeline) if isinstance(pipeline, str) else pipeline
    _ship_by_value(function)
    given = {name: str(value) for name, value in (options or {}).items()}
    if (source or ("kcl" if _version(spark) >= _FIRST_WITH_SOURCES else "files")) == "files":
        records = _file_stream(spark, _log_of(spark, landing, stream), given)
        if not with_partitions:
            records = records.select(*[name for name, _, _ in COLUMNS])
    else:
        if trigger == AVAILABLE_NOW and _version(spark) < _FIRST_WITH_LIMITS:
            given.setdefault("maxBytesPerTrigger", "0")
        records = _source_stream(spark, landing, {**given, **({"stream": stream} if stream else {})})
    if columns == "aws":
        others = {name: theirs for name, _, theirs in COLUMNS}
        records = records.select(*[F.col(name).alias(others.get(name, name)) for name in records.columns])
    queries = by_name(writers_of(function, records, spark))
    if "reader" in given and len(queries) > 1:
        raise NotAPipeline(
            f"the option reader is for one query, and the pipeline has {len(queries)} ({', '.join(queries)}): leave it out, "
            "or run them one by one"
        )
    ready = _prepared(spark, queries, checkpoint, trigger)
    started: dict[str, StreamingQuery] = {}
    try:
        for name, writer in ready.items():
            started[name] = writer.start()
    except BaseException:
        Application(started).stop()
        raise
    return Application(started, ends_with_a_failure)


def _prepared(
    spark: SparkSession,
    given: Mapping[str, tuple[DeclaredQuery, DataStreamWriter]],
    checkpoint: str,
    trigger: str,
) -> dict[str, DataStreamWriter]:
    files, remote = files_of(spark), is_connect(spark)
    contexts: dict[str, StartedQuery] = {}
    ready: dict[str, DataStreamWriter] = {}
    for name, (about, writer) in given.items():
        folder = f"{checkpoint.rstrip('/')}/{name}"
        is_new = not files.exists(f"{folder}/offsets")
        newest = -1 if is_new else None
        contexts[name] = context = StartedQuery(
            name, state_of(files, folder), None if remote else spark, newest
        )
        if not is_new:
            _warn_of_watermark(name, watermark_ms(spark, folder))
        if (path := file_sink_path(about)) is not None:
            claim_path(spark, path, state_id=context.state_id, query=name, is_new=is_new)
        bound = (bind(writer, context) if remote else writer).option("checkpointLocation", folder)
        if trigger == AVAILABLE_NOW:
            bound = bound.trigger(availableNow=True)
        ready[name] = (
            bound if trigger == AVAILABLE_NOW or about.has_trigger else bound.trigger(processingTime=trigger)
        )
    if not remote:
        register(contexts)
    return ready


def _warn_of_watermark(name: str, watermark_ms: int) -> None:
    if (seconds := ahead_s(watermark_ms, round(time.time() * 1000))) is not None:  # noqa: TID251 - as above
        _LOG.warning(
            "the watermark of query %r is %d s ahead of the clock: until then every record is dropped as late. Give the query "
            "another name, so that it begins with new state, and guard its times with decode.event_time",
            name,
            seconds,
        )


def _version(spark: SparkSession) -> tuple[int, int]:
    major, minor, *_ = spark.version.split(".")
    return int(major), int(minor)


def _source_stream(spark: SparkSession, landing: str, options: Mapping[str, str]) -> DataFrame:
    if _version(spark) < _FIRST_WITH_SOURCES:
        raise CannotRead(
            f"Spark {spark.version} has no data sources in Python; use source='files' over landingLayout = dated, or Spark 4"
        )
    import_module(_MODULE).register(spark, register_source)
    return spark.readStream.format("kcl").options(**options).load(_as_arrow_knows_it(landing))


def _ship_by_value(function: Callable[..., Any]) -> None:
    """Workers and servers of Spark Connect need pyspark and pyarrow only."""
    for name in (__name__.partition(".")[0], function.__module__.partition(".")[0]):
        if name != "__main__" and (module := sys.modules.get(name)) is not None:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # cloudpickle


def register_source(spark: SparkSession, source: Any) -> None:
    """With a ConcurrentHashMap as Spark's environment.

    Queries plan concurrently and write to that map. Once it is corrupt, every task fails with OptionalDataException.
    """
    if is_connect(spark):
        spark.dataSource.register(source)
        return
    context: Any = spark.sparkContext
    plain = context.environment
    shared = context._jvm.java.util.concurrent.ConcurrentHashMap()  # noqa: SLF001 - the only way to a Java map
    for name, value in plain.items():
        shared.put(name, str(value))
    context.environment = shared
    try:
        spark.dataSource.register(source)
    finally:
        context.environment = plain


def _as_arrow_knows_it(landing: str) -> str:
    scheme, colon, rest = landing.partition("://")
    return f"s3://{rest}" if colon and scheme in {"s3a", "s3n"} else landing


def _log_of(spark: SparkSession, landing: str, stream: str) -> tuple[str, str]:
    if not stream:
        raise CannotRead("the file stream needs the name of the stream: run(..., stream='orders')")
    root = landing.rstrip("/") if ":" in landing else Path(landing).absolute().as_uri()
    if root.startswith("s3://") and not is_connect(spark):
        context: Any = spark.sparkContext
        # EMR, Glue and Databricks know s3:, plain Spark only s3a:.
        if context._jsc.hadoopConfiguration().get("fs.s3.impl") is None:  # noqa: SLF001 - the only way to ask
            root = root.replace("s3:", "s3a:", 1)
    return root, stream


def _file_stream(spark: SparkSession, log: tuple[str, str], options: Mapping[str, str]) -> DataFrame:
    (root, stream), files = log, files_of(spark)
    _check_layout(files.read(f"{root}/{_INFO}"), root)
    if not files.exists(f"{root}/{stream}"):
        raise CannotRead(
            f"{root} has nothing of the stream {stream!r} yet; start the daemon first, or mend the name"
        )
    schema = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)
    options = {"maxFilesPerTrigger": "1000", **options}
    return spark.readStream.schema(schema).options(**options).parquet(f"{root}/{stream}")


def _check_layout(note: str | None, root: str) -> None:
    if note is None:
        raise CannotRead(f"{root} is no landing log: there is no {_INFO}; is it what `landing` says?")
    info = json.loads(note)
    for key, wanted, wrong in (("layout", "dated", "landingLayout"), ("format", "parquet", "landingFormat")):
        if info.get(key) != wanted:
            raise CannotRead(
                f"{root} is a log with {wrong} = {info.get(key)}; Spark's file stream reads {wrong} = {wanted}. Land under "
                "another prefix with it, or read this one with Spark 4"
            )


def find_here() -> str:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return here
