"""The pipelines of the engine's tests; copied beside the daemon under test and loaded there as `jobs:NAME`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kcl_landing.control import pause
from kcl_spark import Batch, batch, pipeline, sinks

HOLD = Path("hold")
"""While this file is there, `checked` stops at the place that the file names and says so in `held`, until `go`."""


def out(name: str) -> str:
    """Where an output goes; absolute, as the driver may be elsewhere."""
    return str(Path("out", name).absolute())


def held(point: str) -> None:
    if HOLD.exists() and HOLD.read_text() == point:
        HOLD.rename("held")
        while not Path("go").exists():
            pause(0.1)


@pipeline
def two_sinks(records: DataFrame) -> Iterator[DataStreamWriter]:
    """The file sink, and the helper that replaces a batch; both stop where the test asks for it."""
    texts = records.select(records.data.cast("string").alias("text"), "shard_id", "sequence_number")
    yield texts.writeStream.queryName("files").format("parquet").option("path", out("files"))
    write = sinks.overwrite_batch(out("batches"))

    def checked(frame: DataFrame, batch_id: int) -> None:
        held("in_batch")
        write(frame, batch_id)
        held("after_sink")

    yield texts.writeStream.queryName("batches").foreachBatch(checked)


@pipeline
def windows(records: DataFrame) -> DataStreamWriter:
    """Records by minute of arrival and shard."""
    counted = (
        records.withWatermark("approximate_arrival_timestamp", "10 minutes")
        .groupBy(F.window("approximate_arrival_timestamp", "1 second"), "shard_id")
        .count()
    )
    return (
        counted.writeStream.queryName("windows")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch(out("windows")))
    )


@pipeline
def impatient(records: DataFrame) -> DataStreamWriter:
    """Records by second of arrival, of which none may be a second late."""
    arrived = "approximate_arrival_timestamp"
    counted = records.withWatermark(arrived, "1 second").groupBy(F.window(arrived, "1 second")).count()
    return (
        counted.writeStream.queryName("impatient")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch(out("impatient")))
    )


@pipeline
def patient_and_impatient(records: DataFrame) -> Iterator[DataStreamWriter]:
    yield windows(records)
    yield impatient(records)


@pipeline
def everything(records: DataFrame) -> Iterator[DataStreamWriter]:
    """The file sink, the helper that replaces a batch, and windows."""
    texts = records.select(records.data.cast("string").alias("text"), "shard_id", "sequence_number")
    yield texts.writeStream.queryName("files").format("parquet").option("path", out("files"))
    yield (texts.writeStream.queryName("batches").foreachBatch(sinks.overwrite_batch(out("batches"))))
    counted = (
        records.withWatermark("approximate_arrival_timestamp", "10 minutes")
        .groupBy(F.window("approximate_arrival_timestamp", "1 second"), "shard_id")
        .count()
    )
    yield (
        counted.writeStream.queryName("windows")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch(out("windows")))
    )


@pipeline
def keyed(records: DataFrame) -> Iterator[DataStreamWriter]:
    """Every record with its key and place, and a count of each key and window."""
    arrived = "approximate_arrival_timestamp"
    texts = records.select(
        "partition_key", "shard_id", "sequence_number", records.data.cast("string").alias("text")
    )
    yield texts.writeStream.queryName("rows").foreachBatch(sinks.overwrite_batch(out("rows")))
    counted = (
        records.withWatermark(arrived, "1 hour")
        .groupBy(F.window(arrived, "5 seconds"), "partition_key")
        .count()
    )
    yield (
        counted.writeStream.queryName("windows")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch(out("windows")))
    )


def named(records: DataFrame, *names: str) -> Iterator[DataStreamWriter]:
    """A query of each name, with an output of its own."""
    for name in names:
        yield (
            records.select(records.data.cast("string").alias("text"))
            .writeStream.queryName(name)
            .foreachBatch(sinks.overwrite_batch(out(name)))
        )


@pipeline
def one(records: DataFrame) -> Iterator[DataStreamWriter]:
    return named(records, "one")


@pipeline
def one_and_two(records: DataFrame) -> Iterator[DataStreamWriter]:
    return named(records, "one", "two")


@pipeline
def one_and_three(records: DataFrame) -> Iterator[DataStreamWriter]:
    return named(records, "one", "three")


@batch
def crowded(frame: DataFrame, _batch: Batch) -> None:
    """Writes to a disk that is full while there is a file of this name."""
    if not frame.isEmpty() and Path("full").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pipeline
def slow(records: DataFrame) -> DataStreamWriter:
    """As the rows of `keyed`; stops in a batch where the test asks for it."""
    write = sinks.overwrite_batch(out("rows"))
    rows = records.select(
        "partition_key", "shard_id", "sequence_number", records.data.cast("string").alias("text")
    )

    def checked(frame: DataFrame, batch_id: int) -> None:
        held("in_batch")
        write(frame, batch_id)
        held("after_sink")

    return rows.writeStream.queryName("rows").foreachBatch(checked)


@pipeline
def twins(records: DataFrame) -> Iterator[DataStreamWriter]:
    """Two queries that would have one state."""
    yield records.writeStream.queryName("rows").format("noop")
    yield records.select("shard_id").writeStream.queryName("rows").format("noop")


@pipeline
def into_database(records: DataFrame) -> Iterator[DataStreamWriter]:
    """Rows by shard and number, and of each key only the newest; the address is in the environment."""
    url, user = os.environ["KCL_TEST_JDBC"], "kcl"
    text = F.split(records.data.cast("string"), ":")
    rows = records.select("shard_id", text[1].cast("long").alias("number"), "partition_key")
    by_row = sinks.jdbc_upsert(url, "kcl_rows", ["shard_id", "number"], user=user)
    newest = sinks.jdbc_upsert(url, "kcl_newest", ["partition_key"], newest_by=["number"], user=user)

    def checked(frame: DataFrame, batch_id: int) -> None:
        by_row(frame, batch_id)
        held("after_sink")

    yield rows.writeStream.queryName("batches").foreachBatch(checked)
    yield rows.writeStream.queryName("newest").foreachBatch(newest)


@pipeline
def into_delta(records: DataFrame) -> DataStreamWriter:
    """A Delta table; stops where the test asks for it."""
    write = sinks.delta(out("delta"))

    def checked(frame: DataFrame, batch_id: int) -> None:
        write(frame, batch_id)
        held("after_sink")

    texts = records.select(records.data.cast("string").alias("text"))
    return texts.writeStream.queryName("batches").foreachBatch(checked)


@batch
def noted(frame: DataFrame, batch: Batch) -> None:
    """Notes what a batch function is told."""
    with Path("noted").open("a") as file:
        file.write(f"{batch.id} {batch.query} {batch.is_replay} {frame.count()} {sorted(batch.shards)}\n")
        file.flush()
        os.fsync(file.fileno())
    held("in_batch")


@batch(name="poisoned")
def failing(frame: DataFrame, batch: Batch) -> None:
    """Cannot take what it is given. The first batch may be empty: the relay is still on its way."""
    if not frame.isEmpty():
        raise ValueError(f"cannot digest batch {batch.id}")


@pipeline
def minutes(records: DataFrame) -> DataStreamWriter:
    """Records by minute of their own time and key; what comes a minute late is dropped by Spark."""
    text = F.split(records.data.cast("string"), "[|]")
    counted = (
        records.select(F.timestamp_millis(text[0].cast("long")).alias("ts"), "partition_key")
        .withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "1 minute"), "partition_key")
        .count()
    )
    return (
        counted.writeStream.queryName("minutes")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch(out("minutes")))
    )
