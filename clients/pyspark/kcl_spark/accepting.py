"""Taking connections in, a thread for each: what listener, gate and uplink have in common.

Owns the loop. No lack of descriptors or threads ends it: it says so, and goes on when there are some again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from kcl_spark.clock import pause
from kcl_spark.control import Tell

_PAUSE_S: Final = 1.0


def accept(
    listening: socket.socket,
    serve: Callable[[socket.socket, Any], object],
    *,
    is_closed: Callable[[], bool],
    tell: Tell,
) -> None:
    """Take in whoever comes, until closed.

    Args:
        listening: the socket; `wire.shut` on it wakes this.
        serve: called with a connection and who it is, in a thread of its own; the connection belongs to it.
        is_closed: whether no more is to be taken.
        tell: the log.
    """
    while not is_closed():
        try:
            connection, peer = listening.accept()
        except OSError as error:
            if not is_closed():
                _tell_and_wait(error, tell)
            continue
        try:
            threading.Thread(target=serve, args=(connection, peer), name="kcl-shard", daemon=True).start()
        except RuntimeError as error:  # no more threads; the daemon starts the relay again when it is let go
            connection.close()
            _tell_and_wait(error, tell)


def _tell_and_wait(error: Exception, tell: Tell) -> None:
    tell("warning", "relay_not_accepted", error=str(error))
    pause(_PAUSE_S)
