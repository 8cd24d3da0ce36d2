from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import kcl_spark
from kcl_spark import pipeline

OUT = "KCL_DEMO_OUT"


@pipeline
def seen(records: DataFrame) -> Iterator[DataStreamWriter]:
    yield (
        records.select("shard_id", "sequence_number")
        .writeStream.queryName("seen")
        .format("parquet")
        .option("path", os.environ[OUT])
    )


def main(options_file: str) -> None:
    options: dict[str, Any] = orjson.loads(Path(options_file).read_bytes())
    os.environ[OUT] = options["out"]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    running = kcl_spark.run(
        seen, landing=options["landing"], checkpoint=options["state"], trigger="1 second", spark=spark
    )
    running.await_termination()


if __name__ == "__main__":
    main(sys.argv[1])
