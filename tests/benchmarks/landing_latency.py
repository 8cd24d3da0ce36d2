"""`python -m tests.benchmarks.landing_latency`: from the put of a record to its commit by a Spark that reads the landing log.

A daemon on local endpoints with 4 shards and windows of a second, 20 records a second and shard; Spark in a process of its own, a
query with `foreachBatch`. Committed is when Spark has written its commit log.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from kcl_local.demo.check import monotonic_s
from tests.benchmarks.latency import SHARDS, WAKE_S, put
from tests.process.daemon import application, run_daemon, wait_until
from tests.process.local import local_process

DAEMON: Final = {"landingWindowMillis": 1_000, "idleTimeBetweenReadsInMillis": "auto"}


def driver(folder: Path) -> None:
    """Spark's process: a line for each batch in `folder/batches`, until it is killed."""
    import kcl_spark_source  # only here

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    kcl_spark_source.register(spark)
    out = (folder / "batches").open("a", buffering=1)

    def note(frame: DataFrame, batch_id: int) -> None:
        puts = [row.data.decode() for row in frame.select("data").collect()]
        out.write(f"{batch_id} {' '.join(puts)}\n")

    stream = spark.readStream.format("kcl").load(str(folder / "log"))
    writer = stream.writeStream.foreachBatch(note).trigger(processingTime="200 milliseconds")
    writer.option("checkpointLocation", str(folder / "state")).start().awaitTermination()


def latencies(folder: Path, from_s: float = 0.0) -> Iterator[float]:
    """Of the records that were put at this time or later and are committed."""
    epoch_s = time.time() - monotonic_s()  # noqa: TID251 - dates of files
    if not (folder / "batches").exists():
        return
    for line in (folder / "batches").read_text().splitlines():
        batch, *puts = line.split()
        commit = folder / "state" / "commits" / batch
        if commit.exists():
            done_s = commit.stat().st_mtime - epoch_s
            yield from (done_s - float(each) for each in puts if float(each) >= from_s)


def measured(seconds: float) -> list[float]:
    with ExitStack() as stack:
        local = stack.enter_context(local_process())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        app = stack.enter_context(application(local, folder, "landing-latency", shards=SHARDS))
        file = Path(app.write_properties("worker", "none", {"landing": folder / "log", **DAEMON}))
        file = file if file.is_absolute() else folder / file
        lines = [each for each in file.read_text().splitlines() if not each.startswith("executableName")]
        file.write_text("\n".join(lines) + "\n")
        stack.enter_context(
            run_daemon(folder, "--properties", str(file), environment=local.environment, fresh=True)
        )
        wait_until((folder / "log" / "_kcl_landing.json").exists, "the lander has begun")
        spark = stack.enter_context(
            Popen([sys.executable, "-m", "tests.benchmarks.landing_latency", "driver", str(folder)])
        )
        stack.callback(spark.kill)
        count = put(app, WAKE_S)
        wait_until(lambda: len(list(latencies(folder))) >= count, "Spark has begun")
        from_s = monotonic_s()
        count += put(app, seconds)
        wait_until(lambda: len(list(latencies(folder))) >= count, "all records are committed")
        return list(latencies(folder, from_s))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure the time from the put of a record to its commit by Spark."
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    found = quantiles(measured(parser.parse_args().seconds), n=100)
    sys.stdout.write(
        json.dumps({"p50_s": round(found[49], 2), "p95_s": round(found[94], 2), "p99_s": round(found[98], 2)})
    )
    sys.stdout.write("\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "driver":
        driver(Path(sys.argv[2]))
    else:
        main()
