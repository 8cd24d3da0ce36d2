"""A Spark application over a landing log that is killed with all its processes: `python -m tests.spark.doomed_driver FOLDER POINT`.

POINT is `before-sink:N` or `after-sink:N`, the Nth write of a batch by `overwrite_batch`, or `-`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter

import kcl_spark
from kcl_spark.session import find_java


def doom(point: str) -> None:
    where, _, nth = point.partition(":")
    left = [int(nth)]
    save = DataFrameWriter.save

    def come_to(here: str) -> None:
        left[0] -= here == where
        if left[0] == 0:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    def doomed(self: DataFrameWriter, *arguments: Any, **named: Any) -> None:
        come_to("before-sink")
        save(self, *arguments, **named)
        come_to("after-sink")

    DataFrameWriter.save = doomed  # type: ignore[method-assign]


def main(folder: str, point: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(find_java(os.environ, Path(folder) / "java").home)
    if point != "-":
        doom(point)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    running = kcl_spark.run(
        "tests.spark.elsewhere:everything",
        landing=f"{folder}/log",
        checkpoint=f"{folder}/state",
        spark=spark,
        trigger="availableNow",
        options={"maxBytesPerTrigger": "20000"},
    )
    running.await_termination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
