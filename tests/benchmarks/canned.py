"""A Kinesis that answers any read with a body made beforehand, in a process of its own, so that it costs the reader nothing.

Run as a program: it prints its port, serves until its stdin is closed, and reads the pipes whose descriptors it is
given, as so many children would that look at nothing. The shard iterator names the body: see `SHAPES`.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - a load generator without any layer between
import base64
import json
import os
import re
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import md5, shake_256
from typing import cast

from kcl_local.kinesis.http import event_frame

SHAPES = {
    "empty": (0, 0),
    "100b": (10_000, 100),
    "1k": (5_000, 1024),
    "10k": (500, 10_240),
    "aggregated": (50_000, 100),
    "paced": (1_000, 1024),
    "json": (5_000, 1024),
}
"""User records in one answer, and bytes of each."""
AGGREGATED = 100
"""User records in one aggregate of `aggregated`."""
EVENT_BYTES = 256 * 1024
"""User data in one event of a subscription, about."""
_FIRST_NUMBER = 49680402648584475383664798923336567125215930236314583042
_ITERATOR = re.compile(rb'"ShardIterator": ?"(\w+)"')
_SHARD = re.compile(rb'"ShardId": ?"(\w+)"')
_SUBSCRIBE = b".SubscribeToShard\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_PIPE_BYTES = 1024 * 1024


def plain(number: int, size: int) -> bytes:
    """Data that looks random and is the same in every run."""
    return shake_256(str(number).encode()).digest(size)


def order(number: int, size: int) -> bytes:
    """Data that is JSON; one in a hundred is new."""
    items = [
        {
            "sku": f"SKU-{number * 31 + each:08d}",
            "name": "a thing of some kind",
            "price": each * 1.25 + 0.99,
            "count": each + 1,
        }
        for each in range(8)
    ]
    kind = "new" if number % 100 == 0 else ("paid", "packed", "sent")[number % 3]
    text = {
        "id": number,
        "order": {"type": kind, "total": number % 500, "items": items},
        "customer": {"id": f"c-{number}"},
    }
    short = json.dumps({**text, "note": ""}).encode()
    return json.dumps({**text, "note": "x" * max(0, size - len(short))}).encode()


def aggregate(number: int, size: int) -> bytes:
    """Data that is a KPL aggregate; for records of less than 120 bytes, whose lengths take one byte each."""
    assert size < 120
    keys = b"".join(b"\x0a\x06key-%02d" % each for each in range(AGGREGATED))
    records = b"".join(
        b"\x1a%c\x08%c\x1a%c%s" % (size + 4, each, size, plain(number * AGGREGATED + each, size))
        for each in range(AGGREGATED)
    )
    return b"\xf3\x89\x9a\xc2" + keys + records + md5(keys + records, usedforsecurity=False).digest()


def body(count: int, size: int, data: Callable[[int, int], bytes], *, behind_ms: int) -> bytes:
    """An answer of GetRecords, spelt as the service spells it."""
    records = [
        {
            "SequenceNumber": str(_FIRST_NUMBER + number * 16),
            "ApproximateArrivalTimestamp": round(1_795_190_407.0 + number / 997, 3),
            "Data": base64.b64encode(data(number, size)).decode(),
            "PartitionKey": f"user-{number * 7919 % 10**9}",
        }
        for number in range(count)
    ]
    answer = {"MillisBehindLatest": behind_ms, "NextShardIterator": "%s", "Records": records}
    return json.dumps(answer, separators=(",", ":")).encode()


class Canned(asyncio.Protocol):
    """One connection."""

    bodies: dict[str, bytes] = {}  # noqa: RUF012 - made once for all connections
    event = b""  # a frame of a subscription as one chunk, the same

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._pushes = self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            found = _LENGTH.search(head)
            length = int(found[1]) if found else 0
            if not end or len(rest) < length:
                return
            request, self._received = rest[:length], rest[length:]
            if _SUBSCRIBE in head:
                self._subscribe()
                continue
            self._answer(self._body(request))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        # Not at once: a write that fails in here is an error twice to asyncio (3.11), which then tells of it.
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._pushes:
            self._push()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_paused = True

    def _subscribe(self) -> None:
        """Push the same event for ever, as fast as it is taken."""
        assert self._transport is not None
        self._pushes = True
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._push()

    def _push(self) -> None:
        assert self._transport is not None
        while not self._must_wait():
            self._transport.write(self.event)

    def _must_wait(self) -> bool:
        """A broken connection takes everything, and so never asks for a pause."""
        assert self._transport is not None
        return self._is_paused or self._transport.is_closing()

    def _body(self, request: bytes) -> bytes:
        shard = _SHARD.search(request)
        if shard is not None:
            return b'{"ShardIterator":"%s"}' % shard[1]
        iterator = _ITERATOR.search(request)
        assert iterator is not None
        return self.bodies[iterator[1].decode()]

    def _answer(self, answer: bytes) -> None:
        assert self._transport is not None
        head = (
            "HTTP/1.1 200 OK\r\nx-amzn-RequestId: 337d76b6-81f4-436a-a5fe-8a992bbe0e77\r\n"
            f"Date: Sat, 21 Nov 2026 10:00:00 GMT\r\nContent-Type: application/x-amz-json-1.1\r\n"
            f"Content-Length: {len(answer)}\r\n\r\n"
        )
        self._transport.writelines([head.encode(), answer])


def _in_one_event(count: int, size: int) -> int:
    """How many Kinesis records of such a shape make one event."""
    return max(1, min(count, EVENT_BYTES // size)) if size else 0


def _event(answer: bytes) -> bytes:
    """An answer of GetRecords as an event, framed."""
    payload = answer.replace(
        b'"NextShardIterator":"%s"', b'"ContinuationSequenceNumber":"%d"' % _FIRST_NUMBER
    )
    return event_frame("SubscribeToShardEvent", payload)


def _drain(fd: int) -> None:
    with suppress(BlockingIOError):
        if not os.read(fd, _PIPE_BYTES):
            asyncio.get_running_loop().remove_reader(fd)


async def serve(shape: str, certificate: str, pipes: list[int], answers: type[Canned] = Canned) -> None:
    """Until stdin is closed."""
    loop = asyncio.get_running_loop()
    count, size = SHAPES[shape]
    behind_ms = 0 if shape in {"empty", "paced"} else 60_000
    data = order if shape == "json" else plain
    if shape == "aggregated":
        count, data = count // AGGREGATED, aggregate
    Canned.bodies[shape] = body(count, size, data, behind_ms=behind_ms).replace(
        b'"%s"', f'"{shape}"'.encode()
    )
    data_bytes = size * AGGREGATED if shape == "aggregated" else size
    frame = _event(body(_in_one_event(count, data_bytes), size, data, behind_ms=behind_ms))
    Canned.event = b"%x\r\n%s\r\n" % (len(frame), frame)
    for fd in pipes:
        os.set_blocking(fd, False)
        loop.add_reader(fd, _drain, fd)
    tls: ssl.SSLContext | None = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    server = await loop.create_server(answers, "127.0.0.1", 0, ssl=tls)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    await over.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], [int(fd) for fd in sys.argv[3:]]))
