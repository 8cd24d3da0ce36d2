"""Looking into a query that a pipeline declared and that is not started yet: its name, its sink, its path, its trigger.

Spark keeps these in private fields of its DataStreamWriter; they are read by Java's reflection, or where it is a client of
Spark Connect from its message (`connect`). Knows nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from kcl_spark.api import NotAPipeline
from kcl_spark.batches import is_connect
from kcl_spark.connect import Told, told_to_server

_ENDING_TRIGGERS = ("AvailableNow", "OneTime")
FILE_SINKS = frozenset({"parquet", "orc", "json", "csv", "text", "avro", "xml"})


@dataclass(frozen=True, slots=True)
class Declared:
    """What a writer was told.

    Args:
        name: of the query.
        sink: name of the format, in lower case; empty where it is a function.
        path: of the output; None where there is none.
        has_trigger: whether the pipeline has set one.
    """

    name: str
    sink: str
    path: str | None
    has_trigger: bool

    @property
    def is_file_sink(self) -> bool:
        """Whether Spark keeps a log of finished batches beside the files."""
        return self.sink in FILE_SINKS and self.path is not None


def declared(writer: DataStreamWriter) -> Declared:
    """Look into a writer.

    Raises:
        NotAPipeline: it has no name, or one that cannot name a folder.
    """
    told = told_to_server(writer) if is_connect(writer) else _told(writer)
    name = told.name
    if not name:
        raise NotAPipeline(
            "a query of the pipeline has no name; add .queryName('...'): its state belongs to the name"
        )
    if "/" in name or name.startswith("."):
        raise NotAPipeline(f"the query name {name!r} cannot name a folder; use letters, digits, - and _")
    if told.checkpoint_location:
        raise NotAPipeline(
            f"query {name!r} sets checkpointLocation; leave it out, the engine keeps the state"
        )
    if told.ends:
        raise NotAPipeline(
            f"query {name!r} sets a trigger that ends; leave it out and set sparkTrigger=availableNow in the properties file"
        )
    return Declared(name=name, sink=told.sink.lower(), path=told.path, has_trigger=told.has_trigger)


def _told(writer: DataStreamWriter) -> Told:
    inner: Any = writer._jwrite  # noqa: SLF001 - there is no public way to ask
    options = _field(inner, "extraOptions")
    sink = str(_field(inner, "source") or "")
    trigger = str(_field(inner, "trigger"))
    return Told(
        name=_option(options, "queryName"),
        sink="" if sink.lower() == "foreachbatch" else sink,
        path=_option(options, "path"),
        checkpoint_location=_option(options, "checkpointLocation"),
        has_trigger=trigger != "ProcessingTimeTrigger(0)",
        ends=trigger.startswith(_ENDING_TRIGGERS),
    )


def _field(inner: Any, name: str) -> Any:
    field = inner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(inner)


def _option(options: Any, name: str) -> str | None:
    found = options.get(name)
    return str(found.get()) if found.isDefined() else None
