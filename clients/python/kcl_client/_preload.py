"""The template process of `childPreload`: it has imported the program, and forks a child for each shard."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_PACKET_BYTES: Final = 64 * 1024
_UNKNOWN_STATUS: Final = 255
_LOOKS: Final = 20
_LOOK_AGAIN_S: Final = 0.02
# Stopped and started again around a fork by its own library.
_SAFE_THREADS: Final = frozenset({"jemalloc_bg_thd"})


def serve(descriptor: int) -> None:
    """Returns in each fork, which goes on as an ordinary child; SystemExit when the daemon closes the connection."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:  # 0 to 2 may be closed, and must not become others
        pass
    os.close(spare)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or each fork writes it again
    gc.collect()
    gc.freeze()  # a collection in a fork would write to the pages that it shares
    with socket.socket(fileno=descriptor) as connection:
        connection.set_inheritable(False)
        _send(connection, action="preloaded")
        while True:
            line, descriptors = _receive(connection)
            if not line:
                raise SystemExit(0)
            request = json.loads(line)
            if request["action"] == "reap":
                _send(connection, status=_reap(request["pid"]))
            elif threads := _threads():
                advice = "start them in `initialize`, or remove childPreload"
                lost = f"it has threads, which a fork would lose ({', '.join(threads)})"
                _send(connection, error=f"{lost}; {advice}")
            elif _is_fork(connection):
                _become_child(descriptors, request["env"])
                _send(connection, pid=os.getpid())
                return
            for each in descriptors:
                os.close(each)


def _send(connection: socket.socket, **message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Only Linux brings a message and its descriptors in one packet."""
    line, descriptors = b"", list[int]()
    while not line.endswith(b"\n"):
        piece, more, _, _ = socket.recv_fds(connection, _PACKET_BYTES, 3)
        if not piece:
            return b"", descriptors
        line += piece
        descriptors += more
    return line, descriptors


def _is_fork(connection: socket.socket) -> bool:
    try:
        return os.fork() == 0
    except OSError as error:
        _send(connection, error=f"it cannot fork: {error}")
        return False


def _become_child(descriptors: Sequence[int], environment: dict[str, str]) -> None:
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(environment)


def _reap(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return _UNKNOWN_STATUS


def _threads() -> list[str]:
    main = threading.current_thread()
    names = [thread.name for thread in threading.enumerate() if thread is not main]
    if names or not _native_threads():
        return names
    # OpenBLAS and others end their threads at a fork, and start them again when they need them.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(_LOOKS):
        if not (names := _native_threads()):
            break
        threading.Event().wait(_LOOK_AGAIN_S)  # a thread that was joined is listed for a moment
    return names


def _native_threads() -> list[str]:
    if sys.platform != "linux" or os.environ.get("KCL_POSIX_ONLY") == "1":
        return []
    names: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            names.append("" if task.name == str(os.getpid()) else (task / "comm").read_text().strip())
    return [name for name in names if name and name not in _SAFE_THREADS]
