"""The record path through a proxy keeps the promises of the direct way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from kcl_daemon.aws.access import ProxyTransport
from kcl_daemon.errors import Throttled, Unavailable
from kcl_daemon.transport.caller import AwsJsonClient
from kcl_daemon.transport.kinesis import KINESIS_API
from tests.unit.fakes import LoopClock
from tests.unit.transport.scripted import Exchange, FixedAccess, Script, Server, serving

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def through_a_proxy(
    script: Script, *, silence_s: float = 60.0
) -> AsyncGenerator[tuple[Server, AwsJsonClient], None]:
    """A caller of a service that only the proxy can reach."""
    async with serving(script) as proxy:
        caller = AwsJsonClient(
            FixedAccess("http://kinesis.invalid/"),
            KINESIS_API,
            clock=LoopClock(),
            transport_of=lambda target: ProxyTransport(
                target,
                {"http": f"http://127.0.0.1:{proxy.port}"},
                ca_bundle=None,
                silence_s=silence_s,
            ),
        )
        try:
            yield proxy, caller
        finally:
            await caller.aclose()


async def test_a_call_goes_to_the_proxy_with_its_signature() -> None:
    heads: list[bytes] = []

    async def script(exchange: Exchange) -> None:
        heads.append(exchange.head)
        await exchange.answer(exchange.body)

    async with through_a_proxy(script) as (proxy, caller):
        for _ in range(2):
            assert await caller.call("GetRecords", {"Limit": 1}, bytes) == b'{"Limit":1}'
        assert proxy.connections == 1
    assert heads[0].startswith(b"POST http://kinesis.invalid/ HTTP/1.1")
    assert b"AWS4-HMAC-SHA256 Credential=AKID/" in heads[0]


async def test_a_refusal_is_reported_in_our_words() -> None:
    body = b'{"__type":"ProvisionedThroughputExceededException"}'
    async with through_a_proxy(lambda exchange: exchange.answer(body, "400 No")) as (_, caller):
        with pytest.raises(Throttled):
            await caller.call("GetRecords", {}, bytes)


async def test_a_proxy_that_says_nothing_is_given_up() -> None:
    async with through_a_proxy(lambda _: anyio.sleep_forever(), silence_s=0.05) as (_, caller):
        with pytest.raises(Unavailable, match="GetRecords: through the proxy"):
            await caller.call("GetRecords", {}, bytes)


async def test_a_stream_is_read_while_it_comes() -> None:
    taken = anyio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await taken.wait()
        await exchange.connection.send(b"3\r\ntwo\r\n0\r\n\r\n")

    async with through_a_proxy(script) as (_, caller):
        pieces: list[bytes] = []
        async with caller.open_stream("SubscribeToShard", {}, silence_s=60.0) as stream:
            async for piece in stream.pieces:
                pieces.append(piece)
                taken.set()
        assert b"".join(pieces) == b"onetwo"


async def test_leaving_a_stream_holds_nobody_up_while_nothing_comes() -> None:
    """A thread waits for the next bytes then, and closing the connection must not wait for that thread."""

    async def script(exchange: Exchange) -> None:
        await exchange.connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await anyio.sleep_forever()

    began_s = anyio.current_time()
    async with through_a_proxy(script) as (_, caller):
        with anyio.move_on_after(1.0) as scope:
            async with caller.open_stream("SubscribeToShard", {}, silence_s=120.0) as stream:
                assert await anext(stream.pieces) == b"one"
                await anext(stream.pieces)
        assert scope.cancelled_caught
    assert anyio.current_time() - began_s < 60.0
