"""Speed of the Spark client: `python -m tests.spark.bench [--megabytes 400] [--seconds 20]`, or `make bench-spark`.

A backlog through the source into two sinks, beside Spark's own parquet file source on the same bytes in the same run; the
way from a line of the protocol to a segment; and the time from a record's arrival to its commit under a steady load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from kcl_landing.control import monotonic_s, pause
from kcl_landing.positions import START
from kcl_landing.records import RecordBatch, read_line, to_arrow
from kcl_spark.positions import QueryLog
from kcl_spark.segments import list_segments
from kcl_spark.session import ARENAS, find_java, lean_home, small_jvm
from kcl_spark.source import KclDataSource
from kcl_spark.spool import Spool
from kcl_spark.stores import FolderStore
from tests.spark.memory import measured
from tests.spark.parts import ME, at, folder_of, record, taken

SHARDS = 4
ROWS = 4_000
RECORD_BYTES = 1_024
BATCH_BYTES = 64 * 1024 * 1024
RATE = 4_000
"""Records a second and shard, of the steady load."""


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    name: str
    value: float
    unit: str
    bound: float | None = None
    at_least: bool = True

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        wanted = "" if self.bound is None else f"  ({sign} {self.bound:g})"
        return f"{self.name:42} {self.value:8.2f} {self.unit}{wanted}"


def session(folder: Path) -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java(os.environ, folder / "java").home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(lean_home(folder / "spark-home"))
    os.environ.setdefault(*ARENAS)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for name, value in small_jvm("1g", {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KclDataSource)
    return spark


def rows(shard_id: str, first: int, count: int = ROWS) -> RecordBatch:
    data = os.urandom(RECORD_BYTES // 2) * 2
    return to_arrow(
        [taken(record(10**55 + number, data=data)) for number in range(first, first + count)],
        stream="words",
        shard_id=shard_id,
    )


def fill(spool: Spool, files: Path, megabytes: int) -> float:
    """The same records as segments and as parquet files; MB of payload."""
    per_shard = megabytes * 1_000_000 // SHARDS // (ROWS * RECORD_BYTES)
    files.mkdir()
    for number in range(SHARDS):
        shard_id = f"shardId-{number:012}"
        spool.grant(shard_id, START, ME)
        for part in range(per_shard):
            batch = rows(shard_id, part * ROWS)
            spool.add(shard_id, batch, at(10**55 + (part + 1) * ROWS - 1), ME)
            parquet.write_table(
                pa.Table.from_batches([batch]), files / f"{part:06}-{number}.parquet", compression="none"
            )
        spool.flush(shard_id)
    return per_shard * SHARDS * ROWS * RECORD_BYTES / 1e6


def drain(frame: DataFrame, folder: Path, sink: str) -> float:
    """Seconds for everything that is there; from the start of the query."""
    writer = frame.writeStream.option("checkpointLocation", str(folder / "state")).format(sink)
    if sink == "parquet":
        writer = writer.option("path", str(folder / "out"))
    started_s = monotonic_s()
    query = writer.start()
    query.processAllAvailable()
    took_s = monotonic_s() - started_s
    query.stop()
    return took_s


def backlog(spark: SparkSession, folder: Path, megabytes: int) -> Iterator[Figure]:
    spool = Spool(FolderStore(folder / "spool"), max_bytes=10**12)
    size = fill(spool, folder / "files", megabytes)
    segments = [each for shard in list_segments(folder_of(spool)).values() for each in shard]
    per_batch = max(1, BATCH_BYTES // (sum(each.size_bytes for each in segments) // len(segments)))
    ours = (
        spark.readStream.format("kcl_spool")
        .option("spool", str(folder_of(spool)))
        .option("maxTasks", "2")
        .load()
    )
    theirs = (
        spark.readStream.schema(ours.schema)
        .option("maxFilesPerTrigger", str(per_batch))
        .parquet(str(folder / "files"))
    )
    bounds = {"noop": 90.0, "parquet": 50.0}
    for sink, bound in bounds.items():
        # Who goes first would pay for loading and compiling the sink, which an engine that runs for days pays once.
        drain(ours, folder / f"warm-{sink}", sink)
        speed = size / drain(ours, folder / f"ours-{sink}", sink)
        plain = size / drain(theirs, folder / f"theirs-{sink}", sink)
        yield Figure(f"backlog to {sink}", speed, "MB/s", bound)
        yield Figure(f"  Spark's parquet file source to {sink}", plain, "MB/s")
        yield Figure("  ratio", 100 * speed / plain, "%", 45)


def ingest() -> Figure:
    line = orjson.dumps(
        {
            "action": "processRecords",
            "records": [record(number, data=os.urandom(RECORD_BYTES)) for number in range(10_000)],
        }
    )
    started_s = monotonic_s()
    for _ in range(5):
        to_arrow(read_line(line).records, stream="words", shard_id="shardId-000000000000")
    return Figure(
        "a line to Arrow, one core", 5 * 10_000 * RECORD_BYTES / 1e6 / (monotonic_s() - started_s), "MB/s"
    )


def trickle(spark: SparkSession, folder: Path, seconds: float) -> Iterator[Figure]:
    """A record arrives in the spool; until its batch is in Spark's commit log."""
    spool = Spool(FolderStore(folder / "trickle"), max_bytes=10**12)
    frame = (
        spark.readStream.format("kcl_spool")
        .option("spool", str(folder_of(spool)))
        .option("maxTasks", "2")
        .load()
    )
    writer = frame.writeStream.option("checkpointLocation", str(folder / "trickle-state")).format("noop")
    query = writer.trigger(processingTime="0.2 seconds").start()
    log = QueryLog(folder / "trickle-state")
    arrived: dict[tuple[str, int], float] = {}
    took_s: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set() or arrived:
            committed = log.read().committed
            now_s = monotonic_s()
            there = [key for key in list(arrived) if committed.get(key[0], START) >= at(key[1])]
            took_s.extend(now_s - arrived.pop(key) for key in there)
            spool.flush_aged()
            pause(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started_s = monotonic_s()
    step = 0
    for number in range(SHARDS):
        spool.grant(f"shardId-{number:012}", START, ME)
    while (now_s := monotonic_s()) - started_s < seconds:
        for number in range(SHARDS):
            shard_id = f"shardId-{number:012}"
            batch = rows(shard_id, step * RATE // 4, RATE // 4)
            last = 10**55 + (step + 1) * RATE // 4 - 1
            arrived[shard_id, last] = monotonic_s()
            spool.add(shard_id, batch, at(last), ME)
        step += 1
        pause(max(0.0, 0.25 - (monotonic_s() - now_s)))
    done.set()
    watcher.join(120)
    query.stop()
    steady = took_s[len(took_s) // 5 :]  # the first batches start Spark's workers
    cut = statistics.quantiles(steady, n=20)
    yield Figure("trickle, arrival to commit, p50", cut[9], "s", 0.6, at_least=False)
    yield Figure("trickle, arrival to commit, p95", cut[18], "s", 1.0, at_least=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kcl-bench-") as name:
        folder = Path(name)
        sys.stdout.write(f"{ingest()}\n")
        spark = session(folder)
        for figures in (backlog(spark, folder, asked.megabytes), trickle(spark, folder, asked.seconds)):
            for figure in figures:
                sys.stdout.write(f"{figure}\n")
                sys.stdout.flush()
        spark.stop()
        # Here, as the session has named homes of Java and Spark in this folder to all processes that come after it.
        highest_mb, ready_s = measured()
    for figure in (
        Figure("engine with two queries, at its highest", highest_mb, "MB", 1_400, at_least=False),
        Figure("  from its start until it takes records", ready_s, "s"),
    ):
        sys.stdout.write(f"{figure}\n")


if __name__ == "__main__":
    main()
