"""One connection of HTTP/2: many requests at a time, each a stream of its own.

Owns the socket, the windows of flow control and the watch over the peer. What comes is taken off the connection at
once, whoever it is for; what a stream's taker leaves lying closes the window of that stream alone. So a slow child holds
up its own shard and no other.

This module uses asyncio's transports without anyio between, as `connection` does, and is the only one that knows `h2`,
which comes with an extra.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - see the module's docstring
from typing import Final, cast

import anyio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple

from kcl_daemon.transport.connection import ConnectionBroken
from kcl_daemon.transport.http2_frames import FrameSplitter, GoAway, MalformedHttp2, answer_head
from kcl_daemon.transport.http2_stream import Http2Stream

ALPN: Final = "h2"
# What may come of one stream before it is taken (KCL: KinesisClientUtil).
STREAM_WINDOW_BYTES: Final = 512 * 1024
# Given back as it comes, so that it never holds anybody up.
CONNECTION_WINDOW_BYTES: Final = 16 * 2**20
# Few large frames cost less than many small ones.
FRAME_BYTES_MOST: Final = 256 * 1024
# Were there no limit of the peer's: the break of one connection is to hit not all shards of a large stream.
STREAMS_MOST: Final = 128
# After so long without a byte the peer is asked for one, and given up when it is silent for as long again.
PING_S: Final = 10.0
_IDLE_S: Final = 15.0
_FIRST_WINDOW_BYTES: Final = 65_535
_PING: Final = b"kcl-ping"
_SECRET: Final = frozenset({"authorization", "x-amz-security-token"})


class NotHttp2(ConnectionBroken):
    """Raised when the peer speaks another protocol; it is asked in HTTP/1.1 instead."""


class Http2Connection(asyncio.Protocol):
    """The protocol of one connection.

    Use: `ready`, then `open` while `has_room`; whoever has opened a stream must `leave` it, in whatever way it ends.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._splitter = FrameSplitter(FRAME_BYTES_MOST)
        self._streams: dict[int, Http2Stream] = {}
        self._unsent: dict[int, bytes] = {}
        self._owed: dict[int, int] = {}  # by stream: taken, and not yet given back to its window
        self._owed_of_all = 0
        self._streams_most = STREAMS_MOST
        self._settled = anyio.Event()
        self._broken: ConnectionBroken | None = None
        self._draining = False
        self._pinged = False
        self._moved_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it is of no further use to anybody."""
        return self._broken is not None

    @property
    def has_room(self) -> bool:
        """Whether one more stream may be opened."""
        if self._broken is not None or self._draining:
            return False
        allowed = self._h2.remote_settings.max_concurrent_streams
        return len(self._streams) < min(self._streams_most, allowed)

    async def ready(self) -> None:
        """Wait until the peer has told its settings, and with them how many streams it takes.

        Raises:
            NotHttp2: it speaks another protocol.
            ConnectionBroken: it went away.
        """
        await self._settled.wait()
        if self._broken is not None:
            raise self._broken

    def open(self, headers: list[tuple[str, str]], body: bytes, *, silence_s: float) -> Http2Stream:
        """Send a request.

        Args:
            headers: as `http2_frames.request_headers` has them.
            body: not empty.
            silence_s: how long nothing may come on the stream while somebody waits for it.

        Raises:
            ConnectionBroken: the connection cannot be used any more.
        """
        if self._broken is not None:
            raise self._broken
        try:
            number = self._h2.get_next_available_stream_id()
            secured = [NeverIndexedHeaderTuple(*each) if each[0] in _SECRET else each for each in headers]
            self._h2.send_headers(number, secured)
        except H2Error as error:
            self._fail(f"no further stream: {error}")
            raise ConnectionBroken(f"no further stream: {error}", answered=False) from error
        if not self._streams:
            self._moved_s = self._loop.time()
            self._pinged = False
            self._look_in(PING_S)
        stream = self._streams[number] = Http2Stream(number, silence_s, self._taken)
        self._unsent[number] = body
        self._send_bodies()
        self._flush()
        return stream

    def leave(self, stream: Http2Stream) -> None:
        """Nobody wants more of this stream; the peer is told where it would go on."""
        if stream.number in self._streams:
            self._forget(stream.number, ErrorCodes.CANCEL)
            self._flush()

    def retire(self) -> None:
        """Take no more streams, and close when the last one ends. Again: no effect."""
        self._draining = True
        self._close_if_done()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open: say what we allow the peer."""
        self._transport = cast("asyncio.Transport", transport)
        self._moved_s = self._loop.time()
        self._look_in(_IDLE_S)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != ALPN:
            self._break(NotHttp2("the endpoint does not offer HTTP/2", answered=False))
            return
        told = {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MOST,
        }
        self._h2.local_settings = Settings(client=True, initial_values=told)
        self._h2.max_inbound_frame_size = FRAME_BYTES_MOST
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - _FIRST_WINDOW_BYTES)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by either side."""
        self._fail(f"the connection broke: {exc}" if exc else "the peer closed the connection")

    def data_received(self, data: bytes) -> None:
        """So much has come."""
        if self._broken is not None:
            return
        self._moved_s = self._loop.time()
        self._pinged = False
        try:
            for frame in self._splitter.feed(data):
                if isinstance(frame, GoAway):
                    self._gone_away(frame)
                else:
                    for event in self._h2.receive_data(frame):
                        self._happened(event)
                if self.is_closed:
                    return
        except (MalformedHttp2, H2Error, ValueError) as error:
            if self._splitter.has_begun:
                self._fail(f"what came is no HTTP/2: {error}")
            else:
                self._break(NotHttp2(f"the endpoint does not speak HTTP/2: {error}", answered=False))
            return
        self._flush()

    # What the peer says.

    def _happened(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._received(event)
            case ResponseReceived():
                if event.stream_id in self._streams:
                    self._streams[event.stream_id].begin(answer_head(event.headers))
            case StreamEnded():
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    stream.end()
                    unsent = event.stream_id in self._unsent
                    self._forget(event.stream_id, ErrorCodes.NO_ERROR if unsent else None)
            case StreamReset():
                self._reset(event)
            case RemoteSettingsChanged():
                self._settled.set()
                self._send_bodies()
            case WindowUpdated():
                self._send_bodies()
            case _:
                pass  # informational answers, trailers, answers to PING: that they came is all they say

    def _received(self, event: DataReceived) -> None:
        """Part of a body. The connection's window is given back at once, the stream's when it is taken."""
        self._owed_of_all += event.flow_controlled_length
        if self._owed_of_all >= CONNECTION_WINDOW_BYTES // 4:
            self._h2.increment_flow_control_window(self._owed_of_all)
            self._owed_of_all = 0
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.take(event.data, event.flow_controlled_length)

    def _reset(self, event: StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        self._forget(event.stream_id, None)
        refused = event.error_code == ErrorCodes.REFUSED_STREAM
        if refused:
            self._streams_most = max(1, len(self._streams))
        stream.fail(f"the service reset the stream: {_named(event.error_code)}", unprocessed=refused)

    def _gone_away(self, told: GoAway) -> None:
        why = f"the service ended the connection: {_named(told.code)} {told.told}".rstrip()
        self._draining = True
        for number in [each for each in self._streams if each > told.last_stream]:
            stream = self._streams[number]
            self._forget(number, None)
            stream.fail(why, unprocessed=True)
        if told.code != ErrorCodes.NO_ERROR:
            self._fail(why)
        else:
            self._close_if_done()

    # What we say.

    def _taken(self, stream: Http2Stream, counted: int) -> None:
        """The taker of a stream has taken so much."""
        number = stream.number
        if number not in self._streams:
            return
        owed = self._owed.get(number, 0) + counted
        if owed >= STREAM_WINDOW_BYTES // 2:
            self._h2.increment_flow_control_window(owed, number)
            self._flush()
            owed = 0
        self._owed[number] = owed

    def _send_bodies(self) -> None:
        """As much of the requests as the peer's windows allow."""
        for number, body in list(self._unsent.items()):
            rest = body
            while rest:
                allowed = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
                if allowed <= 0:
                    break
                piece, rest = rest[:allowed], rest[allowed:]
                self._h2.send_data(number, piece, end_stream=not rest)
            if rest:
                self._unsent[number] = rest
            else:
                del self._unsent[number]

    def _forget(self, number: int, code: ErrorCodes | None) -> None:
        """A stream is over; with a code, the peer is told so."""
        del self._streams[number]
        self._unsent.pop(number, None)
        self._owed.pop(number, None)
        if code is not None and self._broken is None:
            self._h2.reset_stream(number, code)
        self._close_if_done()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _close_if_done(self) -> None:
        if self._draining and not self._streams and self._broken is None:
            self._h2.close_connection()
            self._fail("closed")

    def _fail(self, why: str) -> None:
        self._break(ConnectionBroken(why, answered=False))

    def _break(self, broken: ConnectionBroken) -> None:
        """The end, for all streams; the first reason counts."""
        if self._broken is None:
            self._broken = broken
        if self._transport is not None:
            self._flush()
            self._transport.abort()
            self._transport = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        streams, self._streams = self._streams, {}
        self._unsent.clear()
        for stream in streams.values():
            stream.fail(str(self._broken))
        self._settled.set()

    # Watching the peer.

    def _look_in(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._watch = None
        silent_s = self._loop.time() - self._moved_s
        if not self._streams:
            if silent_s >= _IDLE_S:
                self.retire()
            else:
                self._look_in(_IDLE_S - silent_s)
        elif silent_s < PING_S:
            self._look_in(PING_S - silent_s)
        elif self._pinged:
            self._fail(f"nothing came for {silent_s:.0f} s, not even an answer to PING")
        else:
            self._pinged = True
            self._h2.ping(_PING)
            self._flush()
            self._look_in(PING_S)


def _named(code: int | None) -> str:
    known = {int(each): each.name for each in ErrorCodes}
    return known.get(code or 0, f"code {code}")
