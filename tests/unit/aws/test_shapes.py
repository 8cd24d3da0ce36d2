"""Answers of Kinesis: `kcl_daemon.transport.service_answers`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.errors import Unavailable
from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES
from kcl_daemon.transport import service_answers
from kcl_protocol.messages import Record

ENTRY: Any = {
    "SequenceNumber": "49",
    "PartitionKey": "k",
    "Data": "eA==",
    "ApproximateArrivalTimestamp": 1_795_190_407.66,
}


def test_a_record_is_taken_as_it_came() -> None:
    fetched = service_answers.fetched(
        {"Records": [ENTRY], "NextShardIterator": "next", "MillisBehindLatest": 7, "ChildShards": []}
    )
    assert fetched.records == [Record("eA==", "k", "49", 1_795_190_407_660)]
    assert (fetched.next_iterator, fetched.millis_behind_latest, fetched.child_shards) == ("next", 7, ())
    assert fetched.payload.size_bytes == 9 + RECORD_OVERHEAD_BYTES


def test_optional_fields_of_an_answer_are_none_when_absent() -> None:
    fetched = service_answers.fetched({"Records": [{"SequenceNumber": "1", "PartitionKey": "", "Data": ""}]})
    assert fetched.records == [Record("", "", "1", None)]
    assert (fetched.next_iterator, fetched.millis_behind_latest, fetched.child_shards) == (None, None, ())


@given(st.integers(0, 4_102_444_800_000))
def test_an_arrival_is_exact_to_the_millisecond(arrival_ms: int) -> None:
    entry: Any = {**ENTRY, "ApproximateArrivalTimestamp": arrival_ms / 1000}
    (record,) = service_answers.fetched({"Records": [entry]}).records
    assert record.approximate_arrival_timestamp == arrival_ms


RANGE = {"StartingHashKey": "0", "EndingHashKey": "9"}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"message": "<html>"},
        {"Records": None},
        {"Records": [{}]},
        {"Records": ["x"]},
        {"Records": [{**ENTRY, "ApproximateArrivalTimestamp": "yesterday"}]},
        {"Records": [], "ChildShards": [{"ShardId": "s"}]},
        {"Records": [], "ChildShards": [{"ShardId": "s", "ParentShards": [], "HashKeyRange": RANGE}]},
        {"Records": [{**ENTRY, "SequenceNumber": 24}]},
        {"Records": [{**ENTRY, "SequenceNumber": "x"}]},
        {"Records": [ENTRY, {**ENTRY, "SequenceNumber": "48"}]},
        {"Records": [{**ENTRY, "Data": None}]},
        {"Records": [{**ENTRY, "PartitionKey": 7}]},
        {"Records": [], "NextShardIterator": 7},
        {"Records": [], "MillisBehindLatest": "7"},
    ],
)
def test_a_malformed_answer_of_get_records_is_unavailable(answer: Any) -> None:
    with pytest.raises(Unavailable, match="GetRecords: the answer cannot be understood"):
        service_answers.fetched(answer)


@pytest.mark.parametrize("answer", [{}, {"Shards": [{"ShardId": "s"}]}, {"Shards": 7}])
def test_a_malformed_answer_of_list_shards_is_unavailable(answer: Any) -> None:
    with pytest.raises(Unavailable, match="ListShards"):
        service_answers.shards(answer)


def test_other_answers_that_are_none_are_unavailable() -> None:
    empty: Any = {}
    with pytest.raises(Unavailable, match="GetShardIterator"):
        service_answers.iterator(empty)
    with pytest.raises(Unavailable, match="DescribeStreamSummary"):
        service_answers.summary(empty)
