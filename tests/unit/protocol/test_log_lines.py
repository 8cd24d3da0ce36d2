"""The message for the daemon's log: no part of the conversation, and stray output for whoever does not allow it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.codec import LogLine, Stray, decode_child_line, decode_log_line, encode_log_line


@given(st.text(), st.text())
def test_a_decoded_log_line_has_the_level_and_message_that_were_encoded(level: str, message: str) -> None:
    line = encode_log_line(LogLine(level, message))
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert decode_log_line(line) == LogLine(level, message)
    assert isinstance(decode_child_line(line), Stray)


def test_the_level_may_be_missing_and_other_fields_do_no_harm() -> None:
    assert decode_log_line(b' {"action":"log","message":"hi","more":[1]} ') == LogLine("info", "hi")


@given(st.binary())
def test_any_bytes_are_put_up_with(line: bytes) -> None:
    assert decode_log_line(line) is None or b"log" in line


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'"log"',
        b'{"action":"status","responseFor":"initialize"}',
        b'{"action":"log"}',
        b'{"action":"log","message":3}',
        b'{"action":"log","message":"a","level":3}',
        b'{"action":"log","message":"a"} and more',
        b"[" * 100_000,
    ],
)
def test_another_line_is_no_log_line(line: bytes) -> None:
    assert decode_log_line(line) is None
