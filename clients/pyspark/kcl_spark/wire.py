"""A connection with a relay: whole lines in, bytes out.

Whatever goes wrong with it means that the relay is gone; half a line that it left is nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

_BUFFER_BYTES: Final = 1024 * 1024


class RelayGone(Exception):
    """Raised when the daemon's side of a conversation ended, or the engine stops, or another daemon has the shard."""


class Wire:
    """One connection.

    Args:
        connection: to the relay, with or without TLS.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb", buffering=_BUFFER_BYTES)

    def lines(self) -> Iterator[bytes]:
        """Its lines; ends when the relay has gone."""
        while True:
            try:
                line = self._file.readline()
            except (OSError, ValueError):  # ValueError: closed from elsewhere
                return
            if not line.endswith(b"\n"):
                return
            yield line

    def send(self, data: bytes) -> None:
        """Say something.

        Raises:
            RelayGone: nobody hears it.
        """
        try:
            self._connection.sendall(data)
        except (OSError, ValueError) as error:
            raise RelayGone from error

    def close(self) -> None:
        """Done with it; the connection itself belongs to whoever made it."""
        self._file.close()


def shut(connection: socket.socket) -> None:
    """Break off whatever a thread does with a connection. Without a word of TLS: that is not for two threads."""
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:  # not connected
        return


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_NODELAY", 1)):
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`; an address of IPv6 stands in brackets.

    Raises:
        ValueError: it is something else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)
