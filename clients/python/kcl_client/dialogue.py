"""The daemon's messages out of bytes, ours into bytes, each checked against the rules of the conversation.

Owns the connection of framing, codec and conversation to a source and a sink of bytes. Knows nothing of processors.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kcl_client.records import Scalar
from kcl_protocol.codec import decode_daemon_line, encode
from kcl_protocol.conversation import Conversation, Role
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.framing import LineFramer, OversizedLine
from kcl_protocol.messages import ChildMessage, DaemonMessage, Initialize

_KNOWN_FIELDS: Final = frozenset({"action", "shardId", "sequenceNumber", "subSequenceNumber"})


class DaemonGone(Exception):
    """Raised when the daemon has closed one of the pipes: the orderly end, or its death."""


class Dialogue:
    """One conversation with the daemon, seen from the child.

    Args:
        read: the daemon's next bytes, b"" at the end or ConnectionError.
        write: sends all of the bytes; ConnectionError once nobody reads them.
        max_line_bytes: longest line taken from the daemon.
    """

    def __init__(
        self, read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], None], max_line_bytes: int
    ) -> None:
        self._read = read
        self._write = write
        self._max_line_bytes = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
        self._conversation = Conversation(Role.CHILD)
        self._lines: deque[bytes | OversizedLine] = deque()
        self.extra_fields: Mapping[str, Scalar] = {}

    @property
    def may_checkpoint(self) -> bool:
        """Whether a `CheckpointRequest` may be sent now."""
        return self._conversation.may_checkpoint

    async def receive(self) -> DaemonMessage:
        """The next message.

        Raises:
            DaemonGone: there is none and will be none; a line that was cut off is dropped.
            RemoteProtocolError: it is malformed, or out of turn.
        """
        line = await self._next_line()
        message = decode_daemon_line(line)
        self._conversation.receive(message)
        if isinstance(message, Initialize):
            self.extra_fields = _extra_fields(line)
        return message

    def send(self, message: ChildMessage) -> None:
        """Send a message.

        Raises:
            DaemonGone: nobody reads any more.
            LocalProtocolError: it is not our turn to say this.
        """
        self._conversation.send(message)
        # A line of its own whatever stands before it: something may have written to the pipe before we took it over.
        frame = b"\n" + encode(message)
        try:
            self._write(frame)
        except ConnectionError as error:
            raise DaemonGone from error

    async def _next_line(self) -> bytes:
        while not self._lines:
            try:
                data = await self._read()
            except ConnectionError as error:  # only where stdin is a socket
                raise DaemonGone from error
            if not data:
                raise DaemonGone
            self._lines.extend(line for line in self._framer.feed(data) if not _is_blank(line))
        line = self._lines.popleft()
        if isinstance(line, OversizedLine):
            raise RemoteProtocolError(
                f"the daemon's line of {line.length_bytes} bytes is over max_line_bytes={self._max_line_bytes}"
            )
        return line


def _is_blank(line: bytes | OversizedLine) -> bool:
    return isinstance(line, bytes) and (not line or line.isspace())


def _extra_fields(line: bytes) -> Mapping[str, Scalar]:
    fields: dict[str, object] = json.loads(line)
    return {
        name: value
        for name, value in fields.items()
        if name not in _KNOWN_FIELDS and (value is None or isinstance(value, str | int | float))
    }
