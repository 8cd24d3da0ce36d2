"""A connection with a relay: whole lines in, bytes out.

Whatever goes wrong with it means that the relay is gone; half a line that it left is nothing.

Taking connections in, a thread for each: what listener, gate and uplink have in common.

Owns the loop. No lack of descriptors or threads ends it: it says so, and goes on when there are some again.

The greeting between hosts, before the line protocol: one line of JSON each way, and the token in it.

`{"token", "application", "stream"}` from the uplink, `{"refused": REASON or null}` from the gate. Pure but for reading.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from kcl_spark.control import EmitEvent, Refused, pause

_BUFFER_BYTES: Final = 1024 * 1024


class RelayGone(Exception):
    """Raised when the daemon's side of a conversation ended, or the engine stops, or another daemon has the shard."""


class RelayConnection:
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


_PAUSE_S: Final = 1.0


def accept(
    listening: socket.socket,
    serve: Callable[[socket.socket, Any], object],
    *,
    is_closed: Callable[[], bool],
    log_event: EmitEvent,
) -> None:
    """Take in whoever comes, until closed.

    Args:
        listening: the socket; `wire.shut` on it wakes this.
        serve: called with a connection and who it is, in a thread of its own; the connection belongs to it.
        is_closed: whether no more is to be taken.
        log_event: the log.
    """
    while not is_closed():
        try:
            connection, peer = listening.accept()
        except OSError as error:
            if not is_closed():
                _log_and_wait(error, log_event)
            continue
        try:
            threading.Thread(target=serve, args=(connection, peer), name="kcl-shard", daemon=True).start()
        except RuntimeError as error:  # no more threads; the daemon starts the relay again when it is let go
            connection.close()
            _log_and_wait(error, log_event)


def _log_and_wait(error: Exception, log_event: EmitEvent) -> None:
    log_event("warning", "relay_not_accepted", error=str(error))
    pause(_PAUSE_S)


PATIENCE_S: Final = 10.0
"""How long either side may take."""
_MOST_BYTES: Final = 4_096
_LEAST_TOKEN: Final = 16


def read_token(path: str) -> str:
    """The secret in a file, without white space around it.

    Raises:
        Refused: there is none, or it can be guessed.
    """
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"sparkEngineTokenFile: {error}") from error
    if len(token) < _LEAST_TOKEN:
        raise Refused(
            f"sparkEngineTokenFile: {path} holds {len(token)} characters; at least {_LEAST_TOKEN} random ones are needed"
        )
    return token


def write_line(reported: dict[str, Any]) -> bytes:
    """A line of the greeting."""
    return json.dumps(reported).encode() + b"\n"


def read_line(connection: socket.socket) -> dict[str, Any]:
    """The next line, read byte by byte so that nothing of what follows is taken.

    Raises:
        OSError: nothing more comes.
        ValueError: it is no greeting.
    """
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1)
        if not piece:
            raise ConnectionResetError("the other side closed the connection")
        line += piece
        if len(line) > _MOST_BYTES:
            raise ValueError("no greeting")
    reported = json.loads(line)
    if not isinstance(reported, dict):
        raise ValueError("no greeting")  # noqa: TRY004 - what came from outside is wrong, not our code
    return reported
