"""The data source `kcl` over a log in a folder, called as Spark calls it; no JVM."""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from botocore.config import Config
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StringType, StructType

import kcl_spark_source
from kcl_landing.log import PAGE, Footer, Format, Layout
from kcl_landing.segments import encode
from kcl_local.dynamodb import DynamoDbServer
from kcl_spark_source import Damaged, DataLoss, KclDataSource, KclStreamReader, LandingError
from tests.contract.aws_access import REGION, credentials_that_nobody_checks
from tests.spark.landed import BASE, BEGIN_MS, Landed, key, name

EVERYTHING = ReadAllAvailable()


def source(landed: Landed, **options: object) -> KclDataSource:
    return KclDataSource(
        {"path": str(landed.folder), **{each: str(value) for each, value in options.items()}}
    )


def fields(ddl: str) -> StructType:
    """The names; only Spark's JVM knows the types."""
    names = [each.split()[0] for each in ddl.split(",")]
    made = StructType()
    for each in names:
        made.add(each, StringType())
    return made


def stream(landed: Landed, **options: object) -> KclStreamReader:
    made = source(landed, **options)
    return made.streamReader(fields(made.schema()))


def texts(reader: Any, parts: list[Any]) -> list[str]:
    """What the records of these partitions say, as executors would read them."""
    away = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in parts for batch in away.read(pickle.loads(pickle.dumps(part)))]
    return [each.decode() for batch in batches for each in batch.column(0).to_pylist()]


def past(landed: Landed, **options: object) -> list[str]:
    made = source(landed, **options)
    reader = made.reader(fields(made.schema()))
    return texts(reader, reader.partitions())


def batches(
    reader: KclStreamReader, start: dict[str, Any] | None = None, most: int = 0
) -> Iterator[list[str]]:
    """The batches of a query until nothing is left; offsets go through JSON, as Spark keeps them."""
    start = start or reader.initialOffset()
    while True:
        limit = ReadMaxBytes(most) if most else EVERYTHING
        end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, limit)))
        if end == start:
            return
        yield texts(reader, reader.partitions(start, end))
        reader.commit(start)
        start = end


def s3_client(url: str) -> Any:
    path_style = Config(s3={"addressing_style": "path"})
    return boto3.session.Session().client("s3", endpoint_url=url, region_name=REGION, config=path_style)


@pytest.fixture(autouse=True)
def listed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kcl_spark_source, "_LISTED_S", 0.0)


@pytest.fixture
def landed(tmp_path: Path) -> Landed:
    """Two shards with four segments each, in a few seconds."""
    return two_shards(Landed(tmp_path / "log"))


def two_shards(landed: Landed) -> Landed:
    for second in range(4):
        landed.add(0, 10, second)
        landed.add(1, 5, second)
    return landed


@pytest.mark.parametrize("layout", ["log", "dated"])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_all_layouts_and_formats_are_read(tmp_path: Path, layout: Layout, kind: Format) -> None:
    log = two_shards(Landed(tmp_path, layout, kind))
    log.end(0, [2])
    log.add(2, 3, 5)
    assert past(log) == log.data(0, 1, 2)
    assert [sorted(each) for each in batches(stream(log))] == [sorted(log.data(0, 1)), log.data(2)]


def test_batches_are_limited_and_aligned(landed: Landed) -> None:
    size = max(
        map(sum, zip(*([each.size_bytes for each in landed.entries[shard]] for shard in (0, 1)), strict=True))
    )
    whole = list(batches(stream(landed), most=size))
    assert [sorted(each) for each in whole] == [
        sorted(
            [*landed.data(0)[second * 10 : second * 10 + 10], *landed.data(1)[second * 5 : second * 5 + 5]]
        )
        for second in range(4)
    ]


