"""Lines between the engine and the daemon: what one side writes the other reads, and no line stops the next one."""

from __future__ import annotations

import os

import pytest

from kcl_daemon.helper_process import UnreadableLine, event_splitter
from kcl_landing.control import ControlPipe

HELLO = b'{"level":"info","event":"hello"}\n'


def test_events_come_whole_however_they_are_cut() -> None:
    for size in range(1, len(HELLO) + 2):
        feed = event_splitter()
        text = 3 * HELLO
        found = [each for at in range(0, len(text), size) for each in feed(text[at : at + size])]
        assert found == 3 * [{"level": "info", "event": "hello"}]


def test_half_a_line_is_nothing() -> None:
    assert event_splitter()(HELLO[:-1]) == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Exception in thread",
        b'{"event": "x", "v": NaN}',
        b'{"event": "x", "error": "\\udce9"}',
        b'["event"]',
        b"7",
        b'{"event": 7}',
        b'{"level": "info"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_event_is_reported_and_the_next_one_is_read(line: bytes) -> None:
    unreadable, hello = event_splitter()(line + b"\n" + HELLO)
    assert isinstance(unreadable, UnreadableLine)
    assert unreadable.error
    assert len(unreadable.line) <= 200
    assert hello == {"level": "info", "event": "hello"}


def test_a_line_that_is_too_long_is_passed_over_and_not_kept() -> None:
    feed = event_splitter(max_bytes=100)
    for _ in range(10):
        assert feed(60 * b"x") == []
    unreadable, hello = feed(b"\n" + HELLO)
    assert isinstance(unreadable, UnreadableLine)
    assert unreadable.error == "it has 600 bytes, more than 100"
    assert unreadable.line == 60 * "x"
    assert hello == {"level": "info", "event": "hello"}


def test_a_path_that_is_no_utf_8_comes_through() -> None:
    reading, writing = os.pipe()
    ControlPipe(writing)("error", "pipeline_failed", error="caf\udce9.parquet: größer\n")
    os.close(writing)
    (event,) = event_splitter()(os.read(reading, 4096))
    os.close(reading)
    assert event == {"level": "error", "event": "pipeline_failed", "error": "caf?.parquet: größer\n"}
