"""The child process of a shard: passes bytes between the daemon and the engine.

Exit code 0 after the daemon has closed its pipe, 75 if the engine went away; then the daemon restarts the
relay.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
from contextlib import suppress

EXIT_USAGE = 64
EXIT_ENGINE_GONE = 75
CLOSED = ".closed"
"""This file beside the socket means that no engine will come."""
_CHUNK_BYTES = 256 * 1024
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_STDIN, _STDOUT = 0, 1


def connect(path: str) -> socket.socket | None:
    """None if the daemon went away or gave the engine up."""
    pause_s = _FIRST_PAUSE_S
    while True:
        engine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            engine.connect(path)
        except OSError as error:
            engine.close()
            if error.errno not in {errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN}:
                raise
        else:
            return engine
        if _daemon_gone(pause_s) or os.path.exists(path + CLOSED):  # noqa: PTH110 - pathlib costs a megabyte
            return None
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _daemon_gone(wait_s: float) -> bool:
    poll = select.poll()
    poll.register(_STDIN, 0)  # POLLHUP is always reported; data stays in the pipe
    return bool(poll.poll(wait_s * 1000))


def up(engine: socket.socket, ended: threading.Event) -> None:
    try:
        while os.splice(_STDIN, engine.fileno(), _CHUNK_BYTES):
            pass
    except OSError as error:
        if error.errno != errno.EINVAL:
            return
        while piece := os.read(_STDIN, _CHUNK_BYTES):
            engine.sendall(piece)
    ended.set()
    engine.shutdown(socket.SHUT_WR)


def down(engine: socket.socket) -> None:
    while piece := engine.recv(64 * 1024):
        while piece:
            piece = piece[os.write(_STDOUT, piece) :]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m kcl_landing.relay SOCKET\n")
        return EXIT_USAGE
    engine = connect(arguments[0])
    if engine is None:
        return 0
    ended = threading.Event()
    threading.Thread(target=up, args=(engine, ended), daemon=True).start()
    with suppress(OSError):
        down(engine)
    if ended.is_set():
        return 0
    sys.stderr.write("the Spark engine or the lander is gone; its records will be delivered again\n")
    return EXIT_ENGINE_GONE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
