"""Lines out of pieces: every terminator, every cut, and lines too long to keep."""

from __future__ import annotations

import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.conversation import LineFramer, OversizedLine


def framed(pieces: list[bytes], max_line_bytes: int = 1000) -> list[bytes | OversizedLine]:
    framer = LineFramer(max_line_bytes)
    lines = [line for piece in pieces for line in framer.feed(piece)]
    return lines + framer.close()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_terminator_ends_a_line(end: bytes) -> None:
    assert LineFramer(100).feed(b"one" + end + b"two" + end) == [b"one", b"two"]


def test_crlf_cut_in_two_is_one_end() -> None:
    framer = LineFramer(100)
    assert framer.feed(b"one\r") == [b"one"]
    assert framer.feed(b"") == []
    assert framer.feed(b"\n") == []
    assert framer.feed(b"\n") == [b""]


def test_a_line_after_a_lone_cr_is_not_shortened() -> None:
    framer = LineFramer(100)
    assert framer.feed(b"one\r") == [b"one"]
    assert framer.feed(b"two\n") == [b"two"]


def test_lfcr_is_two_ends() -> None:
    assert LineFramer(100).feed(b"one\n\rtwo\n") == [b"one", b"", b"two"]


def test_a_line_is_delivered_when_it_ends() -> None:
    framer = LineFramer(100)
    assert framer.feed(b"on") == []
    assert framer.feed(b"e\ntw") == [b"one"]
    assert framer.feed(b"o\n") == [b"two"]
    assert framer.close() == []


def test_closing_gives_the_unfinished_line_once() -> None:
    framer = LineFramer(100)
    assert framer.feed(b"one\ntwo") == [b"one"]
    assert framer.close() == [b"two"]
    assert framer.close() == []


def test_closing_forgets_a_cr() -> None:
    framer = LineFramer(100)
    framer.feed(b"one\r")
    assert framer.close() == []
    assert framer.feed(b"\n") == [b""]


def test_other_control_characters_do_not_end_a_line() -> None:
    line = b"a\x0b\x0c\x1c\x1e\x85\xe2\x80\xa8b"
    assert LineFramer(100).feed(line + b"\n") == [line]


@pytest.mark.parametrize("pieces", [[b"123456\n"], [b"123", b"456\n"], [b"1234", b"56", b"\n"]])
def test_a_line_beyond_the_limit_is_reported_when_it_ends(pieces: list[bytes]) -> None:
    assert framed([*pieces, b"12345\n"], max_line_bytes=5) == [OversizedLine(6, b"123456"), b"12345"]


def test_an_unfinished_line_beyond_the_limit_is_reported_at_the_end() -> None:
    assert framed([b"1234", b"567"], max_line_bytes=5) == [OversizedLine(7, b"1234567")]


def test_the_head_of_a_long_line_is_kept() -> None:
    line = bytes(range(32, 127)) * 50
    assert framed([line + b"\n"], max_line_bytes=1000) == [OversizedLine(len(line), line[:256])]


def test_a_hundred_megabytes_in_one_line_are_not_kept() -> None:
    framer = LineFramer(max_line_bytes=1 << 20)
    piece = b"x" * 65536
    tracemalloc.start()
    try:
        for _ in range(1600):
            assert framer.feed(piece) == []
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert framer.feed(b"\n") == [OversizedLine(1600 * 65536, b"x" * 256)]
    assert peak_bytes < 4 << 20


@pytest.mark.parametrize("limit", [0, -1])
def test_the_limit_must_be_positive(limit: int) -> None:
    with pytest.raises(ValueError, match="max_line_bytes must be positive"):
        LineFramer(limit)


streams = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bcd", b"\xff\x00"])).map(b"".join)


@st.composite
def cut_streams(draw: st.DrawFn) -> list[bytes]:
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)))))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@given(cut_streams())
def test_the_cuts_do_not_matter_and_the_lines_are_those_of_a_text_file(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    # Universal newlines of the standard library are the rule to meet.
    expected = [line.rstrip("\n") for line in io.StringIO(stream.decode("latin-1"), newline=None)]
    assert framed(pieces) == [line.encode("latin-1") for line in expected]


@given(cut_streams(), st.integers(1, 6))
def test_only_lines_longer_than_the_limit_are_dropped(pieces: list[bytes], limit: int) -> None:
    whole = [line for line in framed(pieces) if isinstance(line, bytes)]
    assert framed(pieces, limit) == [
        line if len(line) <= limit else OversizedLine(len(line), line) for line in whole
    ]
