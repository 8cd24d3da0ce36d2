"""A pipeline that runs on any Spark from 3.3, shipped to it as users ship theirs; the outputs' folder is in its name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.streaming import DataStreamWriter

from kcl_spark import batch, pipeline, sinks

OUT = os.environ.get("KCL_TEST_OUT", str(Path("out").absolute()))


@pipeline
def everything(records: DataFrame) -> Iterator[DataStreamWriter]:
    """The file sink, the helper that replaces a batch, and windows."""
    texts = records.select(records.data.cast("string").alias("text"), "shard_id", "sequence_number")
    yield texts.writeStream.queryName("files").format("parquet").option("path", f"{OUT}/files")
    yield texts.writeStream.queryName("batches").foreachBatch(sinks.overwrite_batch(f"{OUT}/batches"))
    arrived = "approximate_arrival_timestamp"
    counted = records.withWatermark(arrived, "1 day").groupBy(F.window(arrived, "1 hour"), "shard_id").count()
    yield (
        counted.writeStream.queryName("windows")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch(f"{OUT}/windows"))
    )


@pipeline
def twins(records: DataFrame) -> Iterator[DataStreamWriter]:
    for _ in range(2):
        yield records.writeStream.queryName("same").format("noop")


@batch(name="poisoned")
def failing(frame: DataFrame, batch: object) -> None:
    raise ValueError("cannot digest this")
