"""Takes stdin and stdout away from the user's code, so that nothing it prints can reach the daemon.

Owns the descriptors of this process: after `take_over` the protocol runs over private ones, which programs started by
the user do not inherit; descriptor 1 is stderr, so `print`, C libraries and grandchildren all end up in the daemon's log;
descriptor 0 is empty. Knows nothing of messages. POSIX only.
"""

from __future__ import annotations

import os
import sys
import threading
from fcntl import F_DUPFD_CLOEXEC, fcntl
from io import TextIOWrapper
from typing import Final

READ_BYTES: Final = 256 * 1024
"""Most that one read takes; a pipe rarely holds more at a time than 64 KiB."""
_FIRST_PRIVATE_DESCRIPTOR: Final = 3  # never 0-2, even where the process was started with one of them closed
_CLOSED: Final = -1


class Pipes:
    """The two private descriptors of the protocol.

    Args:
        source: where the daemon's bytes come from.
        sink: where ours go to.
    """

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self._sink = sink
        self._writing = threading.Lock()

    def read(self) -> bytes:
        """The daemon's next bytes, blocking; b"" once it has closed its end."""
        return os.read(self.source, READ_BYTES)

    def write(self, data: bytes) -> None:
        """Send all of it in one piece, blocking; messages are so small that a pipe takes them at once. From any thread.

        Raises:
            BrokenPipeError: the daemon has closed its end, or we have closed ours.
        """
        if self._sink == _CLOSED:
            raise BrokenPipeError("the connection to the daemon is closed in this process")
        with self._writing:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._sink, rest) :]

    def close(self) -> None:
        """Let the daemon see the end; a second call does nothing."""
        for descriptor in (self.source, self._sink):
            if descriptor != _CLOSED:
                os.close(descriptor)
        self.source = self._sink = _CLOSED
        if _in_use == [self]:
            _in_use.clear()


_in_use: list[Pipes] = []


def pipes_in_use() -> Pipes | None:
    """The pipes to the daemon; None before `take_over`, after they were closed, and in a forked copy of this process."""
    return _in_use[0] if _in_use else None


def take_over() -> Pipes:
    """Move the protocol to private descriptors and give user code harmless ones; once in the life of a process."""
    pipes = Pipes(_private_copy(0), _private_copy(1))
    _in_use[:] = [pipes]
    # A forked copy of this process must not keep the daemon waiting for the end of our stdout.
    os.register_at_fork(after_in_child=pipes.close)
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without a stderr
        os.dup2(empty, 1)
    os.close(empty)
    if isinstance(sys.stdout, TextIOWrapper):
        # Line by line, as a log needs it. What the locale cannot say is escaped: a print must not end the processor.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    return pipes


def _private_copy(descriptor: int) -> int:
    copy = fcntl(descriptor, F_DUPFD_CLOEXEC, _FIRST_PRIVATE_DESCRIPTOR)
    os.set_blocking(copy, True)
    return copy
