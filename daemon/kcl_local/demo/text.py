"""Every word-count process imports it: keep it light."""

from __future__ import annotations

import os
import re
import stat
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from anyio import wait_readable

LINE_BYTES_MAX: Final = 512 * 1024  # longer lines become several records; Kinesis takes 1 MiB
KEY_LENGTH_MAX: Final = 256  # characters, as in PutRecords
BLOCK_LINES: Final = 100
FILES_AT_A_TIME: Final = 64

_WORD: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_NOT_TEXT_OF_THE_LIBRARY: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
)
READ_BYTES: Final = 64 * 1024
STDIN: Final = 0


@dataclass(frozen=True, slots=True)
class Line:
    key: str
    data: bytes


def words(data: bytes) -> list[str]:
    return _WORD.findall(data.decode("utf-8", "replace").lower())


def partition_key(name: str) -> str:
    """At most 256 characters, never empty, always valid UTF-8."""
    clean = os.fsencode(name).decode("utf-8", "replace")
    return clean[-KEY_LENGTH_MAX:] or "-"


def licence_file() -> Path | None:
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
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(_sources(library), key=lambda path: (len(path.parts) > 1, path.as_posix()))
    files = [(partition_key(path.as_posix()), library / path) for path in sources]
    licence = licence_file()
    return ([] if licence is None else [(licence.name, licence)]) + files


def _sources(library: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _NOT_TEXT_OF_THE_LIBRARY]
        yield from (Path(folder, name).relative_to(library) for name in names if name.endswith(".py"))


def read_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.readline(LINE_BYTES_MAX):
            yield piece.rstrip(b"\r\n")


def file_by_file(files: Iterable[tuple[str, Path]]) -> Iterator[Iterator[Line]]:
    for key, path in files:
        yield _with_key(key, path)


def _with_key(key: str, path: Path) -> Iterator[Line]:
    for data in read_lines(path):
        yield Line(key, data)


def interleave(sources: Iterator[Iterator[Line]], at_a_time: int = FILES_AT_A_TIME) -> Iterator[Line]:
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
    """Every 100 lines share a key, so that one text uses more than one shard."""
    suffix_room = 12
    base = partition_key(name)[-(KEY_LENGTH_MAX - suffix_room) :]
    for number, data in enumerate(lines):
        yield Line(f"{base}#{number // BLOCK_LINES}", data)


class DemoError(Exception): ...


def first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class FileFeed:
    def __init__(self, description: str, lines: Iterator[Line]) -> None:
        self.description = description
        self._lines = lines

    async def take(self, most: int) -> Sequence[Line]:
        """From one to `most` lines; waits for the first. Empty means the end. Cancelling loses no line."""
        try:
            return list(islice(self._lines, most))
        except OSError as error:
            raise DemoError(f"cannot read the text: {error}") from error


class PipeFeed:
    def __init__(self, descriptor: int, name: str) -> None:
        self.description = name
        self._descriptor = descriptor
        self._whole: deque[bytes] = deque()
        self._rest = b""
        self._at_end = False
        self._lines = in_blocks(name, self._next_whole())

    async def take(self, most: int) -> Sequence[Line]:
        while not self._whole and not self._at_end:
            try:
                # A file never blocks: epoll refuses to wait for one, kqueue would wait at its end for more.
                if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                    with suppress(PermissionError):
                        await wait_readable(self._descriptor)
                self._received(os.read(self._descriptor, READ_BYTES))
            except OSError as error:
                raise DemoError(f"cannot read {self.description}: {error}") from error
        return list(islice(self._lines, min(most, len(self._whole))))

    def _received(self, piece: bytes) -> None:
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        self._whole.extend(line.removesuffix(b"\r") for line in lines)
        if self._rest and (not piece or len(self._rest) >= LINE_BYTES_MAX):
            self._whole.append(self._rest)
            self._rest = b""
        self._at_end = not piece

    def _next_whole(self) -> Iterator[bytes]:
        while self._whole:  # `take` never reads past it, so this ends only with the text
            yield self._whole.popleft()


Feed: TypeAlias = FileFeed | PipeFeed


def library_feed() -> FileFeed:
    files = library_files()
    if not files:
        raise DemoError("this Python has no standard library sources: use --input FILE")
    return FileFeed("Python's standard library", interleave(file_by_file(files)))


def input_feed(name: str, *, stdin: int = STDIN) -> Feed:
    if name == "-":
        return PipeFeed(stdin, "standard input")
    path = Path(name)
    return FileFeed(name, in_blocks(path.name, read_lines(path)))
