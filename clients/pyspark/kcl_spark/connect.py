"""Spark Connect: the driver is a server elsewhere (`sparkRemote=sc://...`).

Owns what is different there: the session, looking into declared queries, and giving handlers of batches their context,
as they run on the server. The server must reach the spool and the state folder; it needs nothing of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kcl_spark.batches import BatchHandler, QueryContext
from kcl_spark.options import EngineOptions
from kcl_spark.refused import Refused
from kcl_spark.source import KclDataSource


def connect(options: EngineOptions) -> SparkSession:
    """A session on the server, with the data source registered.

    Raises:
        Refused: the client's packages are missing.
    """
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
class Told:
    """What a query's writer was told, whoever keeps it.

    Args:
        name: of the query; None or empty: none.
        sink: name of the format; empty where it is a function.
        path: of the output.
        checkpoint_location: should not be there.
        has_trigger: whether one was set.
        ends: whether that one ends the query.
    """

    name: str | None
    sink: str
    path: str | None
    checkpoint_location: str | None
    has_trigger: bool
    ends: bool


def told_to_server(writer: DataStreamWriter) -> Told:
    """What a writer of Spark Connect was told."""
    proto = _message(writer)
    options = {name.lower(): value for name, value in proto.options.items()}
    trigger = proto.WhichOneof("trigger")
    return Told(
        name=proto.query_name or options.get("queryname"),
        sink="" if proto.HasField("foreach_batch") else proto.format,
        path=proto.path or options.get("path"),
        checkpoint_location=options.get("checkpointlocation"),
        has_trigger=trigger is not None,
        ends=trigger in {"available_now", "once"},
    )


def bind(writer: DataStreamWriter, context: QueryContext) -> DataStreamWriter:
    """Give a query's handler of batches its context; a function that is none of ours stays as it is."""
    proto = _message(writer)
    if not proto.HasField("foreach_batch"):
        return writer
    handler = cloudpickle.loads(proto.foreach_batch.python_function.command)
    if type(handler).__name__ != BatchHandler.__name__:
        return writer
    return writer.foreachBatch(BatchHandler(handler.function, context))


def _message(writer: DataStreamWriter) -> Any:
    return writer._write_proto  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way to ask
