"""The two ends of a conversation, from bytes to messages and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_protocol.codec import LogLine, Stray, decode_daemon_line, encode, encode_log_line
from kcl_protocol.conversation import ChildSide, DaemonSide
from kcl_protocol.errors import LocalProtocolError, RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Status,
)

START = Initialize("shardId-1", "TRIM_HORIZON", 0)
DONE = Status("initialize")
LOG = LogLine("info", "hello")


def child(max_line_bytes: int = 10_000) -> ChildSide[DaemonMessage]:
    return ChildSide(decode_daemon_line, max_line_bytes=max_line_bytes)


def test_both_ends_hold_a_conversation_over_bytes() -> None:
    ours, theirs = DaemonSide(), child()
    for say in (START, ProcessRecords([], 0), LeaseLost()):
        theirs.receive_data(ours.send_data(say))
        assert theirs.next_message() == say
        (blank, answer) = ours.receive_data(theirs.send_data(Status(say.action)))
        assert blank == Stray("blank line", "", blank=True)
        assert isinstance(answer, Status)
        ours.receive(answer)
    assert ours.is_over
    assert theirs.is_over


def test_a_child_may_speak_early_and_is_judged_when_its_turn_comes() -> None:
    side = DaemonSide()
    side.send(START)
    done, again = side.receive_data(encode(DONE) * 2)
    assert (done, again) == (DONE, DONE)
    side.receive(DONE)
    with pytest.raises(RemoteProtocolError):
        side.receive(DONE)


def test_the_last_line_of_a_child_needs_no_end() -> None:
    side = DaemonSide()
    assert list(side.receive_data(encode(DONE).rstrip())) == []
    assert list(side.receive_data(b"")) == [DONE]
    assert list(side.receive_data(b"")) == []


def test_a_stray_line_says_why_it_is_no_message() -> None:
    side = DaemonSide(max_line_bytes=50)
    assert list(side.receive_data(b"x" * 51 + b"\n" + encode(LeaseLost()))) == [
        Stray("a line of 51 bytes", "x" * 51),
        Stray("it echoed an action of ours", "leaseLost"),
    ]


def test_log_messages_need_leave() -> None:
    line = encode_log_line(LOG)
    assert list(DaemonSide(accepts_logs=True).receive_data(line + b"hello\n")) == [
        LOG,
        Stray("not a JSON object", "hello"),
    ]
    (stray,) = DaemonSide().receive_data(line)
    assert isinstance(stray, Stray)


def test_each_side_refuses_to_send_a_forbidden_message() -> None:
    with pytest.raises(LocalProtocolError):
        DaemonSide().send_data(CheckpointAnswer(None, None, None))
    with pytest.raises(LocalProtocolError):
        child().send_data(DONE)


def test_a_child_waits_for_whole_lines_and_passes_over_blank_ones() -> None:
    side, line = child(), encode(START)
    side.receive_data(b"\r\n  \n" + line[:20])
    assert side.next_message() is None
    side.receive_data(line[20:])
    assert side.next_message() == START


def test_a_child_refuses_a_line_beyond_its_limit_and_a_message_out_of_turn() -> None:
    side = child(60)
    side.receive_data(b"x" * 61 + b"\n" + encode(LeaseLost()))
    with pytest.raises(RemoteProtocolError, match="61 bytes is over max_line_bytes=60"):
        side.next_message()
    with pytest.raises(RemoteProtocolError, match="expected initialize"):
        side.next_message()


def test_further_scalars_of_a_start_are_kept_and_sent_but_no_field_twice() -> None:
    side = child()
    side.receive_data(b'{"action":"initialize","shardId":"s","streamName":"o","n":3,"list":[1]}\n')
    start = side.next_message()
    assert isinstance(start, Initialize)
    assert start.extra == {"streamName": "o", "n": 3}
    assert encode(start).count(b'"streamName":"o"') == encode(start).count(b'"n":3') == 1
    named = replace(start, extra={**start.extra, "shardId": "other"})
    assert b"other" not in encode(named)
