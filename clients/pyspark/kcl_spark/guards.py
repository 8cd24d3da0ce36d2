"""Refusals that keep records from getting lost without a word: state and outputs that do not belong together.

A file sink remembers the numbers of its finished batches beside its files. Under new state the numbers begin again, and
such a sink takes new batches for old ones and drops them. And two engines that write to one place remove each other's
files. So every output that is told by a path is marked with the state that writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from kcl_spark.batches import is_connect
from kcl_spark.positions import Position, to_text
from kcl_spark.refused import Refused

MARK: Final = "_kcl_spark.json"
_SINK_LOG: Final = "_spark_metadata"
_UNKNOWN: Final = {"query": "unknown"}


def refuse_old_checkpoints(shard_id: str, stored: Position, *, state: str) -> Refused:
    """The error for new state under a lease that was checkpointed."""
    return Refused(
        f"the state folder {state} is new, but {shard_id} has the checkpoint {to_text(stored)}: the state that belongs to "
        "it is elsewhere or lost. Bring it back (sparkStateDir), or set sparkStateReset=true to begin with new state from "
        "the stored checkpoints, with new output paths; also for a host that joins others"
    )


def claim_path(spark: SparkSession, path: str, *, state_id: str, query: str, is_new: bool) -> None:
    """Mark an output as written by a query of this state.

    Args:
        spark: for the file system that the path names.
        path: of the output.
        state_id: of our state.
        query: that writes there.
        is_new: whether the query has not committed any batch yet.

    Raises:
        Refused: it is another's, or of an earlier state.
    """
    output = _RemoteOutput(spark, path) if is_connect(spark) else _Output(spark, path)
    wanted = {"state": state_id, "query": query}
    told = output.mark()
    if told is None:
        if is_new and output.has_sink_log():
            raise Refused(_belongs_to_another(path, query, _UNKNOWN))
        output.write_mark(wanted)
    elif told != wanted:
        raise Refused(_belongs_to_another(path, query, told))


class _Output:
    """An output, by Hadoop's file systems in the driver."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001 - the only way to Hadoop's file systems
        self._folder = self._path(path)
        self._files = self._folder.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001

    def mark(self) -> dict[str, str] | None:
        mark = self._path(self._folder, MARK)
        if not self._files.exists(mark):
            return None
        stream = self._files.open(mark)
        try:
            told: dict[str, str] = json.loads(bytes(stream.readAllBytes()))
        finally:
            stream.close()
        return told

    def has_sink_log(self) -> bool:
        return bool(self._files.exists(self._path(self._folder, _SINK_LOG)))

    def write_mark(self, mark: Mapping[str, str]) -> None:
        stream = self._files.create(self._path(self._folder, MARK), True)
        try:
            stream.write(bytearray(json.dumps(mark).encode()))
        finally:
            stream.close()


class _RemoteOutput:
    """An output, by what a server of Spark Connect can do: there the mark is a small table of text."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def mark(self) -> dict[str, str] | None:
        rows = self._rows(MARK)
        if rows is None:
            return None
        return dict(json.loads(rows[0])) if rows else dict(_UNKNOWN)

    def has_sink_log(self) -> bool:
        return self._rows(_SINK_LOG) is not None

    def write_mark(self, mark: Mapping[str, str]) -> None:
        frame = self._spark.createDataFrame([(json.dumps(mark),)], "value string").coalesce(1)
        frame.write.mode("overwrite").text(f"{self._path}/{MARK}")

    def _rows(self, name: str) -> list[str] | None:
        """The lines of a hidden text; None where there is none."""
        try:
            return [row.value for row in self._spark.read.text(f"{self._path}/{name}").collect()]
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return None


def _belongs_to_another(path: str, query: str, told: dict[str, str]) -> str:
    return (
        f"query {query!r} would write to {path}, which is the output of query {told.get('query')!r} under other state "
        f"({told.get('state', 'no mark')}): batches would be dropped without a word. Give the query a path of its own; "
        f"where several hosts run, one for each host"
    )
