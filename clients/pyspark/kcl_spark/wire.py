"""Connections for listeners and uplink, and the greeting between hosts.

The greeting is `{"token", "application", "stream"}`, then `{"refused": REASON or null}`, one line each.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Final

from kcl_landing.control import Refused


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
