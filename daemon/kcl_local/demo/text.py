"""The text of the demo: which files, in which order, cut into lines with a key each; and what counts as a word.

Owns the input as values. Knows nothing of streams, processes or time; imported by every word-count process, so it
imports little.

What can stop the demo before it has a verdict.

Where the producer takes its lines from: files, or a pipe that may have nothing to give for a while.

Owns reading without blocking the event loop. Knows nothing of streams; the choice and order of lines is `text`'s.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from anyio import wait_readable

LINE_BYTES_MAX: Final = 512 * 1024  # a longer line becomes several records; Kinesis takes 1 MiB with the key
KEY_LENGTH_MAX: Final = 256  # of a partition key, in characters (Kinesis: PutRecords)
BLOCK_LINES: Final = 100
FILES_AT_A_TIME: Final = 64

_WORD: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_NOT_TEXT_OF_THE_LIBRARY: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
)


@dataclass(frozen=True, slots=True)
class Line:
    """One record to be: a partition key and a line without its end, as bytes (whatever their encoding)."""

    key: str
    data: bytes


def words(data: bytes) -> list[str]:
    """The words of a line in lower case: letters of any script, with one inner apostrophe; bad UTF-8 separates."""
    return _WORD.findall(data.decode("utf-8", "replace").lower())


def partition_key(name: str) -> str:
    """A file's name as a partition key: the last 256 characters, never empty, valid UTF-8 whatever the name was."""
    clean = os.fsencode(name).decode("utf-8", "replace")
    return clean[-KEY_LENGTH_MAX:] or "-"


def licence_file() -> Path | None:
    """The running Python's licence, where its distributor put it; None where it was left out."""
    library = Path(os.__file__).resolve().parent
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = (library, Path(sysconfig.get_path("stdlib")), library.parent, Path(sys.base_prefix))
    candidates = [folder / name for folder in folders for name in ("LICENSE.txt", "LICENSE")]
    candidates += [
        Path("/usr/share/doc") / version / "copyright",
        Path("/usr/share/licenses") / version / "LICENSE",
    ]
    return next((path for path in candidates if path.is_file()), None)


def library_files() -> list[tuple[str, Path]]:
    """Licence and source files of the running Python's standard library, with their keys; without its own tests.

    The licence first, then the modules at the top by name, then the packages.
    """
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(_sources(library), key=lambda path: (len(path.parts) > 1, path.as_posix()))
    files = [(partition_key(path.as_posix()), library / path) for path in sources]
    licence = licence_file()
    return ([] if licence is None else [(licence.name, licence)]) + files


def _sources(library: Path) -> Iterator[Path]:
    """The source files below a directory, relative to it; what is left out is not even looked into."""
    for folder, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _NOT_TEXT_OF_THE_LIBRARY]
        yield from (Path(folder, name).relative_to(library) for name in names if name.endswith(".py"))


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file without their ends, read as they are asked for; a very long one in pieces."""
    with path.open("rb") as file:
        while piece := file.readline(LINE_BYTES_MAX):
            yield piece.rstrip(b"\r\n")


def file_by_file(files: Iterable[tuple[str, Path]]) -> Iterator[Iterator[Line]]:
    """The lines of each file, all under the file's key. A file that cannot be read ends the text with its OSError."""
    for key, path in files:
        yield _with_key(key, path)


def _with_key(key: str, path: Path) -> Iterator[Line]:
    for data in read_lines(path):
        yield Line(key, data)


def interleave(sources: Iterator[Iterator[Line]], at_a_time: int = FILES_AT_A_TIME) -> Iterator[Line]:
    """Lines of several sources in turn, so that many keys are in use at once; each source's lines stay in order."""
    open_sources = deque(islice(sources, at_a_time))
    while open_sources:
        source = open_sources.popleft()
        line = next(source, None)
        if line is not None:
            yield line
            open_sources.append(source)
        elif (following := next(sources, None)) is not None:
            open_sources.append(following)


def in_blocks(name: str, lines: Iterable[bytes]) -> Iterator[Line]:
    """One long text: every 100 lines share a key (`name#0`, `name#1` ...), else all would go to one shard."""
    suffix_room = 12
    base = partition_key(name)[-(KEY_LENGTH_MAX - suffix_room) :]
    for number, data in enumerate(lines):
        yield Line(f"{base}#{number // BLOCK_LINES}", data)


class DemoError(Exception):
    """Raised when the demo cannot go on; the message says what failed and where to look."""


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
