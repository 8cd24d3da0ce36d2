"""Spark reading a landing log: `python -m tests.spark.bench_landed [--megabytes 3000]`.

The data source `kcl` beside Spark's own reading of the same Parquet files, into noop, in one run that takes turns: wall
time and seconds of CPU of all processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import kcl_spark_source
from kcl_landing.log import Footer
from kcl_landing.records import SCHEMA
from kcl_landing.segments import encode
from tests.spark.bench import session
from tests.spark.landed import BASE, BEGIN_MS, STREAM, Landed, name

SHARDS = 4
ROWS = 60_000
"""A segment of 64 MiB in Arrow."""
BATCH_BYTES = 256 * 1024 * 1024


def fill(landed: Landed, megabytes: int) -> float:
    """Records of 1 KiB of which half is noise; MB of payload."""
    count = max(SHARDS, megabytes * 1_000_000 // (ROWS * 1024))
    words = os.urandom(512 * 64)
    noise = os.urandom(512 * ROWS)
    data = [
        words[row % 64 * 512 : row % 64 * 512 + 512] + noise[row * 512 : row * 512 + 512]
        for row in range(ROWS)
    ]
    for number in range(count):
        shard = number % SHARDS
        known = landed.entries.setdefault(shard, [])
        first, at_ms = len(known) * ROWS, BEGIN_MS + len(known) * 1000
        table = pa.table(
            [
                pa.array(data, pa.binary()),
                pa.array([f"key-{row % 1000}" for row in range(ROWS)]),
                pa.array([STREAM] * ROWS),
                pa.array([name(shard)] * ROWS),
                pa.array([str(BASE + first + row) for row in range(ROWS)]),
                pa.array([0] * ROWS, pa.int64()),
                pa.array([at_ms * 1000 + row * 16 for row in range(ROWS)], pa.timestamp("us", tz="UTC")),
            ],
            schema=SCHEMA,
        )
        before, last = known[-1].last if known else "-1/0", f"{BASE + first + ROWS - 1}/0"
        footer = Footer(
            "app", STREAM, name(shard), len(known), len(known), before, last, ROWS, at_ms, at_ms + 990, 1, "w"
        )
        known.append(landed.store(footer, bytes(encode(landed.info, table.to_batches(), footer))))
        landed.manifest(shard)
    return count * ROWS * 1024 / 1e6


def cpu_s() -> float:
    """Of this process and all below it, now or before."""
    whole = psutil.Process()
    times = [each.cpu_times() for each in [whole, *whole.children(recursive=True)]]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def timed(run: Callable[[], object]) -> tuple[float, float]:
    before, started_s = cpu_s(), time.perf_counter()
    run()
    return time.perf_counter() - started_s, cpu_s() - before


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def drain(frame: DataFrame) -> None:
    with tempfile.TemporaryDirectory() as state:
        writer = frame.writeStream.format("noop").option("checkpointLocation", state)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()


def cases(spark: SparkSession, landed: Landed) -> dict[str, Callable[[], object]]:
    files = str(landed.folder / STREAM)
    size = max(each.size_bytes for its in landed.entries.values() for each in its)
    plain = spark.read.option("recursiveFileLookup", "true").parquet(files)
    stream: Any = (
        spark.readStream.schema(plain.schema)
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", str(max(1, BATCH_BYTES // size)))
        .parquet(files)
    )
    kcl = spark.read.format("kcl").load(str(landed.folder))
    live = (
        spark.readStream.format("kcl").option("maxBytesPerTrigger", str(BATCH_BYTES)).load(str(landed.folder))
    )
    return {
        "batch, Spark's Parquet": lambda: noop(plain),
        "batch, kcl": lambda: noop(kcl),
        "stream, Spark's files": lambda: drain(stream),
        "stream, kcl": lambda: drain(live),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kcl-bench-") as folder:
        landed = Landed(Path(folder, "log"))
        size = fill(landed, asked.megabytes)
        spark = session(Path(folder))
        kcl_spark_source.register(spark)
        took: dict[str, list[tuple[float, float]]] = {}
        for _ in range(asked.rounds + 1):
            for what, run in cases(spark, landed).items():
                took.setdefault(what, []).append(timed(run))
                sys.stderr.write(f"{what}: {took[what][-1][0]:.2f} s, {took[what][-1][1]:.2f} s of CPU\n")
        report(size, {what: its[1:] for what, its in took.items()})
        spark.stop()


def report(size: float, took: dict[str, list[tuple[float, float]]]) -> None:
    wall = {what: statistics.median(each[0] for each in its) for what, its in took.items()}
    cpu = {what: statistics.median(each[1] for each in its) for what, its in took.items()}
    for what, its in took.items():
        best = min(each[0] for each in its)
        sys.stdout.write(
            f"{what:24} {size / wall[what]:6.0f} MB/s (best {size / best:.0f}), {1000 * cpu[what] / size:5.2f} CPU-s/GB\n"
        )
    for ours, theirs in (("batch, kcl", "batch, Spark's Parquet"), ("stream, kcl", "stream, Spark's files")):
        ratio, work = wall[theirs] / wall[ours], cpu[theirs] / cpu[ours]
        sys.stdout.write(
            f"{ours}: {100 * ratio:.0f} % of Spark's own (at least 90), by CPU {100 * work:.0f} %\n"
        )


if __name__ == "__main__":
    main()
