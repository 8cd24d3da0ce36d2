"""Minutes of damaged frames and aggregates: nothing but the declared errors comes out. Run by `make prove`."""

from __future__ import annotations

import os
import random  # noqa: TID251 - a fuzzer's own chance; a failure names its seed
import time
from collections.abc import Callable, Iterator

import pytest

from kcl_daemon.errors import Unavailable
from kcl_daemon.records.kpl import MAGIC
from kcl_daemon.transport.event_stream import FrameReader, MalformedFrame, StreamEvent, decode_event
from kcl_local.kinesis.http import event_frame, exception_frame
from tests.unit.records.aggregates import UserRecord, aggregate, apart, sealed

FUZZ_S = float(os.environ.get("FUZZ_S", "60"))
EVENT = (
    b'{"Records":[{"SequenceNumber":"49","PartitionKey":"k\\u00e4","Data":"84mawg==","ApproximateArrivalTimestamp":1.5e9}],'
    b'"ContinuationSequenceNumber":"49","MillisBehindLatest":0,"ChildShards":[{"ShardId":"s","ParentShards":["p"],'
    b'"HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"1"}}]}'
)

pytestmark = [pytest.mark.prove, pytest.mark.timeout(FUZZ_S + 60)]


def for_a_while(act: Callable[[random.Random], None]) -> None:
    """Again and again with a chance of its own each time, which a failure names."""
    seed = time.time_ns()
    ends_s = time.monotonic() + FUZZ_S  # noqa: TID251 - real time bounds the test
    while time.monotonic() < ends_s:  # noqa: TID251
        seed += 1
        try:
            act(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def damaged(good: bytes, chance: random.Random) -> bytes:
    """Some bytes altered, left out, doubled or put in."""
    data = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randint(1, 9)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 20)]
            case 3:
                data[at:at] = chance.randbytes(chance.randint(1, 9))
            case _:
                data[at : at + 1] = bytes([data[at] ^ 1 << chance.randrange(8)]) if data else b""
    return bytes(data)


def ignored(reason: str, sequence_number: str) -> None:
    """A complaint about what is known to be broken."""


def pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = chance.choice((1, 7, 64, len(data)))
        yield data[at : at + size]
        at += size


def test_frames() -> None:
    good = event_frame("initial-response", b"{}") + event_frame("E", b"x" * 50) + exception_frame("X", b"{}")

    def act(chance: random.Random) -> None:
        reader = FrameReader()
        try:
            for piece in pieces(damaged(good, chance), chance):
                reader.feed(piece)
            reader.close()
        except MalformedFrame:
            pass

    for_a_while(act)


def test_events() -> None:
    def act(chance: random.Random) -> None:
        body = damaged(EVENT, chance)
        (event,) = FrameReader().feed(event_frame("SubscribeToShardEvent", body))
        assert isinstance(event, StreamEvent)
        try:
            payload = decode_event(event.payload).payload
            assert payload.line(0).endswith(b"\n")
            assert not payload or payload.first <= payload.last
        except Unavailable:
            pass

    for_a_while(act)


def test_aggregates() -> None:
    records: list[UserRecord] = [(f"key {n}", b"%d" % n * n, str(n) if n % 3 else None) for n in range(20)]
    good = aggregate(records)[len(MAGIC) : -16]

    def act(chance: random.Random) -> None:
        apart(sealed(damaged(good, chance)), None, ignored)

    for_a_while(act)
