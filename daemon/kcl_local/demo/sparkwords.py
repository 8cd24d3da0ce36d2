from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, StringType

from kcl_local.demo.text import words
from kcl_spark import pipeline, sinks

WINDOW_S: Final = 5


@pipeline
def counts(records: DataFrame) -> Iterator[DataStreamWriter]:
    split = F.udf(words, ArrayType(StringType()))
    counted = (
        records.withWatermark("approximate_arrival_timestamp", "1 hour")
        .select(F.explode(split("data")).alias("word"), "approximate_arrival_timestamp")
        .groupBy(F.window("approximate_arrival_timestamp", f"{WINDOW_S} seconds").alias("window"), "word")
        .count()
        .select(F.col("window.start").alias("start"), "word", "count")
    )
    yield (
        counted.writeStream.queryName("counts")
        .outputMode("update")
        .foreachBatch(sinks.overwrite_batch("out/counts"))
    )
    yield (
        records.select("shard_id", "sequence_number")
        .writeStream.queryName("seen")
        .format("parquet")
        .option("path", "out/seen")
    )
