"""Frames of HTTP/2: told apart whatever the pieces, lengths that cannot be are refused; heads in the form of HTTP/2."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kcl_daemon.transport.http2_frames import (
    FrameSplitter,
    GoAway,
    MalformedHttp2,
    answer_head,
    request_headers,
)
from kcl_daemon.transport.sign import Signer
from kcl_daemon.transport.values import Keys, Target
from tests.unit.transport.test_frames import pieces

MOST = 1000
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + (1).to_bytes(4) + payload


def split(data: bytes, cuts: Sequence[int] = ()) -> list[bytes | GoAway]:
    splitter = FrameSplitter(MOST)
    found = [each for piece in pieces(data, cuts) for each in splitter.feed(piece)]
    return [each if isinstance(each, GoAway) else bytes(each) for each in found]


@given(
    payloads=some.lists(some.binary(max_size=MOST), max_size=8),
    cut_off=some.integers(0, 8),
    cuts=some.lists(some.integers(0, 10_000), max_size=12),
)
def test_frames_are_whole_whatever_the_pieces(payloads: list[bytes], cut_off: int, cuts: list[int]) -> None:
    frames = [SETTINGS, *(frame(0, payload) for payload in payloads)]
    begun = frame(0, b"never whole")[:cut_off]
    assert split(b"".join(frames) + begun, cuts) == frames


@given(data=some.binary(max_size=300), cuts=some.lists(some.integers(0, 300), max_size=5))
def test_whatever_comes_is_frames_or_refused(data: bytes, cuts: list[int]) -> None:
    sent = SETTINGS + data
    try:
        found = split(sent, cuts)
    except MalformedHttp2:
        return
    whole = [each for each in found if isinstance(each, bytes)]
    assert sent.startswith(whole[0])
    assert sum(map(len, whole)) <= len(sent)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "no settings"),
        (frame(0, b"x"), "no settings"),
        (SETTINGS + frame(0, b"x" * (MOST + 1))[:9], "1001 bytes, more than the 1000"),
        (SETTINGS + frame(7, b"short"), "GOAWAY of 5 bytes"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_there(data: bytes, why: str) -> None:
    with pytest.raises(MalformedHttp2, match=why):
        split(data)


def test_goaway_is_understood() -> None:
    payload = (0x80000007).to_bytes(4) + (11).to_bytes(4) + b"calm down"
    assert split(SETTINGS + frame(7, payload)) == [SETTINGS, GoAway(7, 11, "calm down")]


def test_a_signed_head_says_the_same_in_http_2() -> None:
    target = Target("https://kinesis.eu-west-1.amazonaws.com", "eu-west-1", "kinesis")
    signer = Signer(target, prefix="Kinesis_20131202.", user_agent="tests")
    head = signer.head("SubscribeToShard", b"{}", Keys("AKID", "secret", "token"), epoch_s=1_795_190_400.0)

    headers = request_headers(head, scheme="https")

    assert headers[:4] == [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "kinesis.eu-west-1.amazonaws.com"),
        (":path", "/"),
    ]
    told = dict(headers[4:])
    assert sorted(told) == [
        "authorization", "content-type", "user-agent", "x-amz-date", "x-amz-security-token", "x-amz-target",
    ]  # fmt: skip
    assert told["authorization"].encode() in head
    assert "host;" in told["authorization"], "the signature covers what :authority says"


def test_an_answer_without_a_status_is_none() -> None:
    head = answer_head([(b":status", b"200"), (b"content-type", b"x"), (b"date", b"today")])
    assert (head.status, head.headers) == (200, {"content-type": "x", "date": "today"})
    with pytest.raises(ValueError, match="invalid literal"):
        answer_head([(b"content-type", b"x")])