def test_a_batch_that_is_done_again_has_the_same_records(landed: Landed) -> None:
    reader = stream(landed, startingPosition="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, EVERYTHING) == start
    landed.add(0, 3, 9)
    end = reader.latestOffset(start, EVERYTHING)
    expected = landed.data(0)[40:]
    assert texts(reader, reader.partitions(start, end)) == expected
    landed.add(0, 3, 10)
    again = stream(landed, startingPosition="latest")
    # Spark asks again where a query begins until its first batch is done; more has come meanwhile.
    assert texts(again, again.partitions(again.initialOffset(), end)) == expected
    assert list(batches(again, end)) == [landed.data(0)[43:]]


def test_records_of_a_time_are_cut_out(landed: Landed) -> None:
    times = {"startingTimestamp": BEGIN_MS + 1500, "endingTimestamp": BEGIN_MS + 2200}
    expected = [*landed.data(0)[15:22], *landed.data(1)[8:11]]
    assert past(landed, **times) == expected
    assert [sorted(each) for each in batches(stream(landed, **times))] == [sorted(expected)]


def test_a_starting_time_is_found_over_many_pages(tmp_path: Path) -> None:
    landed = Landed(tmp_path)
    for number in range(2 * PAGE + 20):
        landed.add(0, 1, number)
    assert past(landed, startingTimestamp=BEGIN_MS + 1000 * 300) == landed.data(0)[300:]
    assert past(landed, startingTimestamp=BEGIN_MS + 1000 * 530) == landed.data(0)[530:]
    assert past(landed, startingTimestamp=BEGIN_MS + 1000 * 900) == []
    assert past(landed) == landed.data(0)


def test_only_what_is_asked_for_is_read(landed: Landed) -> None:
    assert past(landed, shards=f"{name(1)}") == landed.data(1)
    assert past(landed, stream="words") == landed.data(0, 1)
    assert past(landed, stream="other") == []
    made = source(landed, columns="aws")
    assert made.schema().startswith("data BINARY, partitionKey STRING, streamName STRING")
    reader = made.reader(fields("sequenceNumber STRING, shardId STRING"))
    read = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert {tuple(batch.schema.names) for batch in read} == {("sequenceNumber", "shardId")}
    assert sum(batch.num_rows for batch in read) == 60
    with pytest.raises(LandingError, match="no column datum"):
        made.reader(fields("datum STRING"))


def test_available_now_reads_to_the_end_of_then(landed: Landed) -> None:
    reader = stream(landed)
    reader.prepareForTriggerAvailableNow()
    expected = landed.data(0, 1)
    landed.add(0, 10, 20)
    came = list(batches(reader, most=landed.entries[0][0].size_bytes))
    assert sorted(text for each in came for text in each) == sorted(expected)
    assert len(came) > 3


def test_compaction_between_plan_and_read_loses_nothing(landed: Landed) -> None:
    reader = stream(landed)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxBytes(landed.entries[0][0].size_bytes * 3))
    parts = reader.partitions(start, end)
    before = texts(reader, parts)
    landed.compact(0, 0, 3)
    assert texts(reader, parts) == before
    assert texts(reader, stream(landed).partitions(start, end)) == before
    rest = [text for each in batches(stream(landed), end) for text in each]
    assert sorted(before + rest) == sorted(landed.data(0, 1))
    assert past(landed) == landed.data(0, 1)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_merged_segments_do_not_run_ahead_of_other_shards(tmp_path: Path, kind: Format) -> None:
    landed = Landed(tmp_path, "log", kind)
    for second in range(0, 60, 2):
        landed.add(0, 20, second, 2)
        landed.add(1, 4, second, 2)
    merged = landed.compact(0, 0, 29)
    reader = stream(landed)
    came, newest = [], 0
    for batch in batches(reader, most=merged.size_bytes // 4):
        places = [each.split(":") for each in batch]
        seconds = [int(number) // (10 if shard == "0" else 2) for shard, number in places]
        assert min(seconds) >= newest - 6
        newest = max(seconds)
        came.append(batch)
    assert len(came) > 3
    assert sorted(text for each in came for text in each) == sorted(landed.data(0, 1))
    assert [text for each in came for text in each if text.startswith("0:")] == landed.data(0)


def test_a_merged_segment_over_a_page_is_found(tmp_path: Path) -> None:
    landed = Landed(tmp_path)
    for number in range(PAGE + 30):
        landed.add(0, 2, number)
    parts = (reader := stream(landed)).partitions(
        start := reader.initialOffset(), end := reader.latestOffset(start, EVERYTHING)
    )
    landed.compact(0, PAGE - 20, PAGE - 1)
    assert texts(reader, parts) == landed.data(0)
    assert texts(reader, stream(landed).partitions(start, end)) == landed.data(0)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("how", ["cut", "altered", "another"])
def test_a_damaged_segment_stops_the_reader_with_its_name(tmp_path: Path, kind: Format, how: str) -> None:
    landed = Landed(tmp_path, "log", kind)
    for second in range(4):
        landed.add(0, 2000, second)
    path = landed.path(0, landed.entries[0][2])
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[:-100]
    elif how == "altered":
        content[len(content) // 4] ^= 0xFF
    else:
        content = bytearray(landed.path(0, landed.entries[0][1]).read_bytes())
        content = content[: path.stat().st_size]
    path.write_bytes(content)
    with pytest.raises(Damaged, match=rf"segment words/{name(0)}/000000000002.{kind}"):
        past(landed)


def test_a_gap_in_the_pages_is_named(landed: Landed) -> None:
    del landed.entries[0][1]
    landed.manifest(0)
    with pytest.raises(Damaged, match=rf"pages of shard {key(0)} lack the segments 1 to 1"):
        past(landed)


@pytest.mark.parametrize("ms", [10**15, -1, 10**400, "1"])
@pytest.mark.parametrize("place", [0, -1], ids=["first", "newest"])
def test_an_arrival_that_no_calendar_has_is_damage(landed: Landed, place: int, ms: Any) -> None:
    path = landed.folder / "_manifests" / f"{key(0)}.json"
    manifest = json.loads(path.read_text())
    manifest["entries"][place][7] = ms
    path.write_text(json.dumps(manifest))
    with pytest.raises(Damaged, match=rf"_manifests/{key(0)}.json is damaged"):
        past(landed)


@pytest.mark.parametrize("ms", [10**15, "1"])
def test_an_expired_arrival_that_no_calendar_has_is_damage(landed: Landed, ms: Any) -> None:
    reader = stream(landed)
    landed.expire(0, 3)
    path = landed.folder / "_manifests" / f"{key(0)}.first.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "lastMs": ms}))
    with pytest.raises(Damaged, match=rf"_manifests/{key(0)}.first.json is damaged"):
        reader.latestOffset(stream(landed).initialOffset(), EVERYTHING)


def test_a_reader_behind_retention_stops_and_says_how_much(
    landed: Landed, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(landed)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxBytes(1))
    landed.expire(0, 3)
    with pytest.raises(DataLoss, match=rf"2 segments of shard {key(0)} \(1 to 2; records that arrived after"):
        list(batches(stream(landed), end))
    with caplog.at_level(logging.WARNING):
        came = [text for each in batches(stream(landed, failOnDataLoss="false"), end) for text in each]
    assert sorted(came) == sorted([*landed.data(0)[30:], *landed.data(1)])
    assert len([each for each in caplog.records if "2 segments of shard" in each.getMessage()]) == 1
    assert past(landed) == [*landed.data(0)[30:], *landed.data(1)]
    (landed.folder / "words" / name(0) / "000000000003.parquet").unlink()
    with pytest.raises(DataLoss, match=r"segment words/.*/000000000003\.parquet is not there any more"):
        past(landed)


def test_a_registered_reader_says_what_it_has_committed(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kcl_spark_source, "_NOTE_S", 0.0)
    reader = stream(landed, reader="nightly")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    note = landed.folder / "_readers" / "nightly.json"
    assert json.loads(note.read_text())["done"] == {key(0): 0, key(1): 0}
    reader.partitions(start, end)
    reader.commit(end)
    said = json.loads(note.read_text())
    assert (said["name"], said["done"], said["version"]) == ("nightly", {key(0): 4, key(1): 4}, 1)
    assert list(note.parent.iterdir()) == [note]


def test_a_note_of_a_reader_is_not_written_at_every_batch_but_when_it_stops(landed: Landed) -> None:
    reader = stream(landed, reader="nightly")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    reader.commit(end)
    note = landed.folder / "_readers" / "nightly.json"
    assert json.loads(note.read_text())["done"][key(0)] == 0
    reader.stop()
    assert json.loads(note.read_text())["done"][key(0)] == 4


def test_only_manifests_that_have_changed_are_read_again(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kcl_spark_source, "_SETTLED_S", 0.0)
    read: list[str] = []
    whole = kcl_spark_source.Store.read

    def noted(store: Any, path: str) -> Any:
        read.append(path)
        return whole(store, path)

    monkeypatch.setattr(kcl_spark_source.Store, "read", noted)
    reader = stream(landed)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert end == reader.latestOffset(end, EVERYTHING)
    assert sorted(read) == ["_kcl_landing.json", f"_manifests/{key(0)}.json", f"_manifests/{key(1)}.json"]
    landed.add(1, 1, 9)
    assert reader.latestOffset(end, EVERYTHING) != end
    assert read[3:] == [f"_manifests/{key(1)}.json"]


def test_a_log_is_not_listed_at_each_question(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream(landed)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    monkeypatch.setattr(kcl_spark_source, "_LISTED_S", 3600.0)
    landed.add(0, 1, 9)
    assert reader.latestOffset(end, EVERYTHING) == end
    monkeypatch.setattr(kcl_spark_source, "_LISTED_S", 0.0)
    assert reader.latestOffset(end, EVERYTHING) != end


def test_shards_that_the_options_leave_out_since_are_no_loss(landed: Landed) -> None:
    reader = stream(landed)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1))
    assert [sorted(each) for each in batches(stream(landed, shards=name(1)), end)] == [sorted(landed.data(1))]


def test_a_manifest_that_changes_within_a_tick_of_the_stores_clock_is_seen(landed: Landed) -> None:
    path = landed.folder / "_manifests" / "words" / f"{name(0)}.json"
    os.utime(path, ns=(10**18, 10**18))
    reader = stream(landed)
    reader.initialOffset()
    assert reader.reportLatestOffset()["shards"][key(0)].get("behindMs") == 0  # type: ignore[index]
    landed.manifest(0, behind_ms=7)
    os.utime(path, ns=(10**18, 10**18))
    reader.latestOffset(reader.initialOffset(), EVERYTHING)
    assert reader.reportLatestOffset()["shards"][key(0)]["behindMs"] == 7  # type: ignore[index]


def test_spark_without_admission_control_is_limited_from_the_last_batch_on(landed: Landed) -> None:
    """Spark 4.0 and 4.1 call `latestOffset()`."""
    reader = stream(landed, maxBytesPerTrigger=landed.entries[0][0].size_bytes)
    start = reader.initialOffset()
    came = []
    while (end := reader.latestOffset()) != start:
        came.append(texts(reader, reader.partitions(start, end)))
        start = end
    assert len(came) > 3
    assert sorted(text for each in came for text in each) == sorted(landed.data(0, 1))
    restarted = stream(landed)
    assert restarted.latestOffset()["shards"] == start["shards"]


def test_a_log_in_s3_is_read_and_its_reader_noted(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REQUEST_CHECKSUM_CALCULATION", raising=False)
    with DynamoDbServer() as server, credentials_that_nobody_checks():
        s3 = s3_client(server.s3_url)
        s3.create_bucket(Bucket="bucket")
        landed.put(f"_manifests/words/{name(0)}/ignored.json", b"[]")
        for path in sorted(landed.folder.rglob("*.*")):
            place = path.relative_to(landed.folder).as_posix()
            s3.upload_file(str(path), "bucket", f"some/prefix/{place}")
        options = {"path": "s3a://bucket/some/prefix/", "endpoint": server.s3_url, "region": REGION}
        assert past(landed, **options) == landed.data(0, 1)
        reader = stream(landed, **options, reader="nightly")
        assert [sorted(each) for each in batches(reader)] == [sorted(landed.data(0, 1))]
        reader.stop()
        note = s3.get_object(Bucket="bucket", Key="some/prefix/_readers/nightly.json")["Body"].read()
        assert json.loads(note)["name"] == "nightly"
        s3.delete_object(Bucket="bucket", Key=f"some/prefix/words/{name(0)}/000000000001.parquet")
        with pytest.raises(DataLoss, match=r"000000000001\.parquet is not there any more"):
            past(landed, **options)


def test_the_path_of_another_log_and_no_log_are_refused(landed: Landed, tmp_path: Path) -> None:
    reader = stream(landed)
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    other = {**end, "log": "another"}
    with pytest.raises(LandingError, match="of landing log another, but at this path is log-1"):
        reader.latestOffset(other, EVERYTHING)
    with pytest.raises(LandingError, match=r"no landing log at .*_kcl_landing\.json is missing"):
        stream_of(tmp_path).initialOffset()


def stream_of(folder: Path) -> KclStreamReader:
    made = KclDataSource({"path": str(folder)})
    return made.streamReader(fields(made.schema()))


def create_table(**more: str) -> KclDataSource:
    """As CREATE TABLE makes it."""
    return KclDataSource(CaseInsensitiveDict({"provider": "kcl", "owner": "me", **more}))


def test_a_table_is_read_with_the_options_that_it_was_created_with(landed: Landed) -> None:
    """Spark keeps the columns of a table, with their comments, and nothing else."""
    path = f"file:{landed.folder}"
    options = {"path": path, "location": path, "startingTimestamp": str(BEGIN_MS + 3000)}
    made = create_table(**options, **{"option.startingTimestamp": options["startingTimestamp"]})
    first, _, rest = made.schema().partition("', ")
    said = first.partition(" COMMENT '")[2]
    assert said == f"landing log: startingtimestamp={BEGIN_MS + 3000}&path={path}"
    columns = StructType().add("data", StringType(), metadata={"comment": said})
    for each in fields(rest):
        columns.add(each)
    reader = KclDataSource(CaseInsensitiveDict()).reader(columns)
    assert texts(reader, reader.partitions()) == [*landed.data(0)[30:], *landed.data(1)[15:]]
    with_options = KclDataSource(CaseInsensitiveDict({"shards": name(1)})).reader(columns)
    assert texts(with_options, with_options.partitions()) == landed.data(1)[15:]
    live = KclDataSource(CaseInsensitiveDict()).streamReader(columns)
    assert [len(each) for each in batches(live)] == [15]


def test_characters_that_a_comment_cannot_hold_come_back_from_it() -> None:
    path = "s3://it's/a;b\\c&d= é"
    (first, *_) = create_table(path=path).schema().split(", ")
    said = first.removeprefix("data BINARY COMMENT '").removesuffix("'")
    assert not set(said) & set("'\\;\"")
    columns = StructType().add("data", StringType(), metadata={"comment": said})
    assert kcl_spark_source.of_table({}, columns) == {"path": path}


def test_a_table_without_a_log_or_with_a_wrong_option_is_refused() -> None:
    with pytest.raises(LandingError, match=r"OPTIONS \(path 's3://bucket/prefix'\)"):
        create_table().schema()
    with pytest.raises(LandingError, match="minTasks is a whole number"):
        create_table(path="p", minTasks="many").schema()
    with pytest.raises(LandingError, match="created with columns: create it without"):
        KclDataSource(CaseInsensitiveDict()).reader(fields("data BINARY"))


def under(landed: Landed, *conditions: Filter, **options: object) -> tuple[list[str], int]:
    """What is read under conditions of SQL, and from how many segments."""
    made = source(landed, **{"pushFilters": "true", **options})
    reader = pickle.loads(pickle.dumps(made.reader(fields(made.schema()))))
    assert list(reader.pushFilters(list(conditions))) == list(conditions), (
        "Spark asks each record all the same"
    )
    parts: Any = reader.partitions()
    return texts(reader, parts), sum(len(part.pieces) for part in parts)


def test_only_the_shards_that_sql_asks_for_are_read(landed: Landed) -> None:
    landed.add(2, 3, 2)
    one, some = EqualTo(("shard_id",), name(1)), In(("shard_id",), (name(1), name(2), None, "../x"))
    assert under(landed, one) == (landed.data(1), 4)
    assert under(landed, some) == (landed.data(1, 2), 5)
    assert under(landed, some, EqualTo(("shard_id",), name(2))) == (landed.data(2), 1)
    assert under(landed, some, shards=f"{name(0)},{name(2)}") == (landed.data(2), 1)
    assert under(landed, EqualTo(("shardId",), name(1)), columns="aws") == (landed.data(1), 4)
    assert under(landed, EqualTo(("stream",), "other")) == ([], 0)
    assert under(landed, one, EqualTo(("shard_id",), name(2))) == ([], 0)
    others = [Not(one), IsNotNull(("shard_id",)), EqualTo(("partition_key",), "key-1")]
    assert under(landed, *others) == (landed.data(0, 1, 2), 9)
    assert under(landed, one, pushFilters="false") == (landed.data(0, 1, 2), 9)


def test_segments_of_other_times_are_not_read(tmp_path: Path) -> None:
    landed = Landed(tmp_path)
    for minute in range(10):
        landed.add(0, 10, 60 * minute, 60)

    def at(minute: float) -> datetime:
        return datetime.fromtimestamp(BEGIN_MS / 1000 + 60 * minute, UTC)

    column = ("approximate_arrival_timestamp",)
    since, till = GreaterThanOrEqual(column, at(7)), LessThan(column, at(3))
    assert under(landed, since) == (landed.data(0)[70:], 3)
    # Arrival may go back a little within a shard, so one minute more is read.
    assert under(landed, till) == (landed.data(0)[:50], 5)
    both = [GreaterThan(column, at(4.5)), LessThanOrEqual(column, at(4.6))]
    assert under(landed, *both) == (landed.data(0)[40:60], 2)
    assert under(landed, EqualTo(column, at(20))) == ([], 0)
    assert under(landed, since, startingTimestamp=BEGIN_MS + 9 * 60_000) == (landed.data(0)[90:], 1)
    assert under(landed, EqualTo(column, at(1).replace(tzinfo=None)))[1] == 10


def test_segments_of_other_positions_are_not_read_where_text_has_the_order_of_numbers(landed: Landed) -> None:
    column = ("sequence_number",)
    there = EqualTo(column, str(BASE + 14))
    assert under(landed, there, EqualTo(("shard_id",), name(0))) == (landed.data(0)[10:20], 1)
    later = GreaterThan(column, str(BASE + 20))
    # Who knows how long the numbers of a shard's first segment are: nothing is before it.
    assert under(landed, later, shards=name(0)) == (landed.data(0)[:10] + landed.data(0)[20:], 3)
    before = LessThanOrEqual(column, str(BASE + 9))
    assert under(landed, before, shards=name(0)) == (landed.data(0)[:20], 2)
    # "9" is after "49...", and "049..." before it: only Spark can tell.
    for text in ("9", f"0{BASE + 14}", "4", "x", "", "4" * 5000):
        assert under(landed, GreaterThan(column, text))[1] == 8
    assert under(landed, EqualTo(column, "9"))[1] == 2


def test_sources_that_take_conditions_are_not_refused_where_spark_pushes_none(landed: Landed) -> None:
    """Spark asks so; else it refuses each read while `spark.sql.python.filterPushdown.enabled` is false."""
    reader = source(landed).reader(fields("data BINARY"))
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


def well_packed(landed: Landed, shard: int) -> None:
    """A segment of 200 records of 100 kB that are stored in a thousandth of that."""
    landed.add(shard, 200, len(landed.entries.get(shard, ())))
    entry = landed.entries[shard].pop()
    table = landed.table(shard, landed.written[shard] - 200, [entry.first_ms] * 200)
    table = table.set_column(0, table.schema[0], pa.array([b"x" * 100_000] * 200, pa.binary()))
    footer = Footer(
        "app", "words", name(shard), entry.number, entry.to, entry.after, entry.last, 200, entry.first_ms, entry.last_ms, 1, "w", None
    )  # fmt: skip
    landed.entries[shard].append(landed.store(footer, bytes(encode(landed.info, table.to_batches(), footer))))
    landed.manifest(shard)


def test_tasks_are_sized_by_what_records_take_in_memory(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """160 MB that are stored in 40 kB, beside two shards of little."""
    for _ in range(8):
        well_packed(landed, 2)
    assert sum(each.size_bytes for each in landed.entries[2]) < 1_000_000
    made = source(landed, minTasks=1)
    reader, live = made.reader(fields(made.schema())), stream(landed, minTasks=1)
    assert len(reader.partitions()) == 1, "a small batch is not looked into"
    monkeypatch.setattr(kcl_spark_source, "_MOST_TIMES", 10_000)
    monkeypatch.setattr(kcl_spark_source, "_TASK_BYTES", 32 * 2**20)
    parts: Any = reader.partitions()
    assert len(parts) == 5
    assert [[piece[0] for piece in part.pieces].count(key(2)) for part in parts[1:]] == [2, 1, 2, 1]
    start = live.initialOffset()
    end = live.latestOffset(start, EVERYTHING)
    assert len(live.partitions(start, end)) == 3, "without splitShards a shard is one task"
    split = stream(landed, minTasks=1, splitShards="true")
    assert len(split.partitions(start, end)) == 5


def test_a_segment_that_cannot_be_looked_into_is_a_matter_of_its_task(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kcl_spark_source, "_MOST_TIMES", 10**9)
    path = landed.path(0, landed.entries[0][2])
    path.write_bytes(b"PAR1".rjust(landed.entries[0][2].size_bytes, b"\0"))
    made = source(landed)
    reader = made.reader(fields(made.schema()))
    parts = reader.partitions()
    with pytest.raises(Damaged, match=r"segment .* is damaged"):
        texts(reader, parts)
