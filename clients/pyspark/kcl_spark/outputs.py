"""Marks on outputs: which query writes them, under which state.

With a new checkpoint batch numbers begin anew, and a file sink silently drops new batches with old numbers. Two
queries with one output remove each other's files. So an output with the mark of another state is refused.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import Any, Final, Protocol

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.utils import AnalysisException  # type: ignore[attr-defined]  # where Spark 3.3 has it, too

from kcl_spark.api import is_connect

MARK: Final = "_kcl_spark.json"
_SINK_LOG: Final = "_spark_metadata"
_BATCH_0: Final = "batch_id=0"
_UNKNOWN: Final = {"query": "unknown"}
_AHEAD_MS: Final = 120_000


class OutputTaken(Exception): ...


class Files(Protocol):
    """Small texts in any file system of Spark."""

    def read(self, path: str) -> str | None: ...
    def exists(self, path: str) -> bool: ...
    def has_files(self, folder: str) -> bool: ...
    def write(self, path: str, text: str) -> None: ...


def files_of(spark: SparkSession) -> Files:
    return _RemoteFiles(spark) if is_connect(spark) else _HadoopFiles(spark)


def claim_path(spark: SparkSession, path: str, *, state_id: str, query: str, is_new: bool) -> None:
    """OutputTaken: it belongs to another query or state.

    `is_new`: no batch is planned, so the output must have none.
    """
    files, mark = files_of(spark), f"{path}/{MARK}"
    wanted = {"state": state_id, "query": query}
    reported = _note(files.read(mark))
    if is_new and reported in (None, wanted) and _has_batches(files, path):
        reported = {**(reported or _UNKNOWN), "state": "gone"}
    if reported is None:
        files.write(mark, json.dumps(wanted))
    elif reported != wanted:
        raise OutputTaken(
            f"query {query!r} would write to {path}, which is the output of query {reported.get('query')!r} under other state "
            f"({reported.get('state', 'no mark')}): batches would be dropped without a word. Give the query a path of its own; "
            f"where several hosts run, one for each host"
        )


def _has_batches(files: Files, path: str) -> bool:
    return files.exists(f"{path}/{_BATCH_0}") or files.has_files(f"{path}/{_SINK_LOG}")


def state_of(files: Files, checkpoint: str) -> str:
    """Lost with the checkpoint folder, as the batch numbers are."""
    note = f"{checkpoint}/{MARK}"
    reported = _note(files.read(note))
    if reported is None or "state" not in reported:
        reported = {"state": os.urandom(12).hex()}
        files.write(note, json.dumps(reported))
    return reported["state"]


def watermark_ms(spark: SparkSession, checkpoint: str) -> int:
    folders = [
        each for log in ("offsets", "commits") if files_of(spark).exists(each := f"{checkpoint}/{log}")
    ]
    found = [F.get_json_object("value", f"$.{name}") for name in ("batchWatermarkMs", "nextBatchWatermarkMs")]
    ((newest_ms,),) = spark.read.text(folders).agg(F.max(F.coalesce(*found).cast("long"))).collect()
    return int(newest_ms or 0)


def ahead_s(watermark_ms: int, now_ms: int) -> int | None:
    """None: hardly."""
    return (watermark_ms - now_ms) // 1000 if watermark_ms > now_ms + _AHEAD_MS else None


def _note(text: str | None) -> dict[str, str] | None:
    return None if text is None else dict(json.loads(text)) if text.strip() else dict(_UNKNOWN)


class _HadoopFiles:
    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._java = context._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        self._conf = context._jsc.hadoopConfiguration()  # noqa: SLF001

    def read(self, path: str) -> str | None:
        if not self.exists(path):
            return None
        place, files = self._at(path)
        with closing(files.open(place)) as stream:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def exists(self, path: str) -> bool:
        place, files = self._at(path)
        return bool(files.exists(place))

    def has_files(self, folder: str) -> bool:
        place, files = self._at(folder)
        return bool(files.exists(place) and len(files.listStatus(place)))

    def write(self, path: str, text: str) -> None:
        place, files = self._at(path)
        with closing(files.create(place, True)) as stream:
            stream.write(bytearray(text.encode()))

    def _at(self, path: str) -> Any:
        place = self._java.org.apache.hadoop.fs.Path(path)
        return place, place.getFileSystem(self._conf)


class _RemoteFiles:
    """On a Spark Connect server: small text tables."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def read(self, path: str) -> str | None:
        if not self.exists(path):
            return None
        return "\n".join(row.value for row in self._spark.read.text(path).collect())

    def exists(self, path: str) -> bool:
        try:
            return bool(self._spark.read.text(path).schema)
        except AnalysisException as error:
            condition = getattr(error, "getCondition", error.getErrorClass)()
            if condition != "PATH_NOT_FOUND":
                raise
            return False

    def has_files(self, folder: str) -> bool:
        return bool(self.read(folder))

    def write(self, path: str, text: str) -> None:
        frame = self._spark.createDataFrame([(text,)], "value string").coalesce(1)
        frame.write.mode("overwrite").text(path)
