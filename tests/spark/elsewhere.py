"""A pipeline that runs on any Spark from 3.3, shipped to it as users ship theirs; it knows the tests only by a variable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from kcl_spark import Batch, batch, pipeline, sinks

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ARRIVED = "approximate_arrival_timestamp"


def out(name: str) -> str:
    return str(Path(os.environ.get("KCL_TEST_OUT", "out"), name).absolute())


@pipeline
def everything(records: DataFrame) -> Iterator[DataStreamWriter]:
    """The file sink, the helper that replaces a batch, and windows."""
    texts = records.select(records.data.cast("string").alias("text"), "shard_id", "sequence_number")
    yield texts.writeStream.queryName("files").format("parquet").option("path", out("files"))
    yield texts.writeStream.queryName("batches").foreachBatch(sinks.overwrite_batch(out("batches")))
    counted = records.withWatermark(ARRIVED, "1 day").groupBy(F.window(ARRIVED, "1 hour"), "shard_id").count()
    yield (
        counted.writeStream.queryName("windows")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch(out("windows")))
    )


@pipeline
def twins(records: DataFrame) -> Iterator[DataStreamWriter]:
    for _ in range(2):
        yield records.writeStream.queryName("same").format("noop")


@pipeline
def one_fails(records: DataFrame) -> Iterator[DataStreamWriter]:
    yield records.writeStream.queryName("sound").format("noop")
    yield records.writeStream.queryName("poisoned").foreachBatch(failing)


def failing(frame: DataFrame, number: int) -> None:
    raise ValueError(f"cannot digest batch {number} of {frame.count()}")


@batch
def noted(frame: DataFrame, batch: Batch) -> None:
    """Notes what a batch function is told."""
    with Path(out("noted")).open("a") as file:
        file.write(f"{batch.id} {batch.query} {batch.is_replay} {bool(batch.state)} {frame.count()}\n")
