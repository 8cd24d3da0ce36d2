"""Messages to lines: golden lines, ASCII whatever the text, and the way back."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.codec import decode_child_line, decode_daemon_line, encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Record,
    Reject,
    RejectAnswer,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import TRIM_HORIZON

NUMBER = "49640000000000000000000000000000000000000000000000000115"

GOLDEN: list[tuple[Message, str]] = [
    (
        Initialize("shardId-000000000007", "TRIM_HORIZON", 0),
        '{"action":"initialize","shardId":"shardId-000000000007","sequenceNumber":"TRIM_HORIZON","subSequenceNumber":0}',
    ),
    (
        Initialize("shardId-000000000007", None, None),
        '{"action":"initialize","shardId":"shardId-000000000007","sequenceNumber":null,"subSequenceNumber":null}',
    ),
    (
        ProcessRecords([Record("eyJpZCI6N30=", "order-7", NUMBER, 1735689600250, 0)], 840),
        (
            '{"action":"processRecords","records":[{"data":"eyJpZCI6N30=","partitionKey":"order-7",'
            f'"sequenceNumber":"{NUMBER}","approximateArrivalTimestamp":1735689600250,"subSequenceNumber":0,'
            '"action":"record"}],"millisBehindLatest":840}'
        ),
    ),
    (
        ProcessRecords((Record("", "k", NUMBER),), None),
        (
            '{"action":"processRecords","records":[{"data":"","partitionKey":"k",'
            f'"sequenceNumber":"{NUMBER}","approximateArrivalTimestamp":null,"subSequenceNumber":0,'
            '"action":"record"}],"millisBehindLatest":null}'
        ),
    ),
    (ProcessRecords([], None), '{"action":"processRecords","records":[],"millisBehindLatest":null}'),
    (
        ProcessRecords([], 0, 1_735_689_601_000),
        '{"action":"processRecords","records":[],"millisBehindLatest":0,"completeMillis":1735689601000}',
    ),
    (
        CheckpointAnswer(None, None, None),
        '{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null,"error":null}',
    ),
    (
        CheckpointAnswer(NUMBER, None, "ThrottlingException"),
        f'{{"action":"checkpoint","sequenceNumber":"{NUMBER}","subSequenceNumber":null,"error":"ThrottlingException"}}',
    ),
    (ShutdownRequested(), '{"action":"shutdownRequested"}'),
    (LeaseLost(), '{"action":"leaseLost"}'),
    (ShardEnded(), '{"action":"shardEnded"}'),
    (ShardEnded(("a", "b")), '{"action":"shardEnded","childShards":["a","b"]}'),
    (Shutdown("ZOMBIE"), '{"action":"shutdown","reason":"ZOMBIE"}'),
    (Status("initialize"), '{"action":"status","responseFor":"initialize"}'),
    (Status(None), '{"action":"status","responseFor":null}'),
    (CheckpointRequest(), '{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null}'),
    (
        CheckpointRequest(NUMBER, 2),
        f'{{"action":"checkpoint","sequenceNumber":"{NUMBER}","subSequenceNumber":2}}',
    ),
    (
        Status("processRecords", pause_ms=5000),
        '{"action":"status","responseFor":"processRecords","pauseMillis":5000}',
    ),
    (
        Status("initialize", 1, None, NUMBER, 0),
        f'{{"action":"status","responseFor":"initialize","frames":1,"sequenceNumber":"{NUMBER}","subSequenceNumber":0}}',
    ),
    (
        Reject(NUMBER, 2, "größe"),
        f'{{"action":"reject","sequenceNumber":"{NUMBER}","subSequenceNumber":2,"reason":"gr\\u00f6\\u00dfe"}}',
    ),
    (
        RejectAnswer(NUMBER, 2, None),
        f'{{"action":"reject","sequenceNumber":"{NUMBER}","subSequenceNumber":2,"error":null,"message":null}}',
    ),
    (
        RejectAnswer(NUMBER, None, "DeadLetterTooLarge", "above 1 MiB"),
        (
            f'{{"action":"reject","sequenceNumber":"{NUMBER}","subSequenceNumber":null,'
            '"error":"DeadLetterTooLarge","message":"above 1 MiB"}'
        ),
    ),
]

any_text = st.text(alphabet=st.characters(exclude_categories=()))  # lone surrogates included
integers = st.integers(-(2**63), 2**63 - 1)
records = st.builds(Record, any_text, any_text, any_text, st.none() | integers, integers)
daemon_messages: st.SearchStrategy[DaemonMessage] = st.one_of(
    st.builds(
        Initialize,
        any_text,
        st.none() | any_text,
        st.none() | integers,
        st.none() | any_text,
        st.none() | any_text,
    ),
    st.builds(ProcessRecords, st.lists(records, max_size=4), st.none() | integers, st.none() | integers),
    st.builds(CheckpointAnswer, st.none() | any_text, st.none() | integers, st.none() | any_text),
    st.builds(
        RejectAnswer, st.none() | any_text, st.none() | integers, st.none() | any_text, st.none() | any_text
    ),
    st.builds(Shutdown, any_text),
    st.sampled_from([LeaseLost(), ShardEnded(), ShutdownRequested()]),
)
child_messages = st.one_of(
    st.builds(
        Status,
        st.none() | any_text,
        st.none() | integers,
        st.none() | integers,
        st.none() | any_text,
        st.none() | integers,
    ),
    st.builds(Reject, st.none() | any_text, st.none() | integers, any_text),
    st.builds(CheckpointRequest, st.none() | any_text, st.none() | integers),
)


@pytest.mark.parametrize(("message", "line"), GOLDEN)
def test_writes_the_line_that_kcl_writes(message: Message, line: str) -> None:
    assert encode(message) == line.encode() + b"\n"


def test_a_sentinel_is_written_as_its_text() -> None:
    line = encode(Initialize("s", TRIM_HORIZON.sequence_number, 0))
    assert b'"sequenceNumber":"TRIM_HORIZON"' in line


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("größe", b'"gr\\u00f6\\u00dfe"'),
        ("\U0001f600", b'"\\ud83d\\ude00"'),
        ("\u2028", b'"\\u2028"'),
        ("\ud800 alone", b'"\\ud800 alone"'),
        ('é"\\\n', b'"\\u00e9\\"\\\\\\n"'),
        ("\r\n", b'"\\r\\n"'),
        ("a/<b>&", b'"a/<b>&"'),
    ],
)
def test_a_partition_key_is_written_in_ascii(key: str, written: bytes) -> None:
    assert b'"partitionKey":' + written + b"," in encode(ProcessRecords([Record("", key, "1")], None))


def test_the_same_message_can_be_written_again_after_it_was_escaped() -> None:
    message = ProcessRecords([Record("", "é", "1"), Record("", "plain", "2")], None)
    assert encode(message) == encode(message)
    assert message.records[0].partition_key == "é"


@given(daemon_messages)
def test_a_message_of_the_daemon_is_decoded_by_the_client_as_it_was(message: DaemonMessage) -> None:
    line = encode(message)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_daemon_line(line) == message


@given(child_messages)
def test_a_message_of_the_client_is_decoded_by_the_daemon_as_it_was(message: ChildMessage) -> None:
    line = encode(message)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert decode_child_line(line) == message


@given(daemon_messages)
def test_the_standard_library_reads_the_same(message: DaemonMessage) -> None:
    fields = json.loads(encode(message))
    assert next(iter(fields)) == "action"
    assert fields["action"] == message.action
    if isinstance(message, ProcessRecords):
        assert [record["partitionKey"] for record in fields["records"]] == [
            record.partition_key for record in message.records
        ]
        assert all(list(record)[-1] == "action" for record in fields["records"])


def test_an_integer_beyond_64_bits_is_refused() -> None:
    with pytest.raises(TypeError, match="64-bit"):
        encode(CheckpointRequest("1", 2**70))


def test_ten_thousand_records_are_one_line() -> None:
    batch = ProcessRecords([Record("QUJD" * 20, f"ключ-{n}", str(n), n, 0) for n in range(10_000)], 0)
    line = encode(batch)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert len(orjson.loads(line)["records"]) == 10_000
