"""Ports that nobody has, for tests that must know one before somebody listens on it."""

from __future__ import annotations

import os
import socket
from itertools import count
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10_000
_numbers = count(os.getpid())


def free_port() -> int:
    """A port of loopback where nobody listens.

    Not one of those that the system hands out: it would give it to the next connection of any process before the test
    uses it, and one that is refused again and again could be connected with itself.
    """
    ends = _RANGE.read_text("ascii").split() if _RANGE.exists() else ["0"]
    places = int(ends[0]) - _LOWEST
    for _ in range(max(0, places)):
        port = _LOWEST + next(_numbers) * 61 % places
        if _is_free(port):
            return port
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
