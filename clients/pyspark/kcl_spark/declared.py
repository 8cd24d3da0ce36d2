"""What the writers of a pipeline say before they are started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle

from kcl_spark.api import BatchContext, BatchHandler, NotAPipeline, is_connect

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ENDING_TRIGGERS: Final = ("AvailableNow", "OneTime")
FILE_SINKS: Final = frozenset({"parquet", "orc", "json", "csv", "text", "avro", "xml"})


@dataclass(frozen=True)
class DeclaredQuery:
    name: str
    sink: str
    path: str | None
    checkpoint_location: str | None
    has_trigger: bool
    ends: bool


def declared(writer: DataStreamWriter) -> DeclaredQuery:
    """NotAPipeline: no valid name, or a setting that the engine makes."""
    about = _declared_on_server(writer) if is_connect(writer) else _declared_here(writer)
    name = about.name
    if not name:
        raise NotAPipeline(
            "a query of the pipeline has no name; add .queryName('...'): its state belongs to the name"
        )
    if "/" in name or name.startswith("."):
        raise NotAPipeline(f"the query name {name!r} cannot name a folder; use letters, digits, - and _")
    if about.checkpoint_location:
        raise NotAPipeline(
            f"query {name!r} sets checkpointLocation; leave it out, the engine keeps the state"
        )
    if about.ends:
        raise NotAPipeline(
            f"query {name!r} sets a trigger that ends; leave it out and set sparkTrigger=availableNow in the properties file"
        )
    return about


def by_name(writers: Iterable[DataStreamWriter]) -> dict[str, tuple[DeclaredQuery, DataStreamWriter]]:
    """NotAPipeline: two would share their state."""
    found: dict[str, tuple[DeclaredQuery, DataStreamWriter]] = {}
    for writer in writers:
        about = declared(writer)
        if about.name in found:
            raise NotAPipeline(
                f"two queries of the pipeline have the name {about.name!r}; state belongs to a name: give each its own"
            )
        found[about.name] = (about, writer)
    return found


def file_sink_path(about: DeclaredQuery) -> str | None:
    return about.path if about.sink in FILE_SINKS else None


def _declared_on_server(writer: DataStreamWriter) -> DeclaredQuery:
    proto = _message(writer)
    options = {name.lower(): value for name, value in proto.options.items()}
    trigger = proto.WhichOneof("trigger")
    return DeclaredQuery(
        name=proto.query_name or options.get("queryname", ""),
        sink="" if proto.HasField("foreach_batch") else proto.format.lower(),
        path=proto.path or options.get("path"),
        checkpoint_location=options.get("checkpointlocation"),
        has_trigger=trigger is not None,
        ends=trigger in {"available_now", "once"},
    )


def _declared_here(writer: DataStreamWriter) -> DeclaredQuery:
    inner: Any = writer._jwrite  # noqa: SLF001 - there is no public way to ask
    options = _field(inner, "extraOptions")
    sink = str(_field(inner, "source") or "").lower()
    trigger = str(_field(inner, "trigger"))
    return DeclaredQuery(
        name=_option(options, "queryName") or "",
        sink="" if sink == "foreachbatch" else sink,
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


def bind(writer: DataStreamWriter, context: BatchContext) -> DataStreamWriter:
    """With Connect the handler runs on the server: its context goes along."""
    proto = _message(writer)
    if not proto.HasField("foreach_batch"):
        return writer
    handler = cloudpickle.loads(proto.foreach_batch.python_function.command)
    if type(handler).__name__ != BatchHandler.__name__:
        return writer
    return writer.foreachBatch(BatchHandler(handler.function, context))


def _message(writer: DataStreamWriter) -> Any:
    return writer._write_proto  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way to ask
