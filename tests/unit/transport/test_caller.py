"""Calls over real connections to a server that does what a test tells it, and what it should not."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator
from email.utils import formatdate
from pathlib import Path

import anyio
import pytest

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    IteratorExpired,
    StreamNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.transport.http1 import LARGE_BYTES
from tests.unit.fakes import LoopClock
from tests.unit.transport.certificate import write_certificate
from tests.unit.transport.scripted import Exchange, calling, serving

pytestmark = pytest.mark.anyio
MIB = 2**20
WALL_MS = 1_770_000_000_000


def reported(code: str, message: str = "no") -> bytes:
    return b'{"__type":"%s","message":"%s"}' % (code.encode(), message.encode())


async def test_calls_one_after_another_share_a_connection() -> None:
    async with serving(lambda exchange: exchange.answer(exchange.body)) as server:
        async with calling(f"http://127.0.0.1:{server.port}") as caller:
            for number in range(5):
                answer = await caller.call("GetRecords", {"Limit": number}, bytes)
                assert answer == b'{"Limit":%d}' % number
        assert (server.connections, len(server.requests)) == (1, 5)


async def test_calls_at_the_same_time_share_few_connections() -> None:
    async def script(exchange: Exchange) -> None:
        await anyio.wait_all_tasks_blocked()
        await exchange.answer()

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(caller.call, "GetRecords", {}, bytes)
        assert len(server.requests) == 100
        assert server.connections <= 32


@pytest.mark.parametrize("size", [0, 1, 5000, LARGE_BYTES - 1, LARGE_BYTES, 14 * MIB])
async def test_a_body_comes_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    async with (
        serving(lambda exchange: exchange.answer(body[:size])) as server,
        calling(f"http://127.0.0.1:{server.port}") as caller,
    ):
        for _ in range(2):
            assert await caller.call("GetRecords", {}, bytes) == body[:size]


async def test_a_chunked_body_comes_whole() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.connection.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        await exchange.connection.send(b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await anyio.wait_all_tasks_blocked()
        await exchange.connection.send(b"2\r\nde\r\n0\r\n\r\n")

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        for _ in range(2):
            assert await caller.call("GetRecords", {}, bytes) == b"abcde"
        assert server.connections == 1


async def test_a_server_that_closes_after_each_answer_is_spoken_to_all_the_same() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(headers="Connection: close\r\n")
        raise anyio.EndOfStream

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        for _ in range(3):
            assert await caller.call("GetRecords", {}, bytes) == b"{}"
        assert server.connections == 3


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        ("400 Bad Request", reported("ProvisionedThroughputExceededException"), "", Throttled),
        ("400 Bad Request", reported("com.amazonaws.kinesis#ExpiredIteratorException"), "", IteratorExpired),
        ("400 Bad Request", reported("ResourceNotFoundException"), "", StreamNotFound),
        ("400 Bad Request", reported("AccessDeniedException"), "", AccessDenied),
        ("400 Bad Request", reported("InvalidArgumentException"), "", InvalidRequest),
        ("400 Bad Request", b"", "x-amzn-ErrorType: ThrottlingException:http://x\r\n", Throttled),
        ("500 Oops", reported("InternalFailure"), "", Unavailable),
        ("503 Busy", b"<html>busy</html>", "", Unavailable),
        ("502 Bad Gateway", b"\xff\xfe", "", Unavailable),
        ("403 No", b"[]", "", AccessDenied),
        ("302 Elsewhere", b"", "", InvalidRequest),
    ],
)
async def test_a_refusal_is_reported_in_our_words_and_keeps_its_connection(
    status: str, body: bytes, headers: str, kind: type[AwsError]
) -> None:
    async with (
        serving(lambda exchange: exchange.answer(body, status, headers)) as server,
        calling(f"http://127.0.0.1:{server.port}") as caller,
    ):
        for _ in range(2):
            with pytest.raises(kind, match="GetRecords") as raised:
                await caller.call("GetRecords", {}, bytes)
            assert type(raised.value) is kind
        assert server.connections == 1
        with pytest.raises(kind):
            async with caller.open_stream("GetRecords", {}, silence_s=60.0):
                pytest.fail("the stream is open")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + b"x" * 400_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\ntoo long",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000,
    ],
)
async def test_a_broken_answer_is_unavailable(sent: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        if sent:
            await exchange.connection.send(sent)
        raise anyio.EndOfStream

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        with pytest.raises(Unavailable, match="GetRecords"):
            await caller.call("GetRecords", {}, bytes)
        assert server.connections == 1


async def test_a_peer_that_says_nothing_is_given_up() -> None:
    async with (
        serving(lambda _: anyio.sleep_forever()) as server,
        calling(f"http://127.0.0.1:{server.port}", silence_s=0.05) as caller,
    ):
        with pytest.raises(Unavailable, match=r"nothing came for 0\.05 s"):
            await caller.call("GetRecords", {}, bytes)


async def test_a_peer_that_stops_in_the_middle_is_given_up() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbeginning")
        await anyio.sleep_forever()

    async with (
        serving(script) as server,
        calling(f"http://127.0.0.1:{server.port}", silence_s=0.05) as caller,
    ):
        with pytest.raises(Unavailable, match="nothing came"):
            await caller.call("GetRecords", {}, bytes)
        with pytest.raises(Unavailable, match="nothing came"):
            async with caller.open_stream("GetRecords", {}, silence_s=0.05) as stream:
                async for _ in stream.pieces:
                    pass


async def test_a_cancelled_call_leaves_no_answer_to_the_next() -> None:
    half_sent = anyio.Event()

    async def script(exchange: Exchange) -> None:
        if exchange.body == b'{"Limit":1}':
            await exchange.connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
            half_sent.set()
            await anyio.sleep_forever()
        await exchange.answer(b"other")

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(caller.call, "GetRecords", {"Limit": 1}, bytes)
                await half_sent.wait()
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        assert await caller.call("GetRecords", {"Limit": 2}, bytes) == b"other"
        assert server.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_costs_nothing() -> None:
    clock = SteppedClock()
    closing = anyio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.answer()
        if closing.is_set():
            return
        closing.set()
        await exchange.connection.receive()  # the next request on this connection gets no answer
        raise anyio.EndOfStream

    async with serving(script) as server:
        async with calling(f"http://127.0.0.1:{server.port}", clock=clock) as caller:
            await caller.call("GetRecords", {}, bytes)
            clock.ahead_s += 10.0
            assert await caller.call("GetRecords", {}, bytes) == b"{}"
        assert server.connections == 2


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    clock = SteppedClock()
    async with serving(lambda exchange: exchange.answer()) as server:
        async with calling(f"http://127.0.0.1:{server.port}", clock=clock) as caller:
            for _ in range(3):
                await caller.call("GetRecords", {}, bytes)
                clock.ahead_s += 60.0
        assert server.connections == 3


@pytest.mark.parametrize("ahead_s", [-86_400.0, 86_400.0])
async def test_a_wrong_clock_is_put_right_by_the_servers(ahead_s: float) -> None:
    clock = SteppedClock(wall_ahead_s=ahead_s)
    dates: list[bytes] = []

    async def script(exchange: Exchange) -> None:
        date = next(line for line in exchange.head.split(b"\r\n") if line.startswith(b"X-Amz-Date"))
        dates.append(date)
        stated = formatdate(WALL_MS / 1000, usegmt=True)
        if len(dates) == 1:
            await exchange.answer(
                reported("InvalidSignatureException", "Signature expired"), "400 No", f"Date: {stated}\r\n"
            )
        else:
            await exchange.answer()

    async with (
        serving(script) as server,
        calling(f"http://127.0.0.1:{server.port}", clock=clock) as caller,
    ):
        for _ in range(3):
            assert await caller.call("GetRecords", {}, bytes) == b"{}"
    assert len(server.requests) == 4
    assert dates[1] == dates[2] != dates[0]


async def test_a_signature_that_is_wrong_for_another_reason_is_not_sent_again() -> None:
    async def script(exchange: Exchange) -> None:
        date = formatdate(LoopClock().wall_ms() / 1000, usegmt=True)
        await exchange.answer(reported("InvalidSignatureException"), "403 No", f"Date: {date}\r\n")

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        with pytest.raises(AccessDenied):
            await caller.call("GetRecords", {}, bytes)
        assert len(server.requests) == 1


async def test_a_stream_is_read_while_it_comes_and_closed_when_left() -> None:
    closed = anyio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.connection.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Kind: events\r\n\r\n3\r\none\r\n"
        )
        await anyio.wait_all_tasks_blocked()
        await exchange.connection.send(b"3\r\ntwo\r\n")
        try:
            await exchange.connection.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            closed.set()
            raise

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        async with caller.open_stream("SubscribeToShard", {}, silence_s=60.0) as stream:
            assert stream.headers["x-kind"] == "events"
            assert [await anext(stream.pieces), await anext(stream.pieces)] == [b"one", b"two"]
        with anyio.fail_after(60.0):
            await closed.wait()


async def test_a_stream_that_nobody_takes_from_holds_up_the_sender() -> None:
    sent = 0

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await exchange.connection.send(b"%x\r\n%s\r\n" % (MIB, bytes(MIB)))
            sent += 1

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as caller:
        async with caller.open_stream("SubscribeToShard", {}, silence_s=3.0) as stream:
            await anext(stream.pieces)
            before = -1
            while before != sent:  # until the kernel's buffers are full
                before = sent
                await anyio.sleep(0.3)
            await anyio.sleep(3.3)  # that nothing comes which nobody takes is no silence of the peer's
            assert sent < 64
            received = 0
            async for piece in stream.pieces:
                received += len(piece)
                if received > (before + 10) * MIB:
                    break
        assert sent > before


async def test_a_stream_that_breaks_off_is_unavailable() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.connection.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\nt"
        )
        raise anyio.EndOfStream

    async with (
        serving(script) as server,
        calling(f"http://127.0.0.1:{server.port}") as caller,
        caller.open_stream("SubscribeToShard", {}, silence_s=60.0) as stream,
    ):
        assert await anext(stream.pieces) == b"one"
        with pytest.raises(Unavailable, match="SubscribeToShard"):
            async for _ in stream.pieces:
                pass


async def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        async with calling(f"http://127.0.0.1:{taken.getsockname()[1]}") as caller:
            with pytest.raises(Unavailable, match="no connection to 127"):
                await caller.call("GetRecords", {}, bytes)


async def test_a_name_that_is_gone_is_unavailable() -> None:
    async with calling("http://kinesis.invalid:1") as caller:
        with pytest.raises(Unavailable, match=r"no connection to kinesis\.invalid"):
            await caller.call("GetRecords", {}, bytes)


@pytest.fixture
async def certificate(tmp_path: Path) -> AsyncGenerator[Path, None]:
    yield write_certificate(tmp_path)


async def test_a_certificate_that_is_trusted_is_accepted(certificate: Path) -> None:
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate)
    client_tls = ssl.create_default_context(cafile=str(certificate))
    body = bytes(range(256)) * 40_000
    async with serving(lambda exchange: exchange.answer(body), server_tls) as server:
        async with calling(f"https://localhost:{server.port}", tls=client_tls) as caller:
            for _ in range(3):
                assert await caller.call("GetRecords", {}, bytes) == body
        assert server.connections == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_certificate_of_somebody_else_is_refused(certificate: Path, host: str) -> None:
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate)
    trusting = None if host == "localhost" else ssl.create_default_context(cafile=str(certificate))
    async with serving(lambda exchange: exchange.answer(), server_tls) as server:
        async with calling(f"https://{host}:{server.port}", tls=trusting) as caller:
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await caller.call("GetRecords", {}, bytes)
        assert server.requests == []


class SteppedClock(LoopClock):
    """The loop's clock, which a test can put forward, and whose wall time stands still and may be wrong.

    Else a second could end between two calls, and their dates would differ.
    """

    def __init__(self, wall_ahead_s: float = 0.0) -> None:
        self.ahead_s = 0.0
        self._wall_ahead_ms = round(wall_ahead_s * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall_ms(self) -> int:
        return WALL_MS + self._wall_ahead_ms


async def test_the_services_time_is_taken_from_good_answers_now_and_then() -> None:
    times: list[float] = []

    async def script(exchange: Exchange) -> None:
        now_s = WALL_MS / 1000 + len(server.requests)
        if len(server.requests) == 1:
            await exchange.answer(b"{}", "200 OK", "Date: last week\r\n")
        else:
            await exchange.answer(b"{}", "200 OK", f"Date: {formatdate(now_s, usegmt=True)}\r\n")

    async with (
        serving(script) as server,
        calling(f"http://127.0.0.1:{server.port}", on_date=times.append) as caller,
    ):
        for _ in range(4):
            await caller.call("GetRecords", {}, bytes)
    assert times == [WALL_MS / 1000 + 2]
