"""What the engine tells the daemon: log events and turns of its life, one JSON object a line on a pipe of its own.

Owns that pipe. Descriptor 1 becomes stderr, so that nothing that Spark, Java or a pipeline prints can be taken for one of
these lines. Each has `event` and `level`; the daemon logs them as they are.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Protocol


class Tell(Protocol):
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
        told = json.dumps({"level": level, "event": event, **fields}, default=str, ensure_ascii=False)
        # A path that is no UTF-8 has lone surrogates, which no parser but Python's takes.
        line = told.encode(errors="replace") + b"\n"
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
