"""Our ends of a child's pipes: waiting without a thread, writing without a copy.

Owns the file descriptors. Knows nothing of processes or of what goes through the pipes. Everything here must be called
from inside the event loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import termios

import anyio
from anyio.lowlevel import checkpoint

# 256 KiB take half the CPU of the kernel's 64 KiB for long lines; 256 such pipes are what an unprivileged user may have.
STDIN_PIPE_BYTES = 256 * 1024


class PipeWriter:
    """The writing end. One sender at a time.

    Args:
        fd: the descriptor; belongs to this object from now on.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        # Refused where the user has too many large pipes already: slower, not wrong.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, STDIN_PIPE_BYTES)
        self._fd: int | None = fd

    async def send(self, line: bytes) -> None:
        """Write all of it, straight from the caller's bytes; waits while the pipe is full.

        Cancelled before the first byte has gone, nothing has happened. Cancelled in the middle, the pipe is closed:
        whatever came next would be read as the rest of this line.

        Raises:
            BrokenPipeError: nobody reads any more, or this end is closed.
        """
        await checkpoint()  # a reader that is always faster than we are must not keep the loop to itself
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[await self._write(rest) :]
        finally:
            if 0 < len(rest) < len(line):
                self.close()

    def close(self) -> None:
        """End of file for the reader; a `send` under way raises BrokenPipeError. Again: no effect."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            anyio.notify_closing(fd)
            os.close(fd)

    async def _write(self, rest: memoryview) -> int:
        """How many bytes went; 0 after a wait."""
        if self._fd is None:
            raise BrokenPipeError
        try:
            return os.write(self._fd, rest)
        except BlockingIOError:
            with contextlib.suppress(anyio.ClosedResourceError):
                await anyio.wait_writable(self._fd)
            return 0


class PipeReader:
    """The reading end. One receiver at a time.

    Args:
        fd: the descriptor; belongs to this object from now on.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._unread_bytes: int | None = None  # None: until the writers have closed it

    async def receive(self, most_bytes: int) -> bytes:
        """The next piece, as soon as there is one; empty at the end or once closed. Cancelled, nothing is lost."""
        await checkpoint()  # a writer that never pauses must not keep the loop to itself
        while self._fd is not None and self._unread_bytes != 0:
            most = most_bytes if self._unread_bytes is None else min(most_bytes, self._unread_bytes)
            try:
                piece = os.read(self._fd, most)
            except BlockingIOError:
                with contextlib.suppress(anyio.ClosedResourceError):
                    await anyio.wait_readable(self._fd)
                continue
            if self._unread_bytes is not None:
                self._unread_bytes -= len(piece)
            return piece
        return b""

    def finish(self) -> None:
        """Only what is in the pipe now is still delivered, then it ends, whoever else holds the other end open."""
        if self._fd is not None and self._unread_bytes is None:
            self._unread_bytes = _bytes_in_pipe(self._fd)
            anyio.notify_closing(self._fd)  # a receiver that waits looks again

    def close(self) -> None:
        """Give up what has not been read; a `receive` under way ends. Again: no effect."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            anyio.notify_closing(fd)
            os.close(fd)


def _bytes_in_pipe(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
