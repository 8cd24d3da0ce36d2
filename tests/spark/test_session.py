"""What needs a Spark, one for all: the data source, decoders, outputs that are marked, queries that are looked into, engines.

In one file, as a Spark takes longer to start than all of them to run.
"""

from __future__ import annotations

import json
import shutil
import tracemalloc
import uuid
import zlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from kcl_landing.control import epoch_ms
from kcl_landing.positions import START
from kcl_spark import decode
from kcl_spark.api import Batch, NotAPipeline, batch, load, pipeline, writers_of
from kcl_spark.declared import declared, file_sink_path
from kcl_spark.decode import WRAPPER, framed, with_wrapper
from kcl_spark.engine import EXIT_PIPELINE, EXIT_REFUSED
from kcl_spark.outputs import MARK, OutputTaken, claim_path
from kcl_spark.sinks import delta, overwrite_batch
from kcl_spark.spool import Spool
from kcl_spark.stores import FolderStore
from tests.spark.crashes import Account, account, hold_at, newest_rows, texts
from tests.spark.daemon import BASE, Daemon, Relay, Shard, wait_for
from tests.spark.packaged import descriptor, protobuf
from tests.spark.parts import ME, SHARD, at, fill, move_watermark, plan

WITHIN_S = 240

pytestmark = pytest.mark.timeout(900)


def records(spark: SparkSession, *data: bytes) -> DataFrame:
    rows = [(each, "key", SHARD, str(number), 0) for number, each in enumerate(data)]
    return spark.createDataFrame(
        rows,
        "data binary, partition_key string, shard_id string, sequence_number string, sub_sequence_number long",
    )


def stream(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.readStream.format("kcl_spool").option("spool", str(folder)).options(**options).load()


def test_the_source_gives_what_is_spooled_under_the_names_that_are_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    spool = Spool(FolderStore(tmp_path / "spool"), max_bytes=10**9)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    fill(spool, 10, 24)
    frame = stream(spark, tmp_path / "spool", columns="aws", maxBytesPerTrigger="1")
    seen: list[list[int]] = []

    def take(batch: DataFrame, _batch_id: int) -> None:
        seen.append([int(row.sequenceNumber) for row in batch.collect()])

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "state")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == [list(range(10)), list(range(10, 25))]
    assert frame.columns[:3] == ["data", "partitionKey", "streamName"]


def test_python_workers_are_forked_from_a_process_that_has_imported_what_they_need(
    spark: SparkSession,
) -> None:
    """They share its memory: a worker that imports by itself takes 30 MB of its own."""

    def parent(_number: int) -> list[str]:
        return list(psutil.Process().parent().cmdline())  # type: ignore[union-attr]  # it was forked

    (command,) = spark.sparkContext.parallelize([0], 1).map(parent).collect()
    assert "kcl_spark.workers" in command


def test_json_is_decoded_and_what_is_none_is_kept_as_it_was(spark: SparkSession) -> None:
    found = decode.json(
        records(spark, b'{"id":1,"price":2.5}', b"\xff{", b'{"id":"x"}', b""), "id long, price double"
    )
    rows = [
        (row.id, row.price, None if row._corrupt is None else bytes(row._corrupt)) for row in found.collect()
    ]
    assert rows == [(1, 2.5, None), (None, None, b"\xff{"), (None, None, b'{"id":"x"}'), (None, None, b"")]
    assert found.columns == ["id", "price", *decode.KEPT, "_corrupt"]


