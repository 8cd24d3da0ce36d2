"""The Spark session of the engine: built from the options, with a Java that was looked for.

Owns the environment that Spark is started with. Knows nothing of the stream.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kcl_spark.batches import is_connect
from kcl_spark.connect import connect
from kcl_spark.control import Tell
from kcl_spark.footprint import ARENAS, small_jvm
from kcl_spark.home import lean_home
from kcl_spark.java import find_java
from kcl_spark.options import INLINE, EngineOptions
from kcl_spark.shipping import ship_by_value
from kcl_spark.source import FORMAT, KclDataSource

_STOP_TIMEOUT_MS = "20000"
_TASKS_OF_A_CLUSTER = 64


def prepare_environment(options: EngineOptions, tell: Tell) -> None:
    """Set what Spark and its workers take from the environment.

    Raises:
        NoJava: there is no Java that Spark can run on.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # the user's module lies beside the properties file
    if options.remote:
        return
    java = find_java(os.environ, options.state / "java")
    tell("info", "java_found", home=str(java.home), version=java.version, source=java.source)
    os.environ["JAVA_HOME"] = str(java.home)
    if options.is_local:
        os.environ.setdefault(*ARENAS)
        os.environ.setdefault("SPARK_HOME", str(lean_home(options.state / "spark-home")))
    # Workers would take the system's python3, which has none of our packages. On a cluster the path may be another.
    if options.is_local or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    ours = str(Path(__file__).parents[1])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, ours, *([before] if before else [])])


def build_session(options: EngineOptions) -> SparkSession:
    """A session with the data source registered."""
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
    """Register the data source with a map of environment variables that bears two queries.

    Spark puts variables into that map whenever it plans a batch, and queries plan side by side. A plain HashMap
    comes out of that with a wrong size, and then no task of any query can be read (OptionalDataException) until the
    engine is started anew.
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
    """The streaming DataFrame of all shards that this engine is given.

    Args:
        spark: the session.
        options: of the engine.
        store: where segments are, as the planner of the source reaches them.
    """
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
    """Tasks that can run side by side. Workers of a cluster may still be on their way when this is asked."""
    told = options.conf.get("spark.default.parallelism")
    if told is not None:
        return int(told)
    if options.is_local:
        return max(1, spark.sparkContext.defaultParallelism)
    return _TASKS_OF_A_CLUSTER


def web_address(spark: SparkSession) -> str | None:
    """Where Spark shows what it does; None: nowhere, or it is told by whoever runs the server."""
    return None if is_connect(spark) else spark.sparkContext.uiWebUrl


def jvm_pid(spark: SparkSession) -> int | None:
    """The process id of the driver's JVM; None: it is not ours."""
    if is_connect(spark):
        return None
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the one place where Spark keeps it
    return int(gateway.proc.pid)
