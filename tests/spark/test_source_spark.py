"""The data source `kcl` in Spark: one JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

import kcl_spark_source
import tests.spark.landed
from kcl_spark_source import kcl_lag, kcl_progress
from tests.spark.landed import BEGIN_MS, Landed, key, name


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    kcl_spark_source.register(spark)
    return spark


@pytest.fixture
def landed(tmp_path: Path) -> Landed:
    """Two shards, of which one has split."""
    log = Landed(tmp_path / "log")
    for second in range(6):
        log.add(0, 50, second)
        if second < 3:
            log.add(1, 20, second)
    log.end(1, [2, 3])
    for second in range(3, 6):
        log.add(2, 10, second)
        log.add(3, 10, second)
    return log


def live(session: SparkSession, landed: Landed, **options: object) -> DataFrame:
    reader = session.readStream.format("kcl")
    for option, value in options.items():
        reader = reader.option(option, str(value))
    return reader.load(str(landed.folder))


def drain(frame: DataFrame, folder: Path) -> list[Any]:
    """Everything that is there, to files; the progress of each batch that had records."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "state"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination(120)
    assert not query.isActive
    return [each for each in query.recentProgress if each.numInputRows]


def came(session: SparkSession, folder: Path) -> list[str]:
    rows = session.read.parquet(str(folder / "out")).select(F.col("data").cast("string")).collect()
    return sorted(row[0] for row in rows)


def test_a_batch_read_has_every_record_and_times(session: SparkSession, landed: Landed) -> None:
    everything = session.read.format("kcl").load(str(landed.folder))
    rows = everything.select(F.col("data").cast("string"), "shard_id", "sequence_number").collect()
    assert [row[0] for row in rows] == landed.data(0, 1, 2, 3)
    assert {row[1] for row in rows} == {name(number) for number in range(4)}
    some = (
        session.read.format("kcl")
        .option("startingTimestamp", str(BEGIN_MS + 4_000))
        .option("shards", name(2))
        .option("columns", "aws")
        .load(str(landed.folder))
    )
    assert some.select("shardId", "approximateArrivalTimestamp").count() == 20
    one = session.read.format("kcl").schema("data BINARY").load(str(landed.folder))
    assert one.count() == len(landed.data(0, 1, 2, 3))


def test_a_query_goes_on_where_it_was(session: SparkSession, landed: Landed, tmp_path: Path) -> None:
    limit = max(each.size_bytes for its in landed.entries.values() for each in its)
    first = drain(live(session, landed, maxBytesPerTrigger=limit), tmp_path)
    assert len(first) > 6
    assert came(session, tmp_path) == sorted(landed.data(0, 1, 2, 3))
    landed.add(0, 5, 9)
    landed.add(2, 5, 9)
    (second,) = drain(live(session, landed), tmp_path)
    assert second["numInputRows"] == 10
    assert came(session, tmp_path) == sorted(landed.data(0, 1, 2, 3))
    assert kcl_lag(second)[key(0)] == {"segments": 0, "ms": 0, "daemon_ms": 0}
    # What was read is older than what is there: the progress of the first batch says how much is left.
    lag = kcl_lag(first[0])
    assert lag[key(0)]["segments"] >= 4
    assert lag[key(0)]["ms"] >= 3_000


def test_a_backlog_of_windows_is_counted_whole(session: SparkSession, tmp_path: Path) -> None:
    """Light shards must not run ahead of heavy ones: what comes late is dropped by Spark."""
    landed = Landed(tmp_path / "log")
    for second in range(0, 60, 2):
        landed.add(0, 200, second, 2)
        landed.add(1, 4, second, 2)
    arrived = "approximate_arrival_timestamp"
    limit = landed.entries[0][3].size_bytes * 3
    counted = (
        live(session, landed, maxBytesPerTrigger=limit)
        .withWatermark(arrived, "5 seconds")
        .groupBy(F.window(arrived, "4 seconds"), "shard_id")
        .count()
    )
    seen: dict[Any, int] = {}

    def keep(frame: DataFrame, _batch: int) -> None:
        seen.update({(row[0].start, row[1]): row[2] for row in frame.collect()})

    writer = counted.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert len([each for each in query.recentProgress if each.numInputRows]) >= 5
    assert sum(seen.values()) == len(landed.data(0, 1))


def test_a_damaged_segment_stops_the_query_with_its_name(
    session: SparkSession, landed: Landed, tmp_path: Path
) -> None:
    path = landed.path(0, landed.entries[0][2])
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(StreamingQueryException, match=f"segment words/{name(0)}/000000000002.parquet has"):
        drain(live(session, landed), tmp_path)


ARRIVED = "approximate_arrival_timestamp"


def windows(
    session: SparkSession, landed: Landed, folder: Path, *, early: bool = False
) -> tuple[list[int], Any]:
    """How many records each window had that has closed in this run, in order, and the last progress."""
    rows = live(session, landed, idleRows="true")
    timed = rows.withColumn("at", F.coalesce(F.lit(None).cast("timestamp"), ARRIVED)).withWatermark(
        "at", "7 seconds"
    )
    kept = timed.where("data is not null") if early else timed
    counted = kept.groupBy(F.window("at", "5 seconds")).agg(F.count("data").alias("n")).where("n > 0")
    found: list[int] = []

    def keep(frame: DataFrame, _batch: int) -> None:
        found.extend(row["n"] for row in frame.orderBy("window").collect())

    writer = counted.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    return found, query.recentProgress[-1]


def test_the_windows_of_a_quiet_stream_close(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in the past: Spark's planner has a clock of its own."""
    begin_ms = 1_700_000_000_000
    monkeypatch.setattr(tests.spark.landed, "BEGIN_MS", begin_ms)
    landed = Landed(tmp_path / "log", marks=True)
    for second in range(10):
        landed.add(0, 10, second)
        landed.add(1, 10, second)
    landed.roster({0: [], 1: []})
    landed.mark("a", {0: 10, 1: 10}, at_ms=begin_ms + 10_000)
    assert windows(session, landed, tmp_path / "right")[0] == []
    assert windows(session, landed, tmp_path / "early", early=True)[0] == []
    landed.mark("a", {0: 40, 1: 30}, at_ms=begin_ms + 40_000)
    closed, progress = windows(session, landed, tmp_path / "right")
    assert closed == [100, 100]
    said = kcl_progress(progress)
    assert (said["horizon_ms"], said["held_by"], said["late_rows"]) == (begin_ms + 30_000, key(1), 0)
    assert (said["left_behind"], said["lag"][key(0)]["segments"]) == ({}, 0)
    # Spark filters before it looks at the watermark.
    assert windows(session, landed, tmp_path / "early", early=True)[0] == []
