"""What the engine tells the daemon: log events and turns of its life, one JSON object a line on a pipe of its own.

Owns that pipe. Descriptor 1 becomes stderr, so that nothing that Spark, Java or a pipeline prints can be taken for one of
these lines. Each has `event` and `level`; the daemon logs them as they are.

The one clock of the client; nothing else in the package asks the system for the time.

The error for what a person must put right before anything can run.

Files and folders that nobody but this user may read: what is in them came out of the stream, or tells of it.

Owns the modes. A folder that was there before keeps its own: whoever made it may have wanted others to read it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Protocol


class EmitEvent(Protocol):
    """Tells one event."""

    def __call__(self, level: str, event: str, /, **fields: object) -> None:
        """Say it; never raises."""
        ...


class ControlPipe:
    """The pipe to the daemon; call it to tell something.

    Args:
        descriptor: the writing end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, level: str, event: str, /, **fields: object) -> None:
        """One line; lost where the daemon is gone."""
        reported = json.dumps({"level": level, "event": event, **fields}, default=str, ensure_ascii=False)
        # A path that is no UTF-8 has lone surrogates, which no parser but Python's takes.
        line = reported.encode(errors="replace") + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                return


def take_over_stdout() -> ControlPipe:
    """Keep stdout for events, give everybody else stderr."""
    private = os.dup(1)
    os.set_inheritable(private, False)
    sys.stdout.flush()
    os.dup2(2, 1)
    return ControlPipe(private)


def monotonic_s() -> float:
    """Seconds that never go back, from an arbitrary start."""
    return time.monotonic()  # noqa: TID251 - a program of its own beside Spark: there is no port


def pause(seconds: float) -> None:
    """Wait that long."""
    threading.Event().wait(seconds)


class Refused(Exception):
    """Raised when the engine must not start or go on; the message says what to do."""


_FOLDER = 0o700
_FILE = 0o600


def make_folder(path: Path) -> None:
    """Make a folder, where it is missing, that is closed to others; what Spark and Arrow write below is then, too."""
    path.mkdir(mode=_FOLDER, parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole file that is closed to others from its first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(text)


def replace_text(path: Path, text: str) -> None:
    """The same for a file that is read after a crash: it has the new text or the one before, never a part.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    young = path.with_name(f".{path.name}.young")
    young.unlink(missing_ok=True)  # of a crash; its mode would stay
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
