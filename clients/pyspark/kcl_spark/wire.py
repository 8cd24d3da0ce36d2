"""Connections for listeners and uplink, and the greeting between hosts.

The greeting is `{"token", "application", "stream"}`, then `{"refused": REASON or null}`, one line each.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kcl_spark.control import EmitEvent, Refused, pause


class RelayGone(Exception):
    """Raised when the daemon is gone, the engine stops, or another daemon has the shard."""


def shut(connection: socket.socket) -> None:
    """No TLS close, which is unsafe from a second thread."""
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return


def keep_alive(connection: socket.socket) -> None:
    """Detect a dead host within half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_NODELAY", 1)):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


_BACKLOG: Final = 1024
_PAUSE_S: Final = 1.0


def listen(path: Path) -> socket.socket:
    """A Unix socket for this user. Renamed once its mode is set, because anybody who finds it can connect."""
    path.unlink(missing_ok=True)
    young = path.with_name(f".{path.name}.{os.getpid()}")
    young.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(young))
    young.chmod(0o600)
    listening.listen(_BACKLOG)
    young.rename(path)
    return listening


def accept_in_background(
    listening: socket.socket,
    serve: Callable[[socket.socket, Any], object],
    *,
    name: str,
    is_closed: Callable[[], bool],
    log_event: EmitEvent,
) -> None:
    """`serve` runs in a thread of its own. A lack of descriptors or threads only delays."""

    def accept() -> None:
        while not is_closed():
            try:
                connection, peer = listening.accept()
            except OSError as error:
                if not is_closed():
                    _log_and_wait(error, log_event)
                continue
            try:
                threading.Thread(target=serve, args=(connection, peer), name="kcl-shard", daemon=True).start()
            except RuntimeError as error:  # no more threads; the daemon restarts the relay
                connection.close()
                _log_and_wait(error, log_event)

    threading.Thread(target=accept, name=name, daemon=True).start()


def _log_and_wait(error: Exception, log_event: EmitEvent) -> None:
    log_event("warning", "relay_not_accepted", error=str(error))
    pause(_PAUSE_S)


PATIENCE_S: Final = 10.0
_MOST_BYTES: Final = 4_096
_LEAST_TOKEN: Final = 16


def read_token(path: str) -> str:
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"sparkEngineTokenFile: {error}") from error
    if len(token) < _LEAST_TOKEN:
        raise Refused(
            f"sparkEngineTokenFile: {path} holds {len(token)} characters; at least {_LEAST_TOKEN} random ones are needed"
        )
    return token


def greeting(token_file: str, application: str, stream: str) -> dict[str, str]:
    return {"token": read_token(token_file), "application": application, "stream": stream}


def write_line(reported: dict[str, Any]) -> bytes:
    return json.dumps(reported).encode() + b"\n"


def read_line(connection: socket.socket) -> dict[str, Any]:
    """Reads byte by byte, so that nothing after the line is taken. Raises OSError or ValueError."""
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
