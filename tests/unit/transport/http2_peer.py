"""The other end of a connection of HTTP/2 in memory: no socket, no time but the loop's, every byte in the test's hand."""

from __future__ import annotations

import asyncio  # noqa: TID251 - stands in for asyncio's socket
from collections.abc import Sequence

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, StreamReset
from h2.settings import SettingCodes, Settings

from kcl_daemon.transport.http2_connection import Http2Connection
from kcl_daemon.transport.http2_stream import Http2Stream
from tests.unit.transport.test_frames import pieces

HEADERS = [(":method", "POST"), (":scheme", "https"), (":authority", "here"), (":path", "/")]
OK = [(":status", "200"), ("content-type", "application/vnd.amazon.eventstream")]
FRAME_BYTES = 256 * 1024


class Socket(asyncio.Transport):
    """What asyncio gives a connection, without a network behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True


class Peer:
    """A service, and our connection to it.

    Args:
        settings: what it tells.
        answers_ping: whether what we say gets there at all.
    """

    def __init__(self, settings: dict[SettingCodes, int] | None = None, *, answers_ping: bool = True) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self.events: list[Event] = []
        self.answers_ping = answers_ping
        self.socket = Socket()
        self.connection = Http2Connection()
        self.connection.connection_made(self.socket)
        if settings:
            self.h2.local_settings = Settings(client=False, initial_values=settings)
        self.h2.initiate_connection()
        self.talk()

    def talk(self, cuts: Sequence[int] = ()) -> None:
        """What either side has to say, until both are silent."""
        while True:
            said, self.socket.written = bytes(self.socket.written), bytearray()
            if said:
                self.events += self.h2.receive_data(said)
            answer = self.h2.data_to_send() if self.answers_ping else b""
            if not said and not answer:
                return
            for piece in pieces(answer, cuts):
                if piece and not self.socket.is_aborted:
                    self.connection.data_received(piece)

    def open(self, body: bytes = b"{}", silence_s: float = 30.0) -> Http2Stream:
        """A stream whose request has come and whose answer has begun."""
        stream = self.connection.open(HEADERS, body, silence_s=silence_s)
        self.talk()
        self.h2.send_headers(stream.number, OK)
        self.talk()
        return stream

    def push(self, stream: Http2Stream, data: bytes) -> int:
        """As much of it as the windows allow; how much that was."""
        sent = 0
        while sent < len(data):
            allowed = min(self.h2.local_flow_control_window(stream.number), FRAME_BYTES, len(data) - sent)
            if allowed <= 0:
                break
            self.h2.send_data(stream.number, data[sent : sent + allowed])
            sent += allowed
            self.talk()
        return sent

    def go_away(self, *, last_stream: int = 2**31 - 1, code: int = 0) -> None:
        payload = last_stream.to_bytes(4) + code.to_bytes(4)
        self.connection.data_received(b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + payload)
        self.talk()

    def is_over(self) -> bool:
        return self.connection.is_closed

    def has_room(self) -> bool:
        return self.connection.has_room

    def body(self) -> bytes:
        return b"".join(event.data for event in self.events if isinstance(event, DataReceived))

    def resets(self) -> list[int]:
        return [event.stream_id for event in self.events if isinstance(event, StreamReset)]
