"""Call everything from inside the event loop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import termios
from collections import deque
from math import inf

import anyio
from anyio.lowlevel import checkpoint

from kcl_daemon.children.platform import enlarge_pipe
from kcl_daemon.ports import Clock, Log, LogLevel, at_level

# Long lines need half the CPU of the default 64 KiB; an unprivileged user may have 256 such pipes.
STDIN_PIPE_BYTES = 256 * 1024
MAX_LINE_BYTES = 16 * 1024
TAIL_LINES = 20
_READ_BYTES = 16 * 1024
# A log event takes 10 to 50 microseconds, so other tasks wait a few milliseconds at most.
_LINES_PER_TURN = 64
_LINE_BYTES = 1024
_AT_ONCE_S = 10.0
_TELL_EVERY_S = 60.0


class PipeWriter:
    """The writing end, for one sender at a time; owns the descriptors.

    While `reader`, the child's end, is open here, a write succeeds even if the child has closed its own: call
    `forget_reader` before the first line that wants an answer.
    """

    def __init__(self, fd: int, reader: int | None = None) -> None:
        os.set_blocking(fd, False)
        enlarge_pipe(fd, STDIN_PIPE_BYTES)
        self._fd: int | None = fd
        self._reader = reader

    async def send(self, line: bytes) -> None:
        """Waits while the pipe is full.

        If cancelled within a line, the pipe is closed: the next line would be read as the rest of this one.
        BrokenPipeError: nobody reads any more, or this end is closed.
        """
        await checkpoint()  # a fast reader must not starve other tasks
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[await self._write(rest) :]
        finally:
            if 0 < len(rest) < len(line):
                self.close()

    @property
    def unread_bytes(self) -> int:
        return 0 if self._reader is None else _bytes_in_pipe(self._reader)

    def forget_reader(self) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            os.close(reader)

    def close(self) -> None:
        """A running `send` raises BrokenPipeError. Safe to repeat."""
        self.forget_reader()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            anyio.notify_closing(fd)
            os.close(fd)

    async def _write(self, rest: memoryview) -> int:
        if self._fd is None:
            raise BrokenPipeError
        try:
            return os.write(self._fd, rest)
        except BlockingIOError:
            with contextlib.suppress(anyio.ClosedResourceError):
                await anyio.wait_writable(self._fd)
            return 0


class PipeReader:
    """For one receiver at a time; owns the descriptor."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._unread_bytes: int | None = None  # None until `finish`

    async def receive(self, max_bytes: int) -> bytes:
        """The next piece; empty at the end or when closed. Cancelling loses nothing."""
        await checkpoint()  # a fast writer must not starve other tasks
        while self._fd is not None and self._unread_bytes != 0:
            most = max_bytes if self._unread_bytes is None else min(max_bytes, self._unread_bytes)
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
        """The end comes after what is in the pipe now, even if another process holds the other end open."""
        if self._fd is not None and self._unread_bytes is None:
            self._unread_bytes = _bytes_in_pipe(self._fd)
            anyio.notify_closing(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            anyio.notify_closing(fd)
            os.close(fd)


def _bytes_in_pipe(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


class LineCutter:
    """A line above `max_bytes` (at least 4) comes in pieces."""

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, piece: bytes) -> list[str]:
        """Completed lines, without LF or CRLF; undecodable bytes become U+FFFD."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        lines: list[str] = []
        for line in whole:
            last = self._cut(line.removesuffix(b"\r"), lines)
            lines.append(_text(last))
        self._rest = self._cut(self._rest, lines)
        return lines

    def finish(self) -> list[str]:
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []

    def _cut(self, line: bytes, pieces: list[str]) -> bytes:
        while len(line) > self._max_bytes:
            end = _character_start(line, self._max_bytes)
            pieces.append(_text(line[:end]))
            line = line[end:]
        return line


class LineBudget:
    """How many lines of a child may be logged: `lines_per_s` of `_LINE_BYTES`, ten seconds of them at once; 0: any number."""

    def __init__(self, lines_per_s: int) -> None:
        self._per_s = (float(lines_per_s), float(lines_per_s * _LINE_BYTES))
        self._left = [each * _AT_ONCE_S for each in self._per_s]
        self._at_s = -inf
        self.left_out = (0, 0)
        """Lines and bytes, since they were last told."""
        self._told_s = -inf

    def admits(self, size: int, now_s: float) -> bool:
        if not self._per_s[0]:
            return True
        passed_s = min(now_s - self._at_s, _AT_ONCE_S)
        self._at_s = now_s
        self._left = [
            min(left + rate * passed_s, rate * _AT_ONCE_S)
            for left, rate in zip(self._left, self._per_s, strict=True)
        ]
        if self._left[0] < 1 or self._left[1] <= 0:
            self.left_out = (self.left_out[0] + 1, self.left_out[1] + size)
            return False
        self._left = [self._left[0] - 1, self._left[1] - size]
        return True

    def to_tell(self, now_s: float) -> tuple[int, int] | None:
        """What was left out, at once and then once a minute; None: nothing, or not yet."""
        if not self.left_out[0] or now_s - self._told_s < _TELL_EVERY_S:
            return None
        told, self.left_out, self._told_s = self.left_out, (0, 0), now_s
        return told


class StderrPassThrough:
    def __init__(self, pipe: PipeReader, log: Log, level: LogLevel, budget: LineBudget, clock: Clock) -> None:
        self._pipe = pipe
        self._log = log
        self._level: LogLevel = level
        self._budget = budget
        self._clock = clock
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    async def run(self) -> None:
        """If cancelled, the rest is dropped."""
        lines = LineCutter()
        try:
            while piece := await self._pipe.receive(_READ_BYTES):
                await self._forward(lines.feed(piece))
            await self._forward(lines.finish())
        finally:
            self._tell(self._budget.to_tell(inf))
            self._pipe.close()

    async def _forward(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, start=1):
            self._tail.append(line)
            now_s = self._clock.monotonic()
            if self._budget.admits(len(line), now_s):
                at_level(self._log, self._level)("child_stderr", line=line)
            else:
                self._tell(self._budget.to_tell(now_s))
            if number % _LINES_PER_TURN == 0:
                await checkpoint()

    def _tell(self, left_out: tuple[int, int] | None) -> None:
        if left_out is not None:
            self._log.warning(
                "child_stderr_left_out",
                lines=left_out[0],
                bytes=left_out[1],
                advice="the child writes more than childStderrLinesPerSecond: find out what it repeats, or raise that number",
            )


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _character_start(line: bytes, end: int) -> int:
    for start in range(end, end - 4, -1):
        if line[start] & 0xC0 != 0x80:
            return start
    return end
