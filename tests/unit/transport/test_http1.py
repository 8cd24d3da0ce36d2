"""Heads and bodies of HTTP/1.1 answers: understood as they are meant, or refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.transport.http1 import (
    BodyReader,
    ChunkedBody,
    Framing,
    MalformedAnswer,
    body_reader,
    parse_head,
)


def test_a_head_tells_status_headers_and_length() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nCONTENT-LENGTH:  12 ")
    assert (head.status, head.framing, head.length) == (200, Framing.LENGTH, 12)
    assert head.headers["content-type"] == "x"
    assert head.keeps_alive
    assert head.is_final


@pytest.mark.parametrize(
    ("text", "framing", "keeps_alive"),
    [
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", Framing.CHUNKED, True),
        ("HTTP/1.1 200 OK", Framing.CLOSE, False),
        ("HTTP/1.1 204 No Content", Framing.LENGTH, True),
        ("HTTP/1.1 200\r\nConnection: Close\r\nContent-Length: 0", Framing.LENGTH, False),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1", Framing.LENGTH, False),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1", Framing.LENGTH, True),
    ],
)
def test_where_a_body_ends(text: str, framing: Framing, *, keeps_alive: bool) -> None:
    head = parse_head(text.encode())
    assert (head.framing, head.keeps_alive) == (framing, keeps_alive)


def test_an_announcement_is_no_answer() -> None:
    assert not parse_head(b"HTTP/1.1 100 Continue").is_final


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HTTP/2 200",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 200 OK\r\nno colon",
        "HTTP/1.1 200 OK\r\n folded: x",
        "HTTP/1.1 200 OK\r\n: x",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        "HTTP/1.1 200 OK\r\nContent-Length: -1",
        "HTTP/1.1 200 OK\r\nContent-Length: 1e3",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999",
        f"HTTP/1.1 200 OK\r\nContent-Length: {'0' * 20}99999999999",
        f"HTTP/1.1 200 OK\r\nContent-Length: {'0' * 20}{'9' * 5_000}",
        f"HTTP/1.1 200 OK\r\nContent-Length: {'9' * 5_000}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
    ],
)
def test_an_ambiguous_answer_is_refused(text: str) -> None:
    with pytest.raises(MalformedAnswer):
        parse_head(text.encode())


@given(st.binary(max_size=300))
def test_a_malformed_head_raises_only_malformed_answer(data: bytes) -> None:
    with suppress(MalformedAnswer):
        parse_head(data)


def fed(reader: BodyReader, data: bytes, cuts: list[int]) -> bytes:
    """The body, from data that comes in pieces."""
    body, rest = b"", memoryview(data)
    for cut in cuts:
        body += b"".join(reader.feed(rest[:cut]))
        rest = rest[cut:]
    return body + b"".join(reader.feed(rest))


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    cuts=st.lists(st.integers(0, 30), max_size=10),
    trailer=st.sampled_from([b"", b"X-Sum: 1\r\n"]),
    extension=st.sampled_from([b"", b";a=b"]),
)
def test_a_chunked_body_is_whole_however_it_comes(
    chunks: list[bytes], cuts: list[int], trailer: bytes, extension: bytes
) -> None:
    data = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    reader = ChunkedBody()
    assert fed(reader, data + b"0\r\n" + trailer + b"\r\n", cuts) == b"".join(chunks)
    assert reader.ended
    reader.close()


@given(st.binary(max_size=300), st.lists(st.integers(1, 20), max_size=10))
def test_a_malformed_chunked_body_raises_only_malformed_answer(data: bytes, cuts: list[int]) -> None:
    with suppress(MalformedAnswer):
        fed(ChunkedBody(), data, cuts)


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"123456789\r\n",
        b"fffffff\r\n",
        b"1\r\nab\r\n",
        b"1\n",
        b"1" * 5000,
        b"0\r\n\r\nx",
    ],
)
def test_a_malformed_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        ChunkedBody().feed(memoryview(data))


@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.LENGTH])
def test_a_body_that_breaks_off_is_no_body(framing: Framing) -> None:
    reader = body_reader(framing, 3)
    reader.feed(memoryview(b"1\r\na" if framing is Framing.CHUNKED else b"ab"))
    with pytest.raises(MalformedAnswer, match="closed"):
        reader.close()


def test_a_body_of_known_length_has_that_length() -> None:
    reader = body_reader(Framing.LENGTH, 3)
    ended = [reader.ended]
    for piece in (b"ab", b"c"):
        assert reader.feed(memoryview(piece)) == [piece]
        ended.append(reader.ended)
    assert ended == [False, False, True]
    with pytest.raises(MalformedAnswer):
        reader.feed(memoryview(b"d"))


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = body_reader(Framing.CLOSE, 0)
    ended = [reader.ended]
    assert reader.feed(memoryview(b"ab")) == [b"ab"]
    ended.append(reader.ended)
    reader.close()
    assert [*ended, reader.ended] == [False, False, True]
