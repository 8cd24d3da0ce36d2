"""Windows over the arrival of all records of a landing log, with counts and sums: `python -m tests.spark.windowed OPTIONS.json`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from kcl_landing.control import pause
from kcl_spark_source import register

ARRIVED: Final = "approximate_arrival_timestamp"
WINDOW_S: Final = 2


def counted(records: DataFrame, delay: str) -> DataFrame:
    numbers = records.select(ARRIVED, F.col("data").cast("string").cast("long").alias("number"))
    return (
        numbers.withWatermark(ARRIVED, delay)
        .groupBy(F.window(ARRIVED, f"{WINDOW_S} seconds"), (F.col("number") % 4).alias("k"))
        .agg(F.count("*").alias("n"), F.sum("number").alias("sum"))
        .select(F.col("window.start").cast("long").alias("start"), "k", "n", "sum")
    )


def main(options_file: str) -> None:
    options: dict[str, Any] = json.loads(Path(options_file).read_text())
    out, told = Path(options["out"]), Path(options["progress"])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    register(spark)

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [row.asDict() for row in frame.collect()]
        whole = out / f"{batch_id}.json"
        whole.with_suffix(".new").write_text(json.dumps(rows))
        whole.with_suffix(".new").rename(whole)

    query = (
        counted(spark.readStream.format("kcl").load(options["landing"]), options["delay"])
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", options["state"])
        .trigger(processingTime="1 second")
        .start()
    )
    seen = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId > seen:
            seen = progress.batchId
            with told.open("a") as file:
                file.write(f"{json.dumps(json.loads(progress.json))}\n")
        pause(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
