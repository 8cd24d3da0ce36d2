"""What the daemon makes of a child's stdout: KCL's tolerance, line by line."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.codec import Echo, Stray, decode_child_line
from kcl_protocol.messages import CheckpointRequest, Reject, Status

DIGITS = "49640000000000000000000000000000000000000000000000000115"
DONE = b'{"action":"status","responseFor":"initialize"}'


def stray(line: bytes) -> Stray:
    heard = decode_child_line(line)
    assert isinstance(heard, Stray), heard
    return heard


def checkpoint(fields: str) -> object:
    return decode_child_line(b'{"action":"checkpoint",' + fields.encode() + b"}")


@pytest.mark.parametrize("line", [b"", b"\n", b"\r\n", b"  \t "])
def test_a_blank_line_is_marked_as_such(line: bytes) -> None:
    assert decode_child_line(line) == Stray("blank line", "", blank=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"starting up", "not a JSON object"),
        (b'["status"]', "not a JSON object"),
        (b"17", "not a JSON object"),
        (b'"status"', "not a JSON object"),
        (b"true", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"\xef\xbb\xbf" + DONE, "not a JSON object"),
        (b"\xff\xfe" + DONE, "not a JSON object"),
        (DONE[:-1], "not JSON: "),
        (b"{action: status}", "not JSON: "),
        (b'{"action":"status","responseFor":NaN}', "not JSON: NaN is not a JSON value"),
        (b'{"action":"status","responseFor":"a\tb"}', "not JSON: "),
        (b"{" + b'"a":[' * 200_000, "not JSON: "),
        (b"{}", 'no "action"'),
        (b'{"level":"info"}', 'no "action"'),
        (b'{"action":null}', 'no "action"'),
        (b'{"action":["status"]}', 'no "action"'),
        (b'{"Action":"status","responseFor":"initialize"}', 'no "action"'),
        (b'{"action":"Status","responseFor":"initialize"}', "unknown action 'Status'"),
        (b'{"action":"record"}', "unknown action 'record'"),
        (b'{"action":"status","responseFor":{"a":1}}', '"responseFor" is not a text'),
        (b'{"action":"checkpoint","sequenceNumber":[1]}', '"sequenceNumber" is not a text'),
    ],
)
def test_a_line_that_is_no_message_is_stray_and_says_why(line: bytes, reason: str) -> None:
    heard = stray(line)
    assert heard.reason.startswith(reason)
    assert not heard.blank


def test_a_stray_line_is_kept_readable() -> None:
    assert stray(b" caf\xe9 \xe2\x82\xac\r\n").text == "caf\ufffd €"


@pytest.mark.parametrize("character", ["x", "é", "😀"])
def test_a_long_stray_line_is_cut(character: str) -> None:
    assert stray((character * 5_000).encode()).text == character * 2_000 + "…"
    assert stray((character * 2_000).encode()).text == character * 2_000


def test_the_reason_does_not_repeat_a_long_action() -> None:
    assert len(stray(b'{"action":"%s"}' % (b"x" * 5_000)).reason) < 120


@pytest.mark.parametrize(
    "action",
    ["initialize", "processRecords", "leaseLost", "shardEnded", "shutdownRequested", "shutdown"],
)
def test_an_echoed_daemon_message_is_an_echo(action: str) -> None:
    assert decode_child_line(f'{{"action":"{action}","whatever":1}}'.encode()) == Echo(action)


@pytest.mark.parametrize(
    "line",
    [
        DONE,
        DONE + b"\n",
        DONE + b"\r\n",
        b"   " + DONE,
        b'{ "responseFor" : "initialize" , "action" : "status" }',
        b'{"action":"status","responseFor":"initialize","pid":1,"more":{"a":[1]}}',
        DONE + b' {"action":"status","responseFor":"processRecords"}',
        DONE + b"trailing \xff text",
        b'{"action":"status","responseFor":"initiali\\u007ae"}',
    ],
)
def test_a_status_with_other_spacing_or_extra_fields_is_read(line: bytes) -> None:
    assert decode_child_line(line) == Status("initialize")


@pytest.mark.parametrize(
    ("value", "read"),
    [("null", None), ("true", "true"), ("false", "false"), ("5", "5"), ('""', ""), ('"\\ud800"', "\ud800")],
)
def test_a_status_for_something_else_is_read_as_it_is(value: str, read: str | None) -> None:
    assert decode_child_line(f'{{"action":"status","responseFor":{value}}}'.encode()) == Status(read)


def test_a_status_without_its_action_is_read() -> None:
    assert decode_child_line(b'{"action":"status"}') == Status(None)


def test_undecodable_bytes_inside_a_message_are_replaced_as_in_kcl() -> None:
    assert decode_child_line(b'{"action":"status","responseFor":"\xff"}') == Status("\ufffd")


@pytest.mark.parametrize(
    ("fields", "request_read"),
    [
        ('"sequenceNumber":null,"subSequenceNumber":null', CheckpointRequest()),
        ('"error":null', CheckpointRequest()),
        ('"error":{"ignored":1},"sequenceNumber":"7"', CheckpointRequest("7")),
        (f'"sequenceNumber":"{DIGITS}","subSequenceNumber":2', CheckpointRequest(DIGITS, 2)),
        (f'"sequenceNumber":{DIGITS}', CheckpointRequest(DIGITS)),
        ('"sequenceNumber":7', CheckpointRequest("7")),
        ('"sequenceNumber":1.50e3', CheckpointRequest("1.50e3")),
        ('"sequenceNumber":""', CheckpointRequest("")),
        ('"checkpoint":"7"', CheckpointRequest("7")),
        ('"checkpoint":null', CheckpointRequest()),
        ('"checkpoint":"7","sequenceNumber":"8"', CheckpointRequest("8")),
    ],
)
def test_a_checkpoint_request_is_read_in_every_form(fields: str, request_read: CheckpointRequest) -> None:
    assert checkpoint(fields) == request_read


def test_a_numeric_sequence_number_of_any_length_keeps_its_digits() -> None:
    digits = "9" * 10_000
    assert checkpoint(f'"sequenceNumber":{digits}') == CheckpointRequest(digits)


def test_a_numeric_sequence_number_becomes_an_ordinary_text() -> None:
    request = checkpoint('"sequenceNumber":7')
    assert isinstance(request, CheckpointRequest)
    assert type(request.sequence_number) is str


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("3", 3),
        ("-1", -1),
        ('"3"', 3),
        ('" 3 "', 3),
        ("4.7", 4),
        ("-4.7", -4),
        ("1e3", 1000),
        ('""', None),
        ('"null"', None),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        (f'"{2**63 - 1}"', 2**63 - 1),
    ],
)
def test_a_sub_sequence_number_is_taken_for_the_integer_it_means(value: str, read: int | None) -> None:
    assert checkpoint(f'"subSequenceNumber":{value}') == CheckpointRequest(None, read)


@pytest.mark.parametrize(
    "value",
    [
        "true",
        "[]",
        "{}",
        '"many"',
        '"4.7"',
        '"\u0663"',
        str(2**63),
        str(-(2**63) - 1),
        "1e400",
        "-1e400",
        "9" * 9_000,
    ],
)
def test_a_checkpoint_request_with_an_impossible_sub_sequence_number_is_stray(value: str) -> None:
    heard = checkpoint(f'"subSequenceNumber":{value}')
    assert isinstance(heard, Stray)
    assert heard.reason == '"subSequenceNumber" is not a 64-bit integer'


@pytest.mark.parametrize(
    ("fields", "rejected"),
    [
        (f'"sequenceNumber":"{DIGITS}","subSequenceNumber":2,"reason":"bad"', Reject(DIGITS, 2, "bad")),
        (f'"sequenceNumber":{DIGITS}', Reject(DIGITS, None, "")),
        ('"sequenceNumber":"7","reason":null,"more":[1]', Reject("7")),
        ('"sequenceNumber":"7","subSequenceNumber":"1","reason":17', Reject("7", 1, "17")),
        ('"reason":"bad"', Reject(None, None, "bad")),
    ],
)
def test_a_reject_is_read_in_every_form(fields: str, rejected: Reject) -> None:
    assert decode_child_line(b'{"action":"reject",' + fields.encode() + b"}") == rejected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ('"sequenceNumber":[1]', '"sequenceNumber" is not a text'),
        ('"subSequenceNumber":"many"', '"subSequenceNumber" is not a 64-bit integer'),
        ('"reason":{"a":1}', '"reason" is not a text'),
    ],
)
def test_a_reject_of_no_sense_is_stray(fields: str, reason: str) -> None:
    assert stray(b'{"action":"reject",' + fields.encode() + b"}").reason == reason


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ('"pauseMillis":5000', Status("processRecords", pause_ms=5000)),
        ('"pauseMillis":"5000"', Status("processRecords", pause_ms=5000)),
        ('"pauseMillis":1.5e3', Status("processRecords", pause_ms=1500)),
        ('"pauseMillis":null,"frames":null', Status("processRecords")),
        ('"pauseMillis":-1', Status("processRecords", pause_ms=-1)),
        (
            f'"sequenceNumber":"{DIGITS}","subSequenceNumber":3',
            Status("processRecords", sequence_number=DIGITS, sub_sequence_number=3),
        ),
    ],
)
def test_optional_fields_of_a_status_are_read(fields: str, read: Status) -> None:
    assert (
        decode_child_line(f'{{"action":"status","responseFor":"processRecords",{fields}}}'.encode()) == read
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.binary() | st.binary().map(lambda tail: b'{"action":"checkpoint",' + tail))
def test_any_bytes_of_a_child_become_a_message_or_a_stray_line(line: bytes) -> None:
    assert isinstance(decode_child_line(line), Status | CheckpointRequest | Reject | Echo | Stray)


@given(
    st.sampled_from(["status", "checkpoint", "reject", "initialize", "other"]) | json_values,
    st.dictionaries(
        st.sampled_from(
            [
                *("responseFor", "pauseMillis", "frames", "sequenceNumber", "subSequenceNumber"),
                *("checkpoint", "reason", "error", "x"),
            ]
        ),
        json_values,
    ),
)
def test_no_value_in_any_field_raises(action: object, fields: dict[str, object]) -> None:
    heard = decode_child_line(json.dumps({"action": action, **fields}).encode())
    assert isinstance(heard, Status | CheckpointRequest | Reject | Echo | Stray)
    if isinstance(heard, Stray):
        assert heard.reason
        assert not heard.blank


@given(st.integers(min_value=0))
def test_a_number_and_its_text_mean_the_same(number: int) -> None:
    assert checkpoint(f'"sequenceNumber":{number}') == checkpoint(f'"sequenceNumber":"{number}"')


@pytest.mark.parametrize(
    "line",
    [
        b'{"action":"checkpoint","subSequenceNumber":' + b"9" * 5_000 + b"}",
        b'{"action":"checkpoint","subSequenceNumber":"' + b"9" * 1_000_000 + b'"}',
        b'{"action":"checkpoint","subSequenceNumber":1e999999999}',
        b'{"action":"checkpoint","sequenceNumber":' + b"[" * 500_000,
        b'{"a":' * 200_000,
        b'{"action":"' + b"x" * 1_000_000 + b'"}',
        b"{" + b'"a":1,' * 150_000 + b"}",
    ],
    ids=["long number", "long text", "exponent", "arrays", "objects", "action", "keys"],
)
def test_a_hostile_line_is_stray_soon_and_small(line: bytes) -> None:
    began = time.thread_time()
    found = decode_child_line(line)
    assert time.thread_time() - began < 1.0
    assert isinstance(found, Stray)
    assert len(found.text) < 2_100
    assert len(found.reason) < 300


def test_no_digit_of_a_long_sequence_number_is_read_as_a_number() -> None:
    digits = "9" * 5_000
    asked = decode_child_line(b'{"action":"checkpoint","sequenceNumber":' + digits.encode() + b"}")
    assert asked == CheckpointRequest(digits, None)


PADDING = b',"more":[' + b"1," * 20_000 + b'1.5,{},null],"x":1e5}'


@pytest.mark.parametrize(
    "line",
    [
        b'{"action":"checkpoint","sequenceNumber":49590338271490256608559692538361571095921575989136588898,"subSequenceNumber":"3"',
        b'{"action":"checkpoint","checkpoint":"123","subSequenceNumber":4.7',
        b'{"action":"status","responseFor":"processRecords","frames":1,"pauseMillis":1e3',
        b'{"action":"reject","sequenceNumber":"5","subSequenceNumber":-0,"reason":true',
        b'{"action":"checkpoint","sequenceNumber":5,"subSequenceNumber":9223372036854775808',
        b'{"action":"status","responseFor":["x"]',
        b'{"action":1',
    ],
)
def test_a_long_line_means_what_a_short_one_does(line: bytes) -> None:
    short, long = decode_child_line(line + b"}"), decode_child_line(line + PADDING)
    if isinstance(short, Stray):
        assert isinstance(long, Stray)
        assert long.reason == short.reason
    else:
        assert long == short


@pytest.mark.parametrize("of", [b"1,", b"1.5,", b"{},", b"[],", b'{"":0},', b'"",', b"-1e5,"])
def test_a_line_as_long_as_may_be_does_not_stop_the_loop(of: bytes) -> None:
    line = b'{"action":"status","responseFor":"initialize","x":[' + of * (1_000_000 // len(of)) + b"0]}"
    took_s = []
    for _ in range(3):
        began_s = time.thread_time()
        assert decode_child_line(line) == Status("initialize")
        took_s.append(time.thread_time() - began_s)
    began_s = time.thread_time()
    json.loads(line)
    assert min(took_s) < max(0.1, 2 * (time.thread_time() - began_s))
