"""What a child writes to stderr, as log events: one a line, bounded in memory, in turns with everybody else.

Owns the cutting into lines and the last lines for error messages. Knows nothing of processes.
"""

from __future__ import annotations

from collections import deque

from anyio.lowlevel import checkpoint

from kcl_daemon.children.pipes import PipeReader
from kcl_daemon.config.log_settings import LogLevel
from kcl_daemon.log_level import at_level
from kcl_daemon.ports import Log

LINE_BYTES_MOST = 16 * 1024
TAIL_LINES = 20
_READ_BYTES = 16 * 1024
# A log event takes some 10 to 50 microseconds: other tasks wait no more than a few milliseconds for a flood.
_LINES_PER_TURN = 64


class LineCutter:
    """Cuts bytes into lines of text; a line that is too long comes in pieces.

    Args:
        most_bytes: longest piece, at least 4; also all the memory this takes between two calls.
    """

    def __init__(self, most_bytes: int = LINE_BYTES_MOST) -> None:
        self._most_bytes = most_bytes
        self._rest = b""

    def feed(self, piece: bytes) -> list[str]:
        """The lines that this piece completes, without their ends (LF or CRLF); undecodable bytes become U+FFFD."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        lines: list[str] = []
        for line in whole:
            last = self._cut(line.removesuffix(b"\r"), lines)
            lines.append(_text(last))
        self._rest = self._cut(self._rest, lines)
        return lines

    def finish(self) -> list[str]:
        """The last line where it has no end."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []

    def _cut(self, line: bytes, pieces: list[str]) -> bytes:
        """Move what is too long to `pieces`; the remainder."""
        while len(line) > self._most_bytes:
            end = _character_start(line, self._most_bytes)
            pieces.append(_text(line[:end]))
            line = line[end:]
        return line


class StderrPassThrough:
    """Logs a child's stderr as `child_stderr` events and remembers the last lines.

    Args:
        pipe: its stderr.
        log: the shard's, with the process id bound to it.
        level: how loud.
    """

    def __init__(self, pipe: PipeReader, log: Log, level: LogLevel = "info") -> None:
        self._pipe = pipe
        self._log = log
        self._level: LogLevel = level
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._tail)

    async def run(self) -> None:
        """Pass everything on until the pipe ends, then close it; cancelled, the rest is dropped."""
        lines = LineCutter()
        try:
            while piece := await self._pipe.receive(_READ_BYTES):
                await self._pass_on(lines.feed(piece))
            await self._pass_on(lines.finish())
        finally:
            self._pipe.close()

    async def _pass_on(self, lines: list[str]) -> None:
        for number, line in enumerate(lines, start=1):
            self._tail.append(line)
            at_level(self._log, self._level)("child_stderr", line=line)
            if number % _LINES_PER_TURN == 0:
                await checkpoint()


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _character_start(line: bytes, end: int) -> int:
    """The nearest place at or before `end` where no UTF-8 character is cut; `end` itself where it is not UTF-8."""
    for start in range(end, end - 4, -1):
        if line[start] & 0xC0 != 0x80:
            return start
    return end
