"""The first example of docs/spark.md, on records of which one has milliseconds where seconds are meant."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from kcl_spark import decode
from kcl_spark.declared import by_name
from kcl_spark.outputs import ahead_s, watermark_ms
from kcl_spark.positions import QueryLog
from tests.documents.blocks import blocks_of
from tests.spark.daemon import ROOT

START = datetime(2026, 11, 26, 12, tzinfo=UTC)
IN_THE_YEAR_58873 = b'{"id": 99, "amount": 1000.0, "ts": 1795690600000}'
SCHEMA = """data binary, partition_key string, shard_id string, sequence_number string, sub_sequence_number long,
    approximate_arrival_timestamp timestamp"""

Order = tuple[float, float]
"""Seconds behind START, and amount."""


def examples(out: Path) -> Sequence[str]:
    page = "docs/spark.md"
    blocks = blocks_of((ROOT / page).read_text("utf-8"), page)
    return [each.body.replace('"out/', f'"{out}/') for each in blocks if each.language == "py"]


def land(spark: SparkSession, folder: Path, orders: Iterable[Order], *others: bytes) -> None:
    """One more file of records, each of which arrived a second after its time."""
    given = [
        (json.dumps({"id": 1, "amount": amount, "ts": f"{START + timedelta(seconds=at_s)}"}).encode(), at_s)
        for at_s, amount in orders
    ]
    newest_s = max(at_s for _, at_s in given)
    rows = [
        (bytearray(data), "a", "shardId-0", str(number), 0, START + timedelta(seconds=at_s + 1))
        for number, (data, at_s) in enumerate([*given, *((each, newest_s) for each in others)])
    ]
    spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(str(folder))


def run(spark: SparkSession, function: Any, records: Path, state: Path) -> None:
    stream = spark.readStream.schema(SCHEMA).parquet(str(records))
    for name, (_, writer) in by_name(function(stream, spark)).items():
        ready = writer.option("checkpointLocation", str(state / name)).trigger(availableNow=True)
        assert ready.start().awaitTermination(120)


def totals(rows: Iterable[Row]) -> dict[float, float]:
    return {(row.window.start.astimezone(UTC) - START).total_seconds(): row.total for row in rows}


def test_the_first_example_outlives_a_record_of_the_year_58873(spark: SparkSession, tmp_path: Path) -> None:
    pipeline, reading, *_ = examples(tmp_path / "out")
    names: dict[str, Any] = {"spark": spark}
    exec(pipeline, names)
    land(spark, tmp_path / "in", [(10, 1.0), (50, 2.0)], IN_THE_YEAR_58873)
    run(spark, names["orders"], tmp_path / "in", tmp_path / "state")
    land(spark, tmp_path / "in", [(55, 4.0), (70, 8.0), (90, 16.0), (130, 32.0)])
    run(spark, names["orders"], tmp_path / "in", tmp_path / "state")

    exec(reading, names)
    assert totals(names["totals"].collect()) == {0: 7.0, 60: 24.0, 120: 32.0}
    raw = spark.read.parquet(str(tmp_path / "out" / "raw"))
    assert [bytes(row._corrupt) for row in raw.where("_corrupt is not null").collect()] == [IN_THE_YEAR_58873]
    assert raw.where("_corrupt is null").count() == 6


def test_a_watermark_of_the_year_58873_is_found_in_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    def unguarded(records: DataFrame, _spark: SparkSession) -> list[Any]:
        rows = decode.json(records, "ts timestamp").withWatermark("ts", "2 minutes")
        return [
            rows.groupBy("ts").count().writeStream.queryName("by_time").format("noop").outputMode("append")
        ]

    land(spark, tmp_path / "in", [(10, 1.0)], IN_THE_YEAR_58873)
    run(spark, unguarded, tmp_path / "in", tmp_path / "state")
    checkpoint = tmp_path / "state" / "by_time"
    found = watermark_ms(spark, str(checkpoint))
    assert found == QueryLog(checkpoint).watermark_ms() == 1_795_690_600_000_000 - 120_000
    assert ahead_s(found, 1_795_690_600_000) == (found - 1_795_690_600_000) // 1000
    (looking,) = (each for each in examples(tmp_path) if "batchWatermarkMs" in each)
    names: dict[str, Any] = {"spark": spark, "checkpoint": str(checkpoint)}
    exec(looking, names)
    assert names["watermark_ms"] == found
    (checkpoint / "offsets" / "1").unlink()  # as after a crash before the next batch was planned
    assert watermark_ms(spark, str(checkpoint)) == QueryLog(checkpoint).watermark_ms() == found
