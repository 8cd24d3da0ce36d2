"""What a client makes of a daemon's line: strict, but content with older and newer daemons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    RejectAnswer,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
)

RECORD = '{"data":"QQ==","partitionKey":"k","sequenceNumber":"7"%s}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"action":"initialize","shardId":"s"}', Initialize("s", None, None)),
        (
            '{"action":"initialize","shardId":"s","streamName":"n","streamArn":"a"}',
            Initialize("s", None, None, "n", "a"),
        ),
        (
            '{"action":"initialize","shardId":"s","sequenceNumber":"LATEST","subSequenceNumber":0,"new":{"a":1}}',
            Initialize("s", "LATEST", 0),
        ),
        ('{"action":"processRecords","records":[]}', ProcessRecords([], None)),
        (
            '{"action":"processRecords","records":[%s],"millisBehindLatest":5}' % (RECORD % ""),
            ProcessRecords([Record("QQ==", "k", "7", None, 0)], 5),
        ),
        (
            '{"action":"processRecords","records":[%s]}'
            % (RECORD % ',"subSequenceNumber":null,"approximateArrivalTimestamp":null,"action":"record"'),
            ProcessRecords([Record("QQ==", "k", "7", None, 0)], None),
        ),
        (
            '{"action":"processRecords","records":[%s]}'
            % (RECORD % ',"subSequenceNumber":3,"approximateArrivalTimestamp":17,"schema":"x"'),
            ProcessRecords([Record("QQ==", "k", "7", 17, 3)], None),
        ),
        (
            '{"action":"processRecords","records":[%s]}' % (RECORD % ',"partitionKey":"\\ud800"'),
            ProcessRecords([Record("QQ==", "\ud800", "7")], None),
        ),
        ('{"action":"checkpoint"}', CheckpointAnswer(None, None, None)),
        (
            '{"action":"checkpoint","sequenceNumber":"7","subSequenceNumber":1,"error":"ShutdownException"}',
            CheckpointAnswer("7", 1, "ShutdownException"),
        ),
        ('{"action":"checkpoint","checkpoint":"7","error":null}', CheckpointAnswer("7", None, None)),
        (
            '{"action":"checkpoint","checkpoint":"7","sequenceNumber":null}',
            CheckpointAnswer(None, None, None),
        ),
        ('{"action":"reject"}', RejectAnswer(None, None, None)),
        (
            '{"action":"reject","sequenceNumber":"7","subSequenceNumber":1,"error":"Odd","message":"m","new":1}',
            RejectAnswer("7", 1, "Odd", "m"),
        ),
        ('{"action":"leaseLost"}', LeaseLost()),
        ('{"action":"shardEnded","checkpoint":null}', ShardEnded()),
        ('{"action":"shardEnded","childShards":["a","b"]}', ShardEnded(("a", "b"))),
        (' { "action" : "shutdownRequested" } \r\n', ShutdownRequested()),
        ('{"action":"shutdown","reason":"TERMINATE"}', Shutdown("TERMINATE")),
    ],
)
def test_reads_old_and_new_forms(line: str, message: DaemonMessage) -> None:
    assert decode_daemon_line(line.encode()) == message


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"", "is not JSON"),
        (b"hello", "is not JSON"),
        (b'{"action":"leaseLost"', "is not JSON"),
        (b'{"action":"leaseLost"}{"action":"leaseLost"}', "is not JSON"),
        (b'\xef\xbb\xbf{"action":"leaseLost"}', "is not JSON"),
        (b'{"action":"leaseLost","x":"\xff"}', "is not JSON"),
        (b'{"action":"leaseLost","x":NaN}', "NaN is not a JSON value"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"{}", '"action" must be one of a daemon\'s, but is null or missing'),
        (b'{"action":5}', '"action" must be one of a daemon\'s, but is 5'),
        (b'{"action":"status"}', "\"action\" must be one of a daemon's, but is 'status'"),
        (b'{"action":"initialize"}', '"shardId" must be a text, but is null or missing'),
        (b'{"action":"initialize","shardId":7}', '"shardId" must be a text, but is 7'),
        (
            b'{"action":"initialize","shardId":"s","sequenceNumber":7}',
            '"sequenceNumber" must be a text or null, but is 7',
        ),
        (
            b'{"action":"initialize","shardId":"s","subSequenceNumber":"0"}',
            "\"subSequenceNumber\" must be an integer of 64 bits or null, but is '0'",
        ),
        (
            b'{"action":"processRecords","records":[],"millisBehindLatest":true}',
            '"millisBehindLatest" must be an integer of 64 bits or null, but is True',
        ),
        (
            b'{"action":"processRecords","records":[],"millisBehindLatest":0,"completeMillis":"1"}',
            "\"completeMillis\" must be an integer of 64 bits or null, but is '1'",
        ),
        (
            b'{"action":"processRecords","records":[],"millisBehindLatest":1.5}',
            '"millisBehindLatest" must be an integer of 64 bits or null, but is 1.5',
        ),
        (b'{"action":"processRecords"}', '"records" must be an array, but is null or missing'),
        (b'{"action":"processRecords","records":{}}', '"records" must be an array, but is an object'),
        (b'{"action":"processRecords","records":[[]]}', '"records[0]" must be an object, but is an array'),
        (
            b'{"action":"processRecords","records":[%s,{"data":""}]}' % (RECORD % "").encode(),
            'records[1]: "sequenceNumber" must be a text, but is null or missing',
        ),
        (
            b'{"action":"processRecords","records":[{"data":"","partitionKey":7}]}',
            'records[0]: "partitionKey" must be a text or null, but is 7',
        ),
        (b'{"action":"checkpoint","error":5}', '"error" must be a text or null, but is 5'),
        (b'{"action":"reject","message":5}', '"message" must be a text or null, but is 5'),
        (b'{"action":"shutdown"}', '"reason" must be a text, but is null or missing'),
    ],
)
def test_a_line_that_no_daemon_sends_is_refused_and_named(line: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_daemon_line(line)
    assert what in str(caught.value)


def test_the_error_shows_the_beginning_of_the_line_only() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_daemon_line(b'{"action":"%s"}' % (b"x" * 100_000))
    assert len(str(caught.value)) < 400
    assert '{"action":"xxx' in str(caught.value)


@given(st.binary())
def test_any_other_bytes_are_a_protocol_error_and_nothing_else(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_daemon_line(line)
