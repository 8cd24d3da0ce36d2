"""The greeting between hosts, before the line protocol: one line of JSON each way, and the token in it.

`{"token", "application", "stream"}` from the uplink, `{"refused": REASON or null}` from the gate. Pure but for reading.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Final

from kcl_spark.refused import Refused

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


def write_line(told: dict[str, Any]) -> bytes:
    """A line of the greeting."""
    return json.dumps(told).encode() + b"\n"


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
    told = json.loads(line)
    if not isinstance(told, dict):
        raise ValueError("no greeting")  # noqa: TRY004 - what came from outside is wrong, not our code
    return told
