"""Refusals that keep records from getting lost without a word: state and outputs that do not belong together.

A file sink remembers the numbers of its finished batches beside its files. Under new state the numbers begin again, and
such a sink takes new batches for old ones and drops them. And two engines that write to one place remove each other's
files. So every output that is told by a path is marked with the state that writes it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import SparkSession

from kcl_spark.positions import Position, to_text

MARK: Final = "_kcl_spark.json"
_SINK_LOG: Final = "_spark_metadata"


class Refused(Exception):
    """Raised when the engine must not start or go on; the message says what to do."""


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
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
    configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
    folder = jvm.org.apache.hadoop.fs.Path(path)
    files = folder.getFileSystem(configuration)
    mark = jvm.org.apache.hadoop.fs.Path(folder, MARK)
    if files.exists(mark):
        with_stream = files.open(mark)
        try:
            told = json.loads(bytes(with_stream.readAllBytes()))
        finally:
            with_stream.close()
        if told != {"state": state_id, "query": query}:
            raise Refused(_belongs_to_another(path, query, told))
        return
    if is_new and files.exists(jvm.org.apache.hadoop.fs.Path(folder, _SINK_LOG)):
        raise Refused(_belongs_to_another(path, query, {"query": "unknown"}))
    stream = files.create(mark, True)
    try:
        stream.write(bytearray(json.dumps({"state": state_id, "query": query}).encode()))
    finally:
        stream.close()


def _belongs_to_another(path: str, query: str, told: dict[str, str]) -> str:
    return (
        f"query {query!r} would write to {path}, which is the output of query {told.get('query')!r} under other state "
        f"({told.get('state', 'no mark')}): batches would be dropped without a word. Give the query a path of its own; "
        f"where several hosts run, one for each host"
    )
