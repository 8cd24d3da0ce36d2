"""The SQL of docs/landing.md over the data source `kcl`."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import kcl_spark_source
from tests.spark.daemon import ROOT
from tests.spark.landed import BEGIN_MS, Landed

BUCKET = "s3://my-bucket/landing"


def statements() -> list[str]:
    text = (ROOT / "docs" / "landing.md").read_text("utf-8")
    after = text.partition("### SQL with the data source")[2].partition("```sql\n")[2].partition("```")[0]
    return [each.strip() for each in after.split(";") if each.strip()]


def test_a_view_and_a_table_function_read_the_log(spark: SparkSession, tmp_path: Path) -> None:
    log = Landed(tmp_path / "log")
    for second in range(4):
        log.add(0, at_s=60 * second)
    kcl_spark_source.register(spark)
    view, function, query = statements()
    assert BUCKET in view
    spark.sql(view.replace(BUCKET, str(log.folder)))
    try:
        assert spark.table("orders").count() == 40
        spark.sql(function)
        since = f"timestamp_millis({BEGIN_MS + 120_000})"
        counted = spark.sql(query.replace("TIMESTAMP '2026-11-22 10:00:00'", since)).collect()
        assert [(row.shard_id, row.records) for row in counted] == [("shardId-000000000000", 20)]
    finally:
        spark.sql("DROP TEMPORARY FUNCTION IF EXISTS read_kcl")
        spark.sql("DROP VIEW orders")
