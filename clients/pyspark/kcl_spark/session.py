"""Builds the engine's Spark session and its environment, local or by Spark Connect.

Workers and Connect servers need pyspark and pyarrow only: this package and the pipeline's module are pickled
by value.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kcl_spark.api import BatchHandler, QueryContext, is_connect
from kcl_spark.control import EmitEvent, Refused
from kcl_spark.java import ARENAS, find_java, lean_home, small_jvm
from kcl_spark.options import INLINE, EngineOptions
from kcl_spark.source import FORMAT, KclDataSource


def connect(options: EngineOptions) -> SparkSession:
    builder = SparkSession.builder.remote(options.remote)
    settings = {"spark.sql.session.timeZone": "UTC", **options.conf}
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except ImportError as error:
        raise Refused(f"sparkRemote needs {error}: pip install 'kcl-daemon[spark-connect]'") from error
    spark.dataSource.register(KclDataSource)
    return spark


@dataclass(frozen=True, slots=True)
class ServerWriter:
    name: str | None
    sink: str
    path: str | None
    checkpoint_location: str | None
    has_trigger: bool
    ends: bool


def server_writer(writer: DataStreamWriter) -> ServerWriter:
    proto = _message(writer)
    options = {name.lower(): value for name, value in proto.options.items()}
    trigger = proto.WhichOneof("trigger")
    return ServerWriter(
        name=proto.query_name or options.get("queryname"),
        sink="" if proto.HasField("foreach_batch") else proto.format,
        path=proto.path or options.get("path"),
        checkpoint_location=options.get("checkpointlocation"),
        has_trigger=trigger is not None,
        ends=trigger in {"available_now", "once"},
    )


def bind(writer: DataStreamWriter, context: QueryContext) -> DataStreamWriter:
    proto = _message(writer)
    if not proto.HasField("foreach_batch"):
        return writer
    handler = cloudpickle.loads(proto.foreach_batch.python_function.command)
    if type(handler).__name__ != BatchHandler.__name__:
        return writer
    return writer.foreachBatch(BatchHandler(handler.function, context))


def _message(writer: DataStreamWriter) -> Any:
    return writer._write_proto  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way to ask


_PACKAGE = __name__.partition(".")[0]


def ship_by_value(pipeline: str) -> None:
    for name in (_PACKAGE, pipeline.partition(":")[0].partition(".")[0]):
        cloudpickle.register_pickle_by_value(import_module(name))  # type: ignore[no-untyped-call]  # cloudpickle


_STOP_TIMEOUT_MS = "20000"
_TASKS_OF_A_CLUSTER = 64


def prepare_environment(options: EngineOptions, log_event: EmitEvent) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if options.remote:
        return
    java = find_java(os.environ, options.state / "java")
    log_event("info", "java_found", home=str(java.home), version=java.version, source=java.source)
    os.environ["JAVA_HOME"] = str(java.home)
    if options.is_local:
        os.environ.setdefault(*ARENAS)
        os.environ.setdefault("SPARK_HOME", str(lean_home(options.state / "spark-home")))
    # Workers would use the system's python3, without our packages.
    if options.is_local or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    ours = str(Path(__file__).parents[1])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, ours, *([before] if before else [])])


def build_session(options: EngineOptions) -> SparkSession:
    if options.remote or not options.is_local:
        ship_by_value(options.pipeline)
    if options.remote:
        return connect(options)
    settings = {
        "spark.driver.memory": options.driver_memory,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT_MS,
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        "spark.sql.session.timeZone": "UTC",
        **({"spark.jars.packages": options.packages} if options.packages else {}),
        **(small_jvm(options.driver_memory, options.conf) if options.is_local else {}),
        **options.conf,
    }
    if options.is_local:
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    builder = SparkSession.builder.master(options.master).appName(options.application)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    register_source(spark)
    return spark


def register_source(spark: SparkSession) -> None:
    """Register the data source with a ConcurrentHashMap as Spark's environment.

    Queries plan concurrently and write to that map. A corrupted HashMap makes every task fail with
    OptionalDataException until the engine restarts.
    """
    context: Any = spark.sparkContext
    plain = context.environment
    shared = context._jvm.java.util.concurrent.ConcurrentHashMap()  # noqa: SLF001 - the only way to a Java map
    for name, value in plain.items():
        shared.put(name, str(value))
    context.environment = shared
    try:
        spark.dataSource.register(KclDataSource)
    finally:
        context.environment = plain


def stream_of(spark: SparkSession, options: EngineOptions, store: str) -> DataFrame:
    return (
        spark.readStream.format(FORMAT)
        .option("spool", store)
        .option("inline", "true" if options.transport == INLINE else "false")
        .option("columns", options.columns)
        .option("maxBytesPerTrigger", str(options.max_bytes_per_trigger))
        .option("maxTasks", str(_parallelism(spark, options)))
        .option("onLostRange", options.on_lost_range)
        .load()
    )


def _parallelism(spark: SparkSession, options: EngineOptions) -> int:
    """A constant on a cluster, whose workers may still be starting."""
    reported = options.conf.get("spark.default.parallelism")
    if reported is not None:
        return int(reported)
    if options.is_local:
        return max(1, spark.sparkContext.defaultParallelism)
    return _TASKS_OF_A_CLUSTER


def web_address(spark: SparkSession) -> str | None:
    return None if is_connect(spark) else spark.sparkContext.uiWebUrl


def jvm_pid(spark: SparkSession) -> int | None:
    if is_connect(spark):
        return None
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the one place where Spark keeps it
    return int(gateway.proc.pid)
