"""Which way event streams take: HTTP/2 where it is asked for and can be had, else HTTP/1.1 with one warning."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from kcl_daemon.aws.wires import http2_wires
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.transport.connection import ConnectionBroken
from kcl_daemon.transport.head import Framing, Head
from kcl_daemon.transport.values import Target
from kcl_daemon.transport.wire import Read, Streamed, T
from tests.unit.fakes import MemoryLog
from tests.unit.transport.scripted import FixedAccess

pytestmark = pytest.mark.anyio
HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n"
NOBODY = 1  # no port that anybody listens on


class Plain:
    """The way by HTTP/1.1."""

    def __init__(self) -> None:
        self.streams = 0

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
        return read(Head(200, {}, Framing.CLOSE, 0), bytearray(body))

    @asynccontextmanager
    async def stream(self, head: bytes, body: bytes, *, silence_s: float) -> AsyncGenerator[Streamed, None]:
        self.streams += 1

        async def nothing() -> AsyncGenerator[bytes, None]:
            for piece in list[bytes]():
                yield piece

        yield Streamed(Head(200, {}, Framing.CLOSE, 0), nothing())

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "https_proxy",
        "http_proxy",
        "no_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


async def streams(url: str, times: int = 1) -> tuple[int, MemoryLog]:
    """How many of these streams come the plain way, and what is logged."""
    plain, log = Plain(), MemoryLog()
    wire = http2_wires(lambda _: plain, FixedAccess(url), log)(Target(url, "us-east-1", "kinesis"))
    for _ in range(times):
        try:
            async with wire.stream(HEAD, b"{}", silence_s=1.0):
                pass
        except ConnectionBroken:
            pass
    await wire.aclose()
    return plain.streams, log


async def test_behind_a_proxy_it_is_http_1_1_and_that_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    plain, log = await streams("https://kinesis.invalid/", times=3)
    assert plain == 3
    ((level, event, fields),) = log.lines
    assert (level, event, fields["endpoint"]) == ("warning", "fan_out_without_http2", "kinesis.invalid")
    assert "proxy" in str(fields["reason"])


async def test_what_is_not_encrypted_is_spoken_to_in_http_2_on_this_machine_only() -> None:
    plain, log = await streams("http://192.0.2.1:4567/")
    assert (plain, log.events("warning")) == (1, ["fan_out_without_http2"])
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert await streams(f"http://{host}:{NOBODY}/") == (0, MemoryLog()), "it was tried, nobody is there"


async def test_calls_go_the_plain_way() -> None:
    wire = http2_wires(lambda _: Plain(), FixedAccess("http://127.0.0.1:1/"), MemoryLog())(
        Target("http://127.0.0.1:1/", "us-east-1", "kinesis")
    )
    assert await wire.exchange(HEAD, b"{}", lambda head, body: (head.status, bytes(body))) == (200, b"{}")


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h2", None)
    with pytest.raises(ConfigurationError, match=r"fanoutHttpVersion is 2.*pip install 'kcl-daemon\[h2\]'"):
        http2_wires(lambda _: Plain(), FixedAccess("https://kinesis.invalid/"), MemoryLog())
