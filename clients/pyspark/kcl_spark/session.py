"""The Spark session of the engine: built from the options, with a Java that was looked for.

Owns the environment that Spark is started with. Knows nothing of the stream.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kcl_spark.control import Tell
from kcl_spark.java import find_java
from kcl_spark.options import EngineOptions
from kcl_spark.source import FORMAT, KclDataSource

_STOP_TIMEOUT_MS = "20000"


def prepare_environment(options: EngineOptions, tell: Tell) -> None:
    """Set what Spark and its workers take from the environment.

    Raises:
        NoJava: there is no Java that Spark can run on.
    """
    java = find_java(os.environ, options.state / "java")
    tell("info", "java_found", home=str(java.home), version=java.version, source=java.source)
    os.environ["JAVA_HOME"] = str(java.home)
    # Workers would take the system's python3, which has none of our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # the user's module lies beside the properties file
    ours = str(Path(__file__).parents[1])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, ours, *([before] if before else [])])


def build_session(options: EngineOptions) -> SparkSession:
    """A session with the data source registered."""
    settings = {
        "spark.driver.memory": options.driver_memory,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT_MS,
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        "spark.sql.session.timeZone": "UTC",
        **({"spark.jars.packages": options.packages} if options.packages else {}),
        **options.conf,
    }
    if options.master.startswith("local"):
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


def stream_of(spark: SparkSession, options: EngineOptions) -> DataFrame:
    """The streaming DataFrame of all shards that this host has."""
    return (
        spark.readStream.format(FORMAT)
        .option("spool", str(options.spool))
        .option("columns", options.columns)
        .option("maxBytesPerTrigger", str(options.max_bytes_per_trigger))
        .option("maxTasks", str(max(1, spark.sparkContext.defaultParallelism)))
        .option("onLostRange", options.on_lost_range)
        .load()
    )


def jvm_pid(spark: SparkSession) -> int:
    """The process id of the driver's JVM."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the one place where Spark keeps it
    return int(gateway.proc.pid)
