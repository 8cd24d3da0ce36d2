"""Events to the daemon, the clock, private files.

Events are JSON lines on a private pipe; descriptor 1 becomes stderr, so that no other output is taken for one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

_LINE_BYTES: Final = 16 * 1024 * 1024
_FOLDER: Final = 0o700
_FILE: Final = 0o600


class EmitEvent(Protocol):
    def __call__(self, level: str, event: str, /, **fields: object) -> None: ...


class ControlPipe:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, level: str, event: str, /, **fields: object) -> None:
        """Never raises: without a daemon the event is dropped."""
        reported = json.dumps({"level": level, "event": event, **fields}, default=str, ensure_ascii=False)
        # A path that is no UTF-8 has lone surrogates.
        line = reported.encode(errors="replace") + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                return


def take_over_stdout() -> ControlPipe:
    private = os.dup(1)
    os.set_inheritable(private, False)
    sys.stdout.flush()
    os.dup2(2, 1)
    return ControlPipe(private)


def begin(hear: Callable[[bytes], object] = lambda _line: None) -> tuple[bytes, threading.Event]:
    """The daemon's options, and the event that its end, SIGTERM or SIGINT set. In the main thread, once.

    A thread gives `hear` each further line.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    lines = _lines()
    options = next(lines, b"")

    def listen() -> None:
        for line in lines:
            hear(line)
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    return options, stop


def _lines() -> Iterator[bytes]:
    """sys.stdin would hold its lock at exit. Lines that are too long are cut."""
    line = bytearray()
    while piece := os.read(0, 64 * 1024):
        first, *others = piece.split(b"\n")
        line += first
        for each in others:
            yield bytes(line)
            line = bytearray(each)
        del line[_LINE_BYTES:]
    if line:
        yield bytes(line)


def monotonic_s() -> float:
    return time.monotonic()  # noqa: TID251 - a program of its own beside Spark: there is no port


def epoch_ms() -> int:
    return round(time.time() * 1000)  # noqa: TID251 - likewise


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class Refused(Exception):
    """A person must do first what it says."""


def make_folder(path: Path) -> None:
    path.mkdir(mode=_FOLDER, parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(text)


def replace_text(path: Path, text: str) -> None:
    """Fsynced. OSError leaves the old content."""
    young = path.with_name(f".{path.name}.young")
    young.unlink(missing_ok=True)
    descriptor = os.open(young, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        young.replace(path)
    except OSError:
        young.unlink(missing_ok=True)
        raise
