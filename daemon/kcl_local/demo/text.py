"""The text of the demo: which files, in which order, cut into lines with a key each; and what counts as a word.

Owns the input as values. Knows nothing of streams, processes or time; imported by every word-count process, so it
imports little.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

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