PAYLOADS = (
    (b'{"id":1,"name":"a"}', True),
    (b' {"id":1}\r\n', True),
    (b"{}", True),
    (b'{"ID":5}', True),
    (b'{"id":1,"id":2}', True),
    ('{"name":"é \\u0000 } ] \U0001f600"}'.encode(), True),
    (b'{"id":1}{"id":2}', False),
    (b'{"id":1}\n{"id":2}\n{"id":3}\n', False),
    (b'{"id":1},{"id":2}', False),
    (b'{"id":1} trailing', False),
    (b'{"id":1}]', False),
    (b'{"id":1}],"junk":[{"id":2}', False),
    (b'{"id":1}],"_all":[{"id":2}', False),
    (b'{"id":1}]},"_all":{"a":[{"id":3}', False),
    (b'{"id":1}]}} and more', False),
    (b'{"id":1,"name":"\xff"}', False),
    (b'{"id":1,"name":"\xed\xa0\x80"}', False),
    (b'{"id":1,"name":"\xc0\xaf"}', False),
    (b'{"id":"x"}', False),
    (b'{"id":99999999999999999999}', False),
    (b'[{"id":1},{"id":2}]', False),
    (b"null", False),
    (b"5", False),
    (b"", False),
    (b" ", False),
)


@pytest.mark.parametrize("has_function", [True, False], ids=["as Spark says", "as Spark 3 has it"])
def test_json_is_one_object_with_all_bytes_of_the_record_or_corrupt(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, has_function: bool
) -> None:
    if not has_function:
        monkeypatch.delattr(F, "is_valid_utf8", raising=False)
    found = decode.json(records(spark, *(data for data, _ in PAYLOADS)), "id long, name string").collect()
    assert len(found) == len(PAYLOADS)
    for row, (data, is_good) in zip(found, PAYLOADS, strict=True):
        assert row._corrupt == (None if is_good else bytearray(data)), data


def test_lines_and_arrays_of_json_make_a_row_each(spark: SparkSession) -> None:
    given = (
        b'{"id":1}\n\n{"id":2}\r\nnonsense\n{"id":4} {"id":5}\n',
        b' [{"id":6},\n {"id":7}]\n',
        b'[{"id":8}, 9]',
        b'[{"id":8}][{"id":9}]',
        b"[]",
        b"[null]",
        b"",
        b"\n \n",
        b'{"id":9}\n\xff\n',
        b'{"id":10}',
    )
    found = decode.json(records(spark, *given), "id long", lines=True).collect()
    assert [(int(row.sequence_number), row._index, row.id, row._corrupt) for row in found] == [
        (0, 0, 1, None),
        (0, 1, 2, None),
        (0, 2, None, bytearray(b"nonsense")),
        (0, 3, None, bytearray(b'{"id":4} {"id":5}')),
        (1, 0, 6, None),
        (1, 1, 7, None),
        *((at, 0, None, bytearray(given[at])) for at in range(2, 9)),
        (9, 0, 10, None),
    ]


ARRIVED: Final = datetime(2026, 11, 26, 12, tzinfo=UTC)
TIMES: Final = (
    (b'{"id":1,"ts":"2026-11-26T12:00:59Z"}', "59 s after its arrival"),
    (b'{"id":2,"ts":"2026-11-26T12:01:01Z"}', "too late"),
    (b'{"id":3,"ts":1795690600000}', "too late"),  # milliseconds where seconds are meant: the year 58873
    (b'{"id":4}', "without a time"),
    (b'{"id":5,"ts":"1999-01-01T00:00:00Z"}', "old"),
)


