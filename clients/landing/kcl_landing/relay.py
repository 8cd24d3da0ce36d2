"""The child of a shard: passes bytes between the daemon and the engine.

Exit codes: 0 the daemon has closed its pipe; 75 the engine went away, so the daemon starts the relay again.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress

EXIT_USAGE = 64
EXIT_ENGINE_GONE = 75
CLOSED = ".closed"
"""Beside the socket: no engine will come."""
_CHUNK_BYTES = 256 * 1024
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_STDIN, _STDOUT = 0, 1


def connect(path: str) -> tuple[socket.socket, bytes] | None:
    """With what the daemon has said meanwhile. None: it went away or gave the engine up."""
    pause_s, said = _FIRST_PAUSE_S, b""
    while True:
        engine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            engine.connect(path)
        except OSError as error:
            engine.close()
            if error.errno not in {errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN}:
                raise
        else:
            return engine, said
        if (more := _listen(pause_s)) is None or os.path.exists(path + CLOSED):  # noqa: PTH110 - pathlib costs a megabyte
            return None
        said += more
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _listen(wait_s: float) -> bytes | None:
    """What the daemon says in this time, a line at most. None: it has gone.

    Only reading shows its end while something is in the pipe.
    """
    said, until_s = b"", time.monotonic() + wait_s  # noqa: TID251 - imports nothing of ours
    while select.select([_STDIN], [], [], max(0.0, until_s - time.monotonic()))[0]:  # noqa: TID251
        piece = os.read(_STDIN, _CHUNK_BYTES)
        if not piece:
            return None
        said += piece
    return said


def up(engine: socket.socket, said: bytes, ended: threading.Event) -> None:
    with suppress(OSError):
        engine.sendall(said)
        if sys.platform == "linux" and os.environ.get("KCL_POSIX_ONLY") != "1":
            _splice(engine)
        while piece := os.read(_STDIN, _CHUNK_BYTES):
            engine.sendall(piece)
        ended.set()
        engine.shutdown(socket.SHUT_WR)


def _splice(engine: socket.socket) -> None:
    """Returns at the end, or where the kernel cannot do it."""
    try:
        while os.splice(_STDIN, engine.fileno(), _CHUNK_BYTES):
            pass
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def down(engine: socket.socket) -> None:
    while piece := engine.recv(64 * 1024):
        while piece:
            piece = piece[os.write(_STDOUT, piece) :]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m kcl_landing.relay SOCKET\n")
        return EXIT_USAGE
    connected = connect(arguments[0])
    if connected is None:
        return 0
    engine, said = connected
    ended = threading.Event()
    threading.Thread(target=up, args=(engine, said, ended), daemon=True).start()
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
