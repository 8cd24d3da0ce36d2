"""Where the producer takes its lines from: files, or a pipe that may have nothing to give for a while.

Owns reading without blocking the event loop. Knows nothing of streams; the choice and order of lines is `text`'s.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from anyio import wait_readable

from kcl_local.demo.errors import DemoError
from kcl_local.demo.text import (
    LINE_BYTES_MAX,
    Line,
    file_by_file,
    in_blocks,
    interleave,
    library_files,
    read_lines,
)

READ_BYTES: Final = 64 * 1024
STDIN: Final = 0


class Feed(Protocol):
    """A text, taken line by line."""

    @property
    def description(self) -> str:
        """What text it is, for the screen."""
        ...

    async def take(self, most: int) -> Sequence[Line]:
        """The next lines, at least one and no more than `most`; waits for the first. None at all: the end.

        May be cancelled while it waits, without losing a line.
        """
        ...


class FileFeed:
    """Lines that are always at hand, read from files on the local disk."""

    def __init__(self, description: str, lines: Iterator[Line]) -> None:
        self._description = description
        self._lines = lines

    @property
    def description(self) -> str:
        """What text it is, for the screen."""
        return self._description

    async def take(self, most: int) -> Sequence[Line]:
        """The next lines; never waits. DemoError where a file cannot be read."""
        try:
            return list(islice(self._lines, most))
        except OSError as error:
            raise DemoError(f"cannot read the text: {error}") from error


class PipeFeed:
    """Lines from an open descriptor: a pipe, a terminal or a redirected file."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._whole: deque[bytes] = deque()
        self._rest = b""
        self._at_end = False
        self._lines = in_blocks(name, self._next_whole())

    @property
    def description(self) -> str:
        """What text it is, for the screen."""
        return self._name

    async def take(self, most: int) -> Sequence[Line]:
        """The next lines as they arrive. DemoError where the descriptor cannot be read."""
        while not self._whole and not self._at_end:
            await self._wait()
            self._received(self._read())
        return list(islice(self._lines, min(most, len(self._whole))))

    async def _wait(self) -> None:
        try:
            await wait_readable(self._descriptor)
        except PermissionError:
            return  # epoll refuses ordinary files; reading them never waits

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, READ_BYTES)
        except OSError as error:
            raise DemoError(f"cannot read {self._name}: {error}") from error

    def _received(self, piece: bytes) -> None:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        self._whole.extend(line.removesuffix(b"\r") for line in lines)
        if self._rest and (not piece or len(self._rest) >= LINE_BYTES_MAX):
            self._whole.append(self._rest)
            self._rest = b""
        self._at_end = not piece

    def _next_whole(self) -> Iterator[bytes]:
        while self._whole:  # `take` never asks beyond it, so that this does not end before the text does
            yield self._whole.popleft()


def library_feed() -> FileFeed:
    """The standard library's licence and source files, many at a time, each under its name as key."""
    files = library_files()
    if not files:
        raise DemoError("this Python has no standard library sources: use --input FILE")
    return FileFeed("Python's standard library", interleave(file_by_file(files)))


def input_feed(name: str, *, stdin: int = STDIN) -> Feed:
    """The text that `--input` names: a file, or `-` for the descriptor `stdin`."""
    if name == "-":
        return PipeFeed(stdin, "standard input")
    path = Path(name)
    return FileFeed(name, in_blocks(path.name, read_lines(path)))
