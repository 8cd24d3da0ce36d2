"""The SQL of docs/landing.md over the data source `kcl`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import kcl_spark_source
from tests.spark.daemon import ROOT
from tests.spark.landed import BEGIN_MS, Landed, name

BUCKET = "s3://my-bucket/landing"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def statements() -> list[str]:
    text = (ROOT / "docs" / "landing.md").read_text("utf-8")
    after = text.partition("### From SQL")[2].partition("```sql\n")[2].partition("```")[0]
    return [each.strip() for each in after.split(";") if each.strip()]


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Generator[Landed, None, None]:
    """Two shards, four minutes."""
    log = Landed(tmp_path / "log")
    for minute in range(4):
        log.add(0, at_s=60 * minute)
        log.add(1, 5, at_s=60 * minute)
    kcl_spark_source.register(spark)
    yield log
    spark.sql("DROP TEMPORARY FUNCTION IF EXISTS read_kcl")
    spark.sql("DROP VIEW IF EXISTS since_ten")
    spark.sql("DROP TABLE IF EXISTS orders")
    spark.conf.unset(PUSHDOWN)


def counted(spark: SparkSession, statement: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.sql(statement).collect())


def test_a_table_a_view_and_a_table_function_read_the_log(spark: SparkSession, log: Landed) -> None:
    """A table shows what is there now, a view what was there when it was read first."""
    table, options, view, function, query = (
        each.replace(BUCKET, str(log.folder))
        .replace("2026-11-22T10:00:00Z", str(BEGIN_MS + 120_000))
        .replace("TIMESTAMP '2026-11-22 10:00:00'", f"timestamp_millis({BEGIN_MS + 120_000})")
        for each in statements()
    )
    spark.sql(table)
    assert counted(spark, "SELECT count(*) FROM orders") == [(60,)]
    assert counted(spark, options) == [(name(0), 20), (name(1), 10)]
    spark.sql(view)
    assert spark.table("since_ten").count() == 30
    spark.sql(function)
    log.add(0, 7, at_s=240)
    assert counted(spark, query) == [(name(0), 27), (name(1), 10)]
    assert counted(spark, "SELECT count(*) FROM orders") == [(67,)]
    assert spark.table("since_ten").count() == 30
    said = {row.col_name: row.comment for row in spark.sql("DESCRIBE TABLE orders").collect()}
    assert said["data"] == f"landing log: stream=words&path=file:{log.folder}"
    with pytest.raises(AnalysisException, match=r"OPTIONS \(path 's3://bucket/prefix'\)"):
        spark.sql("CREATE TABLE nowhere USING kcl")


def test_a_table_is_a_stream_too(spark: SparkSession, log: Landed, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE orders USING kcl LOCATION '{log.folder}'")
    writer = spark.readStream.table("orders").writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).start(str(tmp_path / "out"))
    query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 60


def test_conditions_of_several_uses_do_not_mix(spark: SparkSession, log: Landed) -> None:
    """Spark keeps what the conditions of one use have left for the others, so by default none leaves anything out."""
    spark.conf.set(PUSHDOWN, "true")
    spark.sql(f"CREATE TABLE orders USING kcl LOCATION '{log.folder}'")
    both = " UNION ALL ".join(
        f"SELECT shard_id, count(*) FROM orders WHERE shard_id = '{name(each)}' GROUP BY 1" for each in (0, 1)
    )
    assert counted(spark, both) == [(name(0), 40), (name(1), 20)]
    frame = spark.read.format("kcl").load(str(log.folder))
    assert frame.where(f"shard_id = '{name(1)}'").count() == 20
    assert frame.count() == 60


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_conditions_of_one_use_leave_out_segments_by_option(
    spark: SparkSession, log: Landed, enabled: str
) -> None:
    """Where Spark pushes none the option does nothing, and is no error."""
    spark.conf.set(PUSHDOWN, enabled)
    spark.sql(f"CREATE TABLE orders USING kcl OPTIONS (path '{log.folder}', maxTasks '1')")
    log.path(0, log.entries[0][0]).unlink()  # whoever reads it fails
    asked = "SELECT count(*) FROM orders WITH ('pushFilters' = 'true')"
    since = f"approximate_arrival_timestamp >= timestamp_millis({BEGIN_MS + 180_000})"
    position = log.entries[0][2].last.partition("/")[0]
    conditions = {f"shard_id = '{name(1)}'": 20, since: 15, f"sequence_number = '{position}'": 1}
    for condition, count in conditions.items():
        if enabled == "true":
            assert counted(spark, f"{asked} WHERE {condition}") == [(count,)]
        else:
            with pytest.raises(Exception, match="is not there any more"):
                counted(spark, f"{asked} WHERE {condition}")
