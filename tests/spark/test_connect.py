"""Spark Connect without a server: looking into queries, and handlers of batches that take their context with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.connect.proto import WriteStreamOperationStart

from kcl_spark.api import Batch, BatchHandler, NotAPipeline, QueryContext, is_connect
from kcl_spark.declared import bind, declared, file_sink_path
from kcl_spark.positions import QueryLog
from tests.spark.parts import SHARD, at, plan, positions

seen: list[Batch] = []


def note(_frame: object, batch: Batch) -> None:
    seen.append(batch)


class Writer:
    """A writer of Spark Connect, as far as its message goes."""

    def __init__(self) -> None:
        self._write_proto = WriteStreamOperationStart()

    def foreachBatch(self, function: Any) -> Writer:  # noqa: N802 - Spark's name
        self._write_proto.foreach_batch.python_function.command = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]  # as Spark
        return self


Writer.__module__ = "pyspark.sql.connect.streaming.readwriter"


def writer(**fields: Any) -> Any:
    made = Writer()
    for name, value in fields.items():
        if name == "options":
            made._write_proto.options.update(value)
        else:
            setattr(made._write_proto, name, value)
    return made


def test_a_declared_query_is_looked_into_by_its_message() -> None:
    about = declared(writer(query_name="raw", format="parquet", options={"path": "out"}))
    assert (about.name, about.sink, about.path, about.has_trigger) == ("raw", "parquet", "out", False)
    assert file_sink_path(about) == "out"
    assert declared(writer(query_name="n", processing_time_interval="1 minute")).has_trigger
    with pytest.raises(NotAPipeline, match="sparkTrigger=availableNow"):
        declared(writer(query_name="n", available_now=True))
    with pytest.raises(NotAPipeline, match="has no name"):
        declared(writer(format="noop"))
    with pytest.raises(NotAPipeline, match="leave it out"):
        declared(writer(query_name="n", options={"checkpointLocation": "x"}))


def test_a_handler_is_told_of_its_batch_where_it_runs(tmp_path: Path) -> None:
    plan(tmp_path, 0, positions({SHARD: 5}), committed=True)
    plan(tmp_path, 1, positions({SHARD: 9}), committed=False)
    context = QueryContext("raw", QueryLog(tmp_path), "state", planned_before=1)
    declared_one = writer(query_name="raw").foreachBatch(BatchHandler(note))
    assert declared(declared_one).sink == ""
    bound: Any = bind(declared_one, context)
    on_the_server = cloudpickle.loads(bound._write_proto.foreach_batch.python_function.command)
    frame: Any = Writer()
    assert is_connect(frame)
    on_the_server(frame, 1)
    assert seen.pop() == Batch(1, "raw", {SHARD: (at(5), at(9))}, is_replay=True, state="state")


def test_a_function_of_the_pipeline_stays_as_it_is() -> None:
    context = QueryContext("raw", QueryLog(Path("/nowhere")), "s", None)
    for given in (
        writer(query_name="raw").foreachBatch(print),
        writer(query_name="raw", format="noop"),
    ):
        before: bytes = given._write_proto.SerializeToString()
        bind(given, context)
        assert given._write_proto.SerializeToString() == before
