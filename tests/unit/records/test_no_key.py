"""A record without a partition key, as streams with RecordDistributionStrategy AUTO have them, wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable

import orjson
import pytest

from kcl_client import Record as ClientRecord
from kcl_daemon.ports import PushedRecords
from kcl_daemon.records.batch_text import BatchText
from kcl_daemon.records.lane_window import key_hash
from kcl_daemon.records.payload import AnyRecord, Payload, detach, key_text
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.transport.event_stream import decode_event
from kcl_daemon.transport.kinesis import fetched
from kcl_landing.records import frame_to_arrow, read_line, to_arrow
from kcl_protocol.arrow import arrays_of, arrays_of_rows
from kcl_protocol.codec import FRAME_START, decode_daemon_line
from kcl_protocol.frames import decode_frame
from kcl_protocol.messages import ProcessRecords, Record

KEYS = ["a", None, "\u00e9", None]
PLACES = pytest.mark.parametrize("place", [0, 1, 2])
WAYS = pytest.mark.parametrize("key", [{}, {"PartitionKey": None}], ids=["absent", "null"])
READS = pytest.mark.parametrize("read", [fetched, decode_event])
LENIENTLY = pytest.mark.parametrize("other", ["b", "\ud800"], ids=["fast", "leniently"])


def answer(key: dict[str, None], place: int, other: str) -> bytes:
    """Three records, one of them without a key; half of a surrogate pair is only read leniently."""
    records: list[dict[str, object]] = [
        {
            "SequenceNumber": str(number),
            "Data": "AAAA",
            **(key if number == place else {"PartitionKey": other}),
        }
        for number in range(3)
    ]
    more = {"NextShardIterator": "next", "ContinuationSequenceNumber": "9", "MillisBehindLatest": 0}
    return json.dumps({"Records": records, **more}).encode()


@WAYS
@PLACES
@READS
@LENIENTLY
def test_an_answer_with_a_record_without_a_key_is_read(
    key: dict[str, None], place: int, read: Callable[[bytes], PushedRecords], other: str
) -> None:
    found = read(answer(key, place, other)).payload
    assert [each.partition_key for each in found.decoded()] == [
        None if number == place else other for number in range(3)
    ]
    line = json.loads(found.line(None))
    assert [each["partitionKey"] for each in line["records"]].index(None) == place


def payload() -> Payload:
    return Payload.of([Record("AAAA", key, str(number)) for number, key in enumerate(KEYS)])


def test_the_line_says_null_as_the_java_daemon_does() -> None:
    line = payload().line(None)
    assert b'{"data":"AAAA","partitionKey":null,"sequenceNumber":"1",' in line
    message = decode_daemon_line(line)
    assert isinstance(message, ProcessRecords)
    assert [each.partition_key for each in message.records] == KEYS


def test_a_client_of_an_earlier_version_reads_the_frame_with_empty_keys() -> None:
    """It does not know the field of the header."""
    said = payload().frame(None)
    assert said.startswith(FRAME_START)
    head, _, body = said.partition(b"\n")
    assert orjson.loads(head)["keyless"] is True
    earlier = head.replace(b',"keyless":true', b"")
    assert earlier != head
    assert [each.partition_key for each in decode_frame(earlier + b"\n" + body)[0]] == ["a", "", "\u00e9", ""]


def test_a_frame_where_all_have_keys_does_not_say_that_some_have_none() -> None:
    said = Payload.of([Record("AAAA", "", "1"), Record("AAAA", "k", "2")]).frame(None)
    assert b"keyless" not in said.partition(b"\n")[0]
    assert [each.partition_key for each in decode_frame(said)[0]] == ["", "k"]


def test_the_arrow_column_is_null() -> None:
    frame, _ = decode_frame(payload().frame(None))
    assert arrays_of(frame)[1].to_pylist() == KEYS
    assert arrays_of_rows(frame.rows())[1].to_pylist() == KEYS


def test_the_columns_of_a_landing_segment_are_null() -> None:
    frame, _ = decode_frame(payload().frame(None))
    line = read_line(payload().line(None))
    for batch in (
        frame_to_arrow(frame, stream="s", shard_id="0"),
        to_arrow(line.records, stream="s", shard_id="0"),
    ):
        assert batch.column("partition_key").to_pylist() == KEYS


@pytest.mark.parametrize("write", [Payload.line, Payload.frame])
def test_a_rejected_record_is_found_without_its_key(write: Callable[[Payload, None], bytes]) -> None:
    found = BatchText(write(payload(), None)).find("1", 0)
    assert found is not None
    assert found.partition_key is None


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ('{"partitionKey": [{"exists": false}]}', [1, 3]),
        ('{"partitionKey": [{"exists": true}]}', [0, 2]),
        ('{"partitionKey": ["a"]}', [0]),
        ('{"partitionKey": [{"anything-but": "a"}]}', [2]),
        ('{"partitionKey": [{"prefix": ""}]}', [0, 2]),
        ('{"partitionKey": [null]}', []),
    ],
)
def test_to_a_filter_the_field_is_absent(pattern: str, kept: list[int]) -> None:
    found = RecordFilter.of(pattern).kept(payload())
    assert [int(each.sequence_number) for each in found.records] == kept


def test_records_without_a_key_are_spread_over_lanes_by_their_sequence_numbers() -> None:
    records = Payload.of([Record("AAAA", None, str(number)) for number in range(400)]).records
    lanes = [key_hash(each) % 4 for each in records]
    assert all(60 < lanes.count(lane) < 140 for lane in range(4))
    again = Payload.of_line(Payload(records, 0).frame(None))[0].records
    assert [key_hash(each) % 4 for each in again] == lanes


def test_a_record_that_is_kept_has_no_key_still() -> None:
    def kept(record: AnyRecord) -> str | None:
        detach(record)
        return key_text(record)

    assert [kept(each) for each in payload().records] == KEYS


def test_python_says_none() -> None:
    record = ClientRecord(Record("AAAA", None, "7"))
    assert record.partition_key is None
    assert "partition_key=None" in repr(record)
