"""Event streams over HTTP/2 as a caller sees them, over sockets: shared connections, refusals, TLS, the way back."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from h2.errors import ErrorCodes

from kcl_daemon.errors import Throttled, Unavailable
from kcl_daemon.transport.caller import Caller, Stream
from tests.unit.transport.certificate import write_certificate
from tests.unit.transport.gateway import Gateway, gateway
from tests.unit.transport.scripted import Exchange, Script, Server, calling, serving

pytestmark = pytest.mark.anyio
BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n"


async def begin(exchange: Exchange) -> None:
    """An answer that never ends."""
    await exchange.connection.send(BEGUN)
    await anyio.sleep_forever()


@asynccontextmanager
async def stage(script: Script = begin) -> AsyncGenerator[tuple[Server, Gateway, Caller], None]:
    """A service, what speaks HTTP/2 for it, and a caller."""
    instead: list[str] = []
    async with (
        serving(script) as server,
        gateway(server.port) as front,
        calling(front.url, instead=instead) as caller,
    ):
        yield server, front, caller
    assert instead == []


async def opened(caller: Caller, stack: AsyncExitStack, count: int = 1) -> list[Stream]:
    """So many streams at a time, each with its first piece taken."""
    streams: list[Stream] = []

    async def one() -> None:
        stream = await stack.enter_async_context(caller.open_stream("SubscribeToShard", {}, silence_s=30.0))
        assert await anext(aiter(stream.pieces)) == b"begun"
        streams.append(stream)

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)
    return streams


async def left(front: Gateway) -> None:
    """Wait until the service knows that nobody reads any more."""
    with anyio.fail_after(10):
        while any(front.open_streams()):  # noqa: ASYNC110 - it learns of it in its own time
            await anyio.sleep(0.01)


async def test_streams_share_connections_and_take_more_when_those_are_full() -> None:
    async with stage() as (server, front, caller):
        front.streams_most = 2
        async with AsyncExitStack() as stack:
            await opened(caller, stack, 5)
            assert sorted(front.open_streams()) == [1, 2, 2]
        await left(front)
        async with AsyncExitStack() as stack:
            await opened(caller, stack, 4)
            assert len(front.conversations) == 3, "there was room on those that are open"
        assert len(server.requests) == 9


async def test_a_request_that_is_refused_unseen_is_sent_once_more() -> None:
    async with stage() as (server, front, caller), AsyncExitStack() as stack:
        front.refuses = 1
        await opened(caller, stack)
        assert len(server.requests) == 1
        front.refuses = 2
        with pytest.raises(Unavailable, match="REFUSED_STREAM"):
            async with caller.open_stream("SubscribeToShard", {}, silence_s=30.0):
                pass


async def test_what_breaks_is_told_and_the_next_stream_finds_a_way() -> None:
    async with stage() as (_, front, caller), AsyncExitStack() as stack:
        reset, cut = await opened(caller, stack, 2)
        (conversation,) = front.conversations
        for number in list(conversation.streams):
            await conversation.reset(number, ErrorCodes.INTERNAL_ERROR)
        for stream in (reset, cut):
            with pytest.raises(Unavailable, match="INTERNAL_ERROR"):
                await anext(aiter(stream.pieces))
        (stream,) = await opened(caller, stack)
        await conversation.cut()
        with pytest.raises(Unavailable, match="SubscribeToShard"):
            await anext(aiter(stream.pieces))
        await opened(caller, stack)
        assert len(front.conversations) == 2


async def test_a_refusal_is_told_in_our_words() -> None:
    body = b'{"__type":"LimitExceededException","message":"slow down"}'
    async with stage(lambda exchange: exchange.answer(body, "400 No")) as (_, _front, caller):
        for _ in range(2):
            with pytest.raises(Throttled, match="slow down"):
                async with caller.open_stream("SubscribeToShard", {}, silence_s=30.0):
                    pass


async def test_a_call_that_nobody_answers_is_given_up_and_leaves_nothing() -> None:
    async with stage(lambda _: anyio.sleep_forever()) as (_, front, caller):
        with pytest.raises(Unavailable, match=r"nothing came for 0\.05 s"):
            async with caller.open_stream("SubscribeToShard", {}, silence_s=0.05):
                pass
        await left(front)


async def test_who_is_cancelled_leaves_nothing() -> None:
    async with stage() as (_, front, caller):
        begun = anyio.Event()

        async def read() -> None:
            async with AsyncExitStack() as stack:
                (stream,) = await opened(caller, stack)
                begun.set()
                await anext(aiter(stream.pieces))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await begun.wait()
            assert front.open_streams() == [1]
            group.cancel_scope.cancel()
        await left(front)
        assert front.open_streams() == [0], "the connection is kept for others"


async def test_nobody_there_is_unavailable_for_all_at_once() -> None:
    async with calling("http://127.0.0.1:1/", instead=[]) as caller:
        failed: list[Unavailable] = []

        async def one() -> None:
            with pytest.raises(Unavailable, match="no connection") as raised:
                async with caller.open_stream("SubscribeToShard", {}, silence_s=1.0):
                    pass
            failed.append(raised.value)

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(one)
        assert len(failed) == 20


@pytest.mark.parametrize("offers", [True, False])
async def test_over_tls_it_is_what_the_server_offers(tmp_path: Path, offers: bool) -> None:
    certificate = write_certificate(tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    if offers:
        served.set_alpn_protocols(["h2"])
    trusted = ssl.create_default_context(cafile=str(certificate))
    instead: list[str] = []
    async with serving(begin) as server, gateway(server.port, tls=served) as front:
        url = f"https://localhost:{front.port}/"
        async with calling(url, tls=trusted, instead=instead) as caller, AsyncExitStack() as stack:
            await opened(caller, stack, 3)
            assert len(front.conversations) == (1 if offers else 0)
    assert instead == ([] if offers else ["the endpoint does not offer HTTP/2"])


async def test_a_certificate_that_nobody_trusts_is_refused(tmp_path: Path) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(write_certificate(tmp_path))
    served.set_alpn_protocols(["h2"])
    instead: list[str] = []
    async with (
        serving(begin) as server,
        gateway(server.port, tls=served) as front,
        calling(f"https://localhost:{front.port}/", instead=instead) as caller,
    ):
        with pytest.raises(Unavailable, match="no encrypted connection"):
            async with caller.open_stream("SubscribeToShard", {}, silence_s=1.0):
                pass
    assert instead == []
