"""HTTP/2 in front of an endpoint that speaks HTTP/1.1 only, as a load balancer would be: what the tests of HTTP/2 speak to.

It keeps to the windows of whoever reads. A body that breaks off behind it is a reset stream before it. What does not
begin with HTTP/2's preface goes through as it is, so that one address serves both.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute, TaskGroup
from anyio.streams.tls import TLSListener
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

_PREFACE: Final = b"PRI * HTTP/2.0"
_READ_BYTES: Final = 64 * 1024
_LOST: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


@dataclass
class Gateway:
    """What the gateway does and has seen.

    Args:
        port: where it listens.
        upstream: where the endpoint does.
        streams_most: that it allows on a connection.
        says_nothing: it takes requests, and answers neither them nor PING.
        refuses: so many requests are refused before they are looked at.
        conversations: the connections of HTTP/2, also those that have ended.
    """

    port: int
    upstream: int
    streams_most: int | None = None
    says_nothing: bool = False
    refuses: int = 0
    conversations: list[Conversation] = field(default_factory=list["Conversation"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open_streams(self) -> list[int]:
        """On each connection that is open."""
        return [len(each.streams) for each in self.conversations if not each.is_over]


class Conversation:
    """One connection of HTTP/2."""

    def __init__(self, gateway: Gateway, connection: ByteStream, group: TaskGroup) -> None:
        self.streams: dict[int, anyio.CancelScope] = {}
        self.is_over = False
        self.sent: dict[int, int] = {}
        self._gateway = gateway
        self._connection = connection
        self._group = group
        self._bodies: dict[int, tuple[list[tuple[bytes, bytes]], bytearray]] = {}
        self._stirred = anyio.Event()
        self._sending = anyio.Lock()
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))

    async def run(self, first: bytes) -> None:
        """Until the client goes."""
        if self._gateway.streams_most is not None:
            most = {SettingCodes.MAX_CONCURRENT_STREAMS: self._gateway.streams_most}
            self.h2.local_settings = Settings(client=False, initial_values=most)
        self.h2.initiate_connection()
        received = first
        try:
            while True:
                for event in self.h2.receive_data(received):
                    self._happened(event)
                if not self._gateway.says_nothing:
                    await self.flush()
                self.stir()
                received = await self._connection.receive(_READ_BYTES)
        except (*_LOST, H2Error):
            return
        finally:
            self.is_over = True
            for scope in self.streams.values():
                scope.cancel()

    def stir(self) -> None:
        self._stirred.set()
        self._stirred = anyio.Event()

    async def flush(self) -> None:
        """Send what the library has to say."""
        async with self._sending:
            data = self.h2.data_to_send()
            if data:
                await self._connection.send(data)

    async def go_away(self, code: ErrorCodes, *, last_stream: int = 2**31 - 1) -> None:
        """Say GOAWAY behind the library's back, which would end all streams with it."""
        payload = last_stream.to_bytes(4) + int(code).to_bytes(4) + b"going"
        async with self._sending:
            await self._connection.send(len(payload).to_bytes(3) + b"\x07\x00" + (0).to_bytes(4) + payload)

    async def reset(self, number: int, code: ErrorCodes) -> None:
        """Reset a stream."""
        self.h2.reset_stream(number, code)
        self.streams[number].cancel()
        await self.flush()

    async def cut(self) -> None:
        """Close the connection."""
        await self._connection.aclose()

    def _happened(self, event: Event) -> None:
        match event:
            case RequestReceived():
                headers = [(bytes(name), bytes(value)) for name, value in event.headers]
                self._bodies[event.stream_id] = (headers, bytearray())
            case DataReceived():
                self._bodies[event.stream_id][1].extend(event.data)
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                if self._gateway.refuses > 0:
                    self._gateway.refuses -= 1
                    self.h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
                elif not self._gateway.says_nothing:
                    self.streams[event.stream_id] = anyio.CancelScope()
                    self._group.start_soon(self._relay, event.stream_id)
            case StreamReset():
                if event.stream_id in self.streams:
                    self.streams[event.stream_id].cancel()
            case _:
                pass

    async def _relay(self, number: int) -> None:
        """One request there and its answer back."""
        headers, body = self._bodies.pop(number)
        try:
            with self.streams[number]:
                try:
                    await self._exchange(number, headers, bytes(body))
                except (*_LOST, h11.RemoteProtocolError):
                    self.h2.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
                    await self.flush()
        except (H2Error, *_LOST):
            pass  # the client was quicker
        finally:
            del self.streams[number]

    async def _exchange(self, number: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        told = dict(headers)
        passed = [each for each in headers if not each[0].startswith(b":")]
        passed += [(b"host", told[b":authority"]), (b"content-length", b"%d" % len(body))]
        upstream = h11.Connection(h11.CLIENT)
        async with await anyio.connect_tcp("127.0.0.1", self._gateway.upstream) as stream:
            for said in (
                h11.Request(method=told[b":method"], target=told[b":path"], headers=passed),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                await stream.send(upstream.send(said) or b"")
            while True:
                event = upstream.next_event()
                match event:
                    case h11.NEED_DATA:
                        try:
                            upstream.receive_data(await stream.receive(_READ_BYTES))
                        except anyio.EndOfStream:
                            upstream.receive_data(b"")
                    case h11.Response():
                        self.h2.send_headers(number, _passed_on(event))
                        await self.flush()
                    case h11.Data():
                        await self._send(number, bytes(event.data))
                    case _:
                        self.h2.end_stream(number)
                        await self.flush()
                        return

    async def _send(self, number: int, data: bytes) -> None:
        """As the windows allow."""
        while data:
            allowed = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if allowed <= 0:
                await self._stirred.wait()
                continue
            piece, data = data[:allowed], data[allowed:]
            self.h2.send_data(number, piece)
            self.sent[number] = self.sent.get(number, 0) + len(piece)
            await self.flush()


def _passed_on(answer: h11.Response) -> list[tuple[bytes, bytes]]:
    kept = [
        (name, value) for name, value in answer.headers if name not in {b"transfer-encoding", b"connection"}
    ]
    return [(b":status", b"%d" % answer.status_code), *kept]


@asynccontextmanager
async def gateway(upstream: int, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Gateway, None]:
    """A gateway to that port of this machine, while the context is open."""
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    made = Gateway(plain.extra(SocketAttribute.local_port), upstream)
    listener = plain if tls is None else TLSListener(plain, tls, standard_compatible=False)

    async def talk(connection: ByteStream) -> None:
        async with connection, anyio.create_task_group() as group:
            try:
                first = await connection.receive(_READ_BYTES)
                while len(first) < len(_PREFACE) and _PREFACE.startswith(first):
                    first += await connection.receive(_READ_BYTES)
            except _LOST:
                return
            if first.startswith(_PREFACE):
                conversation = Conversation(made, connection, group)
                made.conversations.append(conversation)
                await conversation.run(first)
            else:
                await _through(connection, first, made.upstream)
            group.cancel_scope.cancel()

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, talk)
        try:
            yield made
        finally:
            group.cancel_scope.cancel()


async def _through(connection: ByteStream, first: bytes, upstream: int) -> None:
    async with await anyio.connect_tcp("127.0.0.1", upstream) as other, anyio.create_task_group() as group:
        await other.send(first)
        group.start_soon(_pump, other, connection, group)
        await _pump(connection, other, group)


async def _pump(from_: ByteStream, to: ByteStream, group: TaskGroup) -> None:
    try:
        while True:
            await to.send(await from_.receive(_READ_BYTES))
    except _LOST:
        group.cancel_scope.cancel()
