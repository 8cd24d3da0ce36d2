"""The canned Kinesis over HTTP/2: every request is a subscription, and each gets the same event for ever, as its window allows."""

from __future__ import annotations

from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamReset

PREFACE = b"PRI * HTTP/2.0"
_ANSWER = [(":status", "200"), ("content-type", "application/vnd.amazon.eventstream")]


class Pusher:
    """One connection.

    Args:
        event: a frame of an event stream.
        frame_bytes: most in one frame of HTTP/2.
        write: sends.
    """

    def __init__(self, event: bytes, frame_bytes: int, write: Callable[[bytes], None]) -> None:
        self._event = memoryview(event)
        self._frame_bytes = frame_bytes
        self._write = write
        self._h2 = H2Connection(H2Configuration(client_side=False))
        self._h2.initiate_connection()
        self._sent: dict[int, int] = {}

    def feed(self, data: bytes) -> None:
        """What has come."""
        for event in self._h2.receive_data(data):
            if isinstance(event, RequestReceived):
                self._h2.send_headers(event.stream_id, _ANSWER)
                self._sent[event.stream_id] = 0
            elif isinstance(event, StreamReset):
                self._sent.pop(event.stream_id, None)
        self._write(self._h2.data_to_send())

    def push(self, is_paused: Callable[[], bool]) -> None:
        """As much as is taken."""
        moved = True
        while moved and not is_paused():
            moved = False
            for number, at in self._sent.items():
                allowed = min(
                    self._h2.local_flow_control_window(number),
                    self._h2.max_outbound_frame_size,
                    self._frame_bytes,
                )
                if allowed <= 0:
                    continue
                piece = self._event[at : at + allowed]
                self._h2.send_data(number, bytes(piece))
                self._sent[number] = (at + len(piece)) % len(self._event)
                moved = True
            self._write(self._h2.data_to_send())
