"""Writing into Kinesis: nothing is lost, the records of a key keep their order, and aggregates are KPL's."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

import kcl_spark_sink
from kcl_daemon.records.kpl import parse
from kcl_spark_sink import Entry, KinesisSink, NotWritten, Sending, aggregated, pick, register
from tests.process.local import local_process
from tests.unit.records.aggregates import AggregatedRecord

KEYS = st.sampled_from(["a", "b", "c"])
ROWS = st.lists(KEYS, max_size=60).map(
    lambda keys: [Entry(str(number).encode(), key) for number, key in enumerate(keys)]
)


class Stream:
    """Takes records but those that `refuses` names, by the number of the attempt."""

    def __init__(self, refuses: Sequence[int] = ()) -> None:
        self.refuses = set(refuses)
        self.attempts = 0
        self.taken: dict[str, list[bytes]] = defaultdict(list)

    def put(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        said = [self._take(each) for each in records]
        return {"Records": said, "FailedRecordCount": sum("ErrorCode" in each for each in said)}

    def _take(self, record: Mapping[str, Any]) -> dict[str, str]:
        self.attempts += 1
        if self.attempts in self.refuses:
            return {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Rate exceeded"}
        self.taken[record["PartitionKey"]].append(record["Data"])
        return {"SequenceNumber": str(self.attempts)}


class Time:
    def __init__(self) -> None:
        self.s = 0.0

    def pause(self, seconds: float) -> None:
        self.s += seconds


def sending(stream: Stream, *, ordered: bool = True, timeout_s: float = 60) -> Sending:
    time = Time()
    return Sending(stream.put, ordered=ordered, timeout_s=timeout_s, pause=time.pause, now_s=lambda: time.s)


def by_key(entries: Sequence[Entry]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for each in entries:
        found[each.key].append(each.data)
    return found


@given(entries=ROWS, refuses=st.lists(st.integers(1, 200), max_size=100))
def test_refused_records_are_sent_again_and_the_order_of_a_key_is_kept(
    entries: list[Entry], refuses: list[int]
) -> None:
    stream = Stream(refuses)
    assert sending(stream).send(entries) == len(entries)
    assert stream.taken == by_key(entries)


@given(entries=ROWS, refuses=st.lists(st.integers(1, 200), max_size=100))
def test_without_order_nothing_is_lost_or_written_twice(entries: list[Entry], refuses: list[int]) -> None:
    stream = Stream(refuses)
    assert sending(stream, ordered=False).send(entries) == len(entries)
    assert {key: sorted(each) for key, each in stream.taken.items()} == {
        key: sorted(each) for key, each in by_key(entries).items()
    }


@given(entries=ROWS, most_bytes=st.integers(1, 40), refuses=st.lists(st.integers(1, 50), max_size=20))
def test_aggregates_hold_all_rows_in_the_order_of_each_key(
    entries: list[Entry], most_bytes: int, refuses: list[int]
) -> None:
    stream = Stream(refuses)
    assert sending(stream).send(aggregated(entries, most_bytes)) == len(entries)
    found: dict[str, list[bytes]] = defaultdict(list)
    for key, outer in stream.taken.items():
        for message in outer:
            assert message[:4] == b"\xf3\x89\x9a\xc2"
            for record in parse(message[4:-16]).records:
                found[key].append(record[2])
    assert found == by_key(entries)


def test_an_aggregate_is_what_others_read_too() -> None:
    (entry,) = aggregated([Entry(b"one", "k", "17"), Entry(b"", "k", "17")], 1_000)
    read = AggregatedRecord.FromString(entry.data[4:-16])
    assert (entry.rows, entry.key, entry.hash_key) == (2, "k", "17")
    assert (list(read.partition_key_table), list(read.explicit_hash_key_table)) == (["k"], ["17"])
    assert [(each.data, each.explicit_hash_key_index) for each in read.records] == [(b"one", 0), (b"", 0)]
    assert entry.data[-16:] == md5(entry.data[4:-16]).digest()


def test_a_request_keeps_to_the_limits_of_kinesis() -> None:
    many = [Entry(b"x", str(number)) for number in range(501)]
    assert len(pick(many, ordered=True)[0]) == 500
    large = [Entry(b"x" * 3_000_000, str(number)) for number in range(2)]
    chosen, rest = pick([*large, Entry(b"later", "1")], ordered=True)
    assert (len(chosen), [each.key for each in rest]) == (1, ["1", "1"])


def test_a_stream_that_takes_nothing_fails_the_task_with_its_reason() -> None:
    with pytest.raises(NotWritten, match=r"none of 1 records for 60 s: ProvisionedThroughput.*Rate exceeded"):
        sending(Stream(range(1, 10_000))).send([Entry(b"x", "k")])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["key"], "cannot write the column 'key'"),
        (["partition_key"], "needs the column data"),
        (["data", "partition_key", "partitionKey"], "cannot write the column 'partitionKey'"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_with_words(columns: list[str], words: str) -> None:
    schema = StructType([StructField(name, StringType()) for name in columns])
    with pytest.raises(ValueError, match=words):
        KinesisSink({"streamName": "s"}).writer(schema, overwrite=False)


def test_a_column_of_a_wrong_type_is_refused_with_words() -> None:
    with pytest.raises(ValueError, match="'data' is bigint"):
        KinesisSink({"streamName": "s"}).writer(
            StructType([StructField("data", LongType())]), overwrite=False
        )


def test_the_file_runs_on_python_3_9() -> None:
    ast.parse(Path(kcl_spark_sink.__file__).read_text(), feature_version=(3, 9))


def test_a_frame_is_written_and_streamed(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with local_process() as local:
        client = boto3.client(
            "kinesis",
            endpoint_url=local.kinesis_url,
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )
        client.create_stream(StreamName="sink", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="sink", WaiterConfig={"Delay": 1})
        where = {"streamName": "sink", "endpoint": local.kinesis_url, "region": "us-east-1"}
        rows = spark.range(300).selectExpr("cast(id as string) data", "cast(id % 7 as string) partition_key")
        rows.coalesce(1).write.format("kinesis").options(**where).mode("append").save()
        rows.coalesce(1).write.mode("overwrite").parquet(str(tmp_path / "in"))
        streamed = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
        query = (
            streamed.writeStream.format("kinesis")
            .options(**where, aggregate="true", checkpointLocation=str(tmp_path / "state"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        shard = client.list_shards(StreamName="sink")["Shards"][0]["ShardId"]
        iterator = client.get_shard_iterator(
            StreamName="sink", ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )
        records = client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    plain = by_key([Entry(each["Data"], each.get("PartitionKey", "")) for each in records[:300]])
    assert plain == {str(key): [str(number).encode() for number in range(key, 300, 7)] for key in range(7)}
    assert len(records) == 307
    inside = {
        each.get("PartitionKey"): [one[2] for one in parse(each["Data"][4:-16]).records]
        for each in records[300:]
    }
    assert inside == plain