def a_minute_of_json(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    at = found.get("ts")
    if isinstance(at, str):
        found["ts"] = datetime.fromisoformat(at)
    elif at is not None:
        found["ts"] = datetime(9000, 1, 1, tzinfo=UTC)
    return {"id": found["id"], "ts": found.get("ts")}


@pytest.mark.parametrize("with_python", [False, True], ids=["json", "python"])
def test_a_time_after_its_arrival_marks_its_row_and_reaches_no_watermark(
    spark: SparkSession, with_python: bool
) -> None:
    given = records(spark, *(data for data, _ in TIMES)).withColumn(
        "approximate_arrival_timestamp", F.lit(ARRIVED)
    )
    guard, schema = decode.event_time("ts", not_after="1 minute"), "id long, ts timestamp"
    found = (
        decode.python(given, a_minute_of_json, schema, event_time=guard)
        if with_python
        else decode.json(given, schema, event_time=guard)
    )
    assert found.columns == ["id", "ts", *decode.KEPT, "_corrupt"]
    rows = found.withColumn("ts", F.col("ts").cast("string")).collect()
    for row, (data, what) in zip(rows, TIMES, strict=True):
        is_corrupt = what == "too late"
        assert row._corrupt == (bytearray(data) if is_corrupt else None), what
        assert (row.ts is None) == (is_corrupt or what == "without a time"), what


def test_a_time_after_its_arrival_can_be_taken_for_its_arrival(spark: SparkSession) -> None:
    given = records(spark, *(data for data, _ in TIMES)).withColumn(
        "approximate_arrival_timestamp", F.lit(ARRIVED)
    )
    guard = decode.event_time("ts", clamp=True)
    found = decode.json(given, "id long, ts timestamp", event_time=guard)
    rows = found.select("id", F.unix_seconds("ts").alias("ts"), "_corrupt").collect()
    arrived_s = int(ARRIVED.timestamp())
    assert [row.ts for row in rows] == [arrived_s + 59, arrived_s, arrived_s, None, 915148800]
    assert {row._corrupt for row in rows} == {None}


def test_a_time_without_an_arrival_is_not_believed(spark: SparkSession) -> None:
    given = records(spark, *(data for data, _ in TIMES)).withColumn(
        "approximate_arrival_timestamp", F.lit(None).cast("timestamp")
    )
    found = decode.json(given, "id long, ts timestamp", event_time=decode.event_time("ts")).collect()
    assert [row.ts for row in found] == [None] * len(TIMES)
    assert [row.id for row in found if row._corrupt is None] == [4]


def test_a_guard_of_a_column_that_is_no_time_is_refused(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match="id is no timestamp"):
        decode.json(
            records(spark, b"{}").withColumn("approximate_arrival_timestamp", F.lit(ARRIVED)),
            "id long",
            event_time=decode.event_time("id"),
        )


def test_a_value_of_another_type_marks_its_row_only(spark: SparkSession) -> None:
    def decoder(data: bytes) -> Any:
        return json.loads(data)

    given = (b'{"id":1,"name":"a"}', b'{"id":"x"}', b'{"id":100000000000000000000}', b"[1]", b'{"name":5}')
    found = decode.python(records(spark, *given, b'{"id":2}'), decoder, "id long, name string").collect()
    assert [(row.id, row.name, row._corrupt) for row in found] == [
        (1, "a", None),
        *((None, None, bytearray(each)) for each in given[1:]),
        (2, None, None),
    ]


def test_a_decoder_in_python_keeps_what_it_cannot_decode(spark: SparkSession) -> None:
    def decoder(data: bytes) -> dict[str, object]:
        return dict(json.loads(data))

    found = decode.python(records(spark, b'{"id":1}', b"nonsense"), decoder, "id long", keep=("shard_id",))
    assert [(row.id, row.shard_id, row._corrupt) for row in found.collect()] == [
        (1, SHARD, None),
        (None, SHARD, bytearray(b"nonsense")),
    ]


def test_headers_of_registries_are_cut_off(spark: SparkSession) -> None:
    headed = records(spark, b"\0\0\0\0\x07payload", b"no header")
    found = headed.select(decode.confluent(F.col("data")).alias("payload")).collect()
    assert [row.payload for row in found] == [bytearray(b"payload"), None]
    schema = uuid.UUID(int=7)
    assert decode.glue(b"\x03\x00" + schema.bytes + b"payload") == b"payload"
    compressed = b"\x03\x05" + schema.bytes + zlib.compress(b"payload")
    assert decode.glue(compressed) == b"payload"
    assert decode.glue_schema_id(compressed) == str(schema)
    with pytest.raises(ValueError, match="no header"):
        decode.glue(b"\x01\x00" + schema.bytes)
    with pytest.raises(ValueError, match="cut off"):
        decode.glue(compressed[:-5])


def test_a_few_bytes_of_zlib_do_not_take_all_of_the_memory() -> None:
    bomb = b"\x03\x05" + bytes(16) + zlib.compress(bytes(256 * 2**20))
    assert len(bomb) < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than"):
            decode.glue(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 * 2**20


def test_glues_header_is_cut_off_a_column_and_what_has_none_is_null(spark: SparkSession) -> None:
    schema = uuid.UUID(int=7).bytes
    headed = records(
        spark,
        b"\x03\x00" + schema + b"one",
        b"\x03\x05" + schema + zlib.compress(b"two"),
        b"\x03\x05" + schema + b"not compressed",
        b"none",
    )
    found = headed.select(decode.glue_payload(F.col("data")).alias("payload")).collect()
    assert [row.payload for row in found] == [bytearray(b"one"), bytearray(b"two"), None, None]


def test_protocol_buffers_are_wrapped_so_that_nothing_and_the_unreadable_differ(spark: SparkSession) -> None:
    """By the library of protocol buffers, which must find the message again as the wrapper's field."""
    bodies = [protobuf(id=1, shop="s" * size) for size in (0, 1, 120, 200, 16_500, 2_100_000)] + [protobuf()]
    wrapped = records(spark, *bodies).select(framed(F.col("data")).alias("data")).collect()
    files = FileDescriptorSet.FromString(with_wrapper(descriptor().SerializeToString(), "Order"))
    pool = DescriptorPool()
    for each in files.file:
        pool.Add(each)
    wrapper = GetMessageClass(pool.FindMessageTypeByName(WRAPPER))
    for row, body in zip(wrapped, bodies, strict=True):
        read: Any = wrapper.FromString(bytes(row.data))
        assert read.HasField("v")
        assert read.v.SerializeToString() == body
    assert not wrapper().HasField("v")
    with pytest.raises(ValueError, match="0 messages named 'Bill'"):
        with_wrapper(descriptor().SerializeToString(), "Bill")


def test_a_sink_that_cannot_tell_its_query_refuses_rather_than_drop_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="cannot tell which query"):
        delta(str(tmp_path / "out"))(records(spark, b"1"), 0)


def test_workers_take_spark_from_where_it_is_installed(spark: SparkSession) -> None:
    """From Spark's own archive each of them would compile it anew at its start."""

    def where(_number: int) -> str:
        import pyspark  # the worker's

        return str(pyspark.__file__)

    (row,) = spark.range(1).select(F.udf(where, "string", useArrow=True)("id").alias("file")).collect()
    assert row.file == pyspark.__file__


def test_a_query_is_looked_into_before_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    frame = stream(spark, tmp_path)
    about = declared(frame.writeStream.queryName("raw").format("parquet").option("path", "out"))
    assert (about.name, about.sink, about.path, about.has_trigger) == ("raw", "parquet", "out", False)
    assert file_sink_path(about) == "out"
    timed = declared(frame.writeStream.queryName("n").format("noop").trigger(processingTime="1 minute"))
    assert timed.has_trigger
    assert file_sink_path(timed) is None
    with pytest.raises(NotAPipeline, match="sparkTrigger=availableNow"):
        declared(frame.writeStream.queryName("n").format("noop").trigger(availableNow=True))
    with pytest.raises(NotAPipeline, match="has no name"):
        declared(frame.writeStream.format("noop"))
    with pytest.raises(NotAPipeline, match="leave it out"):
        declared(frame.writeStream.queryName("n").option("checkpointLocation", "x"))


def test_a_pipeline_may_yield_return_or_handle_batches(spark: SparkSession, tmp_path: Path) -> None:
    frame = stream(spark, tmp_path)

    @pipeline
    def returned(each: DataFrame) -> object:
        return each.writeStream.queryName("one")

    @batch(name="orders")
    def handled(each: DataFrame, reported: Batch) -> None:
        """Never called here."""

    def started(each: DataFrame) -> list[DataFrame]:
        return [each]

    def empty(_each: DataFrame) -> list[DataFrame]:
        return []

    assert [declared(each).name for each in writers_of(returned, frame, spark)] == ["one"]
    assert [declared(each).name for each in writers_of(handled, frame, spark)] == ["orders"]
    with pytest.raises(NotAPipeline, match="not started"):
        writers_of(started, frame, spark)
    with pytest.raises(NotAPipeline, match="no query"):
        writers_of(empty, frame, spark)


def test_a_pipeline_that_is_not_there_is_named() -> None:
    with pytest.raises(NotAPipeline, match="no module 'nowhere'"):
        load("nowhere:f")
    with pytest.raises(NotAPipeline, match="has no function 'g'"):
        load("json:g")
    with pytest.raises(NotAPipeline, match="write module:function"):
        load("json")


def test_a_batch_written_again_replaces_itself(spark: SparkSession, tmp_path: Path) -> None:
    write = overwrite_batch(str(tmp_path / "out"))
    write(records(spark, b"1", b"2"), 0)
    write(records(spark, b"1", b"2"), 0)
    write(records(spark, b"3"), 1)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted((bytes(row.data), row.batch_id) for row in found.collect()) == [
        (b"1", 0),
        (b"2", 0),
        (b"3", 1),
    ]


def test_an_output_belongs_to_one_query_of_one_state(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    claim_path(spark, path, state_id="a", query="raw", is_new=True)
    claim_path(spark, path, state_id="a", query="raw", is_new=True)
    assert json.loads((tmp_path / "out" / MARK).read_text()) == {"state": "a", "query": "raw"}
    with pytest.raises(OutputTaken, match="a path of its own"):
        claim_path(spark, path, state_id="b", query="raw", is_new=True)


def test_an_unmarked_output_of_another_job_is_refused_to_new_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata" / "0").touch()
    with pytest.raises(OutputTaken, match="dropped without a word"):
        claim_path(spark, str(tmp_path), state_id="a", query="raw", is_new=True)
    claim_path(spark, str(tmp_path), state_id="a", query="raw", is_new=False)


def test_queries_that_are_planned_side_by_side_cannot_spoil_each_others_tasks(spark: SparkSession) -> None:
    """Spark writes into this map at every planning; a HashMap that two threads write into makes tasks unreadable."""
    session: Any = spark._jsparkSession
    known = session.sessionState().dataSourceManager().lookupDataSource("kcl_spool")
    assert known.dataSourceCls().envVars().getClass().getSimpleName() == "ConcurrentHashMap"
    assert isinstance(spark.sparkContext.environment, dict)


# --- engines


def prepared(folder: Path, *shards: Shard) -> Daemon:
    shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
    return Daemon(folder, list(shards), most_records=300, pace_s=0.01)


def open_shards(daemon: Daemon) -> set[str]:
    return {shard.shard_id for shard in daemon.shards if not shard.ends}


@pytest.mark.usefixtures("spark_of_engines")
def test_windows_over_a_reshard_are_right_and_what_comes_too_late_for_others_is_counted(
    tmp_path: Path,
) -> None:
    """The child's records are of the parent's beginning: in time for one query, late for the other."""
    parent = Shard("shardId-000000000000", 3_000, ends=True)
    with prepared(tmp_path, parent, Shard("shardId-000000000001", 2_000)) as daemon:
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:patient_and_impatient")
        daemon.start_relays()
        wait_for(lambda: parent.finished, WITHIN_S)
        child = Shard("shardId-000000000002", 1_000)
        daemon.shards.append(child)
        daemon.relays.append(Relay(daemon, child))
        wait_for(daemon.is_done, WITHIN_S)
        wait_for(lambda: engine.newest_figures()["shards"].keys() == open_shards(daemon), WITHIN_S)
        assert engine.newest_figures()["queries"]["windows"]["state_rows"] > 0
        wait_for(lambda: (engine.newest_figures()["queries"]["impatient"]["late_rows"] or 0) > 0, WITHIN_S)
        daemon.drain()
        wait_for(lambda: engine.newest_figures()["shards"] == {}, WITHIN_S)
        assert engine.stop() == 0
        expected = Counter(
            (number // 1000, shard.shard_id) for shard in daemon.shards for number in range(shard.count)
        )
        found = {
            (int(row["window"]["start"].timestamp()) - 1_735_689_600, row["shard_id"]): row["count"]
            for row in newest_rows(tmp_path / "out" / "windows")
        }
        assert found == dict(expected)
        assert [each["query"] for each in engine.events if each["event"] == "spark_rows_late"] == [
            "impatient"
        ]


@pytest.mark.usefixtures("spark_of_engines")
def test_a_replay_is_reported_and_a_scheduled_job_ends_and_foreign_state_is_refused(tmp_path: Path) -> None:
    shard = Shard("shardId-000000000000", 2_000)
    with prepared(tmp_path, shard) as daemon:
        standing = hold_at(daemon, "in_batch")
        (tmp_path / "hold").write_text("in_batch")
        killed = daemon.start_engine(pipeline="jobs:noted")  # a process: it is killed
        daemon.start_relays()
        wait_for(standing, WITHIN_S)
        killed.kill()
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:noted", trigger="availableNow")
        daemon.start_relays()
        wait_for(lambda: engine.has("caught_up"), WITHIN_S)
        daemon.drain()
        assert engine.stop() == 0
        noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
        (first, again), later = noted[:2], noted[2:]
        assert first[:3] == ["0", "noted", "False"]
        assert again == ["0", "noted", "True", *first[3:]]
        assert [line[2] for line in later] == ["False"] * len(later)
        assert sum(int(line[3]) for line in noted[1:]) == 2_000
        assert shard.checkpoint == (BASE + 1_999, 0)

        shutil.rmtree(tmp_path / "state")
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:noted")
        daemon.start_relays()
        assert engine.wait(WITHIN_S) == EXIT_REFUSED
        assert "sparkStateReset=true" in engine.event("engine_refused")["error"]


@pytest.mark.usefixtures("spark_of_engines")
def test_a_pipeline_that_fails_holds_the_stream_and_says_where(tmp_path: Path) -> None:
    shard = Shard("shardId-000000000000", 500)
    with prepared(tmp_path, shard) as daemon:
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:failing", query_retries=1)
        daemon.start_relays()
        assert engine.wait(WITHIN_S) == EXIT_PIPELINE
        failed = engine.event("query_failed")
        assert failed["query"] == "poisoned"
        assert shard.shard_id in failed["ranges"]
        assert f"cannot digest batch {failed['batch']}" in engine.event("pipeline_failed")["error"]
        assert shard.checkpoint == START


@pytest.mark.usefixtures("spark_of_engines")
def test_a_batch_goes_on_without_the_records_of_a_shard_that_another_host_has(tmp_path: Path) -> None:
    """And when the shard comes back unfinished, they come in a later batch: none is lost, and none comes twice."""
    stays, moves = Shard("shardId-000000000000", 2_000), Shard("shardId-000000000001", 2_000)
    with prepared(tmp_path, stays, moves) as daemon:
        standing = hold_at(daemon, "in_batch")
        killed = daemon.start_engine(pipeline="jobs:two_sinks", max_bytes_per_trigger=60_000)
        daemon.start_relays()
        wait_for(standing, WITHIN_S)
        killed.kill()
        for relay in daemon.relays:
            relay.join(60)
        shutil.rmtree(tmp_path / "state" / "spool")
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:two_sinks", lost_after_ms=1_000)
        daemon.relays = [Relay(daemon, stays)]
        wait_for(lambda: stays.next_number == stays.count, WITHIN_S)
        left = [each for each in engine.events if each["event"] == "spark_range_left"]
        assert {each["query"] for each in left} >= {"batches"}
        assert all(list(each["ranges"]) == [moves.shard_id] for each in left)
        assert not any(
            "LostRange" in each["error"] for each in engine.events if each["event"] == "query_failed"
        )
        daemon.relays.append(Relay(daemon, moves))
        wait_for(daemon.is_done, WITHIN_S)
        daemon.drain()
        assert engine.stop() == 0
        for output in ("files", "batches"):
            assert account(daemon, tmp_path / "out" / output) == Account(0, 0)


@pytest.mark.usefixtures("spark_of_engines")
def test_a_query_whose_disk_is_full_goes_on_when_there_is_room(tmp_path: Path) -> None:
    shard = Shard("shardId-000000000000", 500)
    with prepared(tmp_path, shard) as daemon:
        (tmp_path / "full").touch()
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:crowded", query_retries=2)
        daemon.start_relays()
        wait_for(lambda: [each["event"] for each in engine.events].count("spark_disk_full") > 3, WITHIN_S)
        assert shard.checkpoint == START
        (tmp_path / "full").unlink()
        wait_for(daemon.is_done, WITHIN_S)
        daemon.drain()
        assert engine.stop() == 0


@pytest.mark.parametrize("batches", ["_spark_metadata/9.compact", "batch_id=0/part"])
def test_a_query_whose_state_is_gone_writes_into_no_output_of_its_own(
    batches: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Its batches have the numbers of old ones again."""
    claim_path(spark, str(tmp_path), state_id="a", query="raw", is_new=True)
    (tmp_path / batches).parent.mkdir()
    claim_path(spark, str(tmp_path), state_id="a", query="raw", is_new=batches.startswith("_"))  # none yet
    (tmp_path / batches).touch()
    claim_path(spark, str(tmp_path), state_id="a", query="raw", is_new=False)
    with pytest.raises(OutputTaken, match="a path of its own"):
        claim_path(spark, str(tmp_path), state_id="a", query="raw", is_new=True)


@pytest.mark.usefixtures("spark_of_engines")
def test_a_query_that_was_away_goes_on_at_the_checkpoints_and_says_so(tmp_path: Path) -> None:
    """And one with a new name begins there."""
    shard = Shard("shardId-000000000000", 300)
    with prepared(tmp_path, shard) as daemon:

        def run(pipeline: str) -> list[tuple[str, str]]:
            engine = daemon.start_engine_thread(pipeline=f"tests.spark.jobs:{pipeline}")
            daemon.start_relays()
            wait_for(daemon.is_done, WITHIN_S)
            daemon.drain()
            assert engine.stop() == 0
            shard.count += 300
            return [(each["event"], each["query"]) for each in engine.events if "query_" in each["event"]]

        assert run("one_and_two") == []
        assert run("one") == [("spark_query_removed", "two")]
        assert run("one_and_two") == [("spark_query_put_back", "two")]
        assert run("one_and_three") == [("spark_query_added", "three"), ("spark_query_removed", "two")]
        counts = {name: len(texts(tmp_path / "out" / name)) for name in ("one", "two", "three")}
        assert counts == {"one": 1_200, "two": 600, "three": 300}


@pytest.mark.usefixtures("spark_of_engines")
def test_a_query_whose_watermark_is_in_the_future_says_so_at_its_start(tmp_path: Path) -> None:
    for query in ("one", "two"):
        plan(tmp_path / "state" / "queries" / query, 0, {SHARD: at(1)}, committed=True)
        about = {"id": str(uuid.UUID(int=1))}
        (tmp_path / "state" / "queries" / query / "metadata").write_text(json.dumps(about))
    move_watermark(tmp_path / "state" / "queries" / "two", epoch_ms() + 3_600_000)
    with prepared(tmp_path) as daemon:
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:one_and_two")
        wait_for(lambda: engine.has("engine_ready"), WITHIN_S)
        assert engine.stop() == 0
        (said,) = (each for each in engine.events if each["event"] == "spark_watermark_ahead")
        assert (said["level"], said["query"], said["ahead_s"] > 3_000) == ("warning", "two", True)


@pytest.mark.usefixtures("spark_of_engines")
def test_two_queries_of_one_name_are_refused(tmp_path: Path) -> None:
    with prepared(tmp_path) as daemon:
        engine = daemon.start_engine_thread(pipeline="tests.spark.jobs:twins")
        assert engine.wait(WITHIN_S) == EXIT_REFUSED
        assert "two queries of the pipeline have the name 'rows'" in engine.event("engine_refused")["error"]


def test_a_process_that_must_not_start_says_why_and_ends_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.json").write_text('{"id": "x", "application": "another"}')
    with prepared(tmp_path) as daemon:
        engine = daemon.start_engine()
        assert engine.process.wait(WITHIN_S) == EXIT_REFUSED
        engine.close()
        assert "is the state of the application 'another'" in engine.event("engine_refused")["error"]
