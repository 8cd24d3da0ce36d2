"""One JSON line per record, on disk before processing continues.

Several daemons may share the file; it is only appended to, but for `kcl-daemon letters delete`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from anyio import CapacityLimiter, to_thread

from kcl_daemon.config.dead_letters import Destination, Overflow, WithData
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import ConfigurationError, DeadLetterNotStored, LettersUnusable
from kcl_daemon.ports import DeadLetters
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadLetter, BadPlace, LetterSource, StoredLetter, parse_letter
from kcl_daemon.system import append_lines

_THREADS: Final = 4
_OWNER_ONLY: Final = 0o600
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_LINE_BYTES_MOST: Final = 64 * 1024**2
_PIECE_BYTES: Final = 1024**2


class FileLetters(Destination):
    scheme = "file"

    @classmethod
    def read(cls, text: str) -> FileLetters:
        if text.startswith("//") and not text.startswith("///"):
            raise ValueError("a file on another host; use file:PATH or file:///PATH")
        path = text[2:] if text.startswith("///") else text
        if "\0" in path or path.endswith("/"):
            raise ValueError("not the path of a file")
        return cls(path)

    @property
    def path(self) -> Path:
        return Path(self.address)

    @asynccontextmanager
    async def writer(self, endpoints: Endpoints, overflow: Overflow | None) -> AsyncGenerator[DeadLetters]:
        del endpoints, overflow
        file = DeadLetterFile(self.path)
        await file.prepare()
        yield file

    @asynccontextmanager
    async def reader(self, endpoints: Endpoints, with_data: WithData) -> AsyncGenerator[LetterSource]:
        del endpoints
        yield StoredLines(self.path, with_data)


class DeadLetterFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        # A disk that hangs must block no other threads.
        self._threads = CapacityLimiter(_THREADS)

    async def prepare(self) -> None:
        try:
            await to_thread.run_sync(self._create)
        except OSError as error:
            raise ConfigurationError(
                f"deadLetterDestination: {self._path} cannot be written: {error.strerror or error}; use "
                "a file in an existing folder that the daemon can write to"
            ) from error

    async def store(self, dead_letter: DeadLetter) -> None:
        await self.store_all((dead_letter,))

    async def store_all(self, dead_letters: Sequence[DeadLetter]) -> None:
        lines = b"".join(b"%b\n" % each.line() for each in dead_letters)
        try:
            # After a cancel the lines may still be written.
            await to_thread.run_sync(self._append, lines, abandon_on_cancel=True, limiter=self._threads)
        except OSError as error:
            raise DeadLetterNotStored(f"{self._path}: {error.strerror or error}") from error

    def _create(self) -> None:
        os.close(os.open(self._path, _FLAGS, _OWNER_ONLY))
        _sync_folder(self._path.parent)

    def _append(self, line: bytes) -> None:
        if not self._path.exists():
            self._create()  # an operator moved it away
        with self._locked() as file:
            append_lines(file, line)

    @contextmanager
    def _locked(self) -> Generator[int, None, None]:
        while True:
            file = os.open(self._path, _FLAGS, _OWNER_ONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file).st_nlink:  # else `letters delete` has replaced it while we waited
                    yield file
                    return
            finally:
                os.close(file)


class StoredLines(LetterSource):
    def __init__(self, path: Path, with_data: WithData) -> None:
        self._path = path.resolve()  # a link stays one when the file is rewritten
        self._with_data = with_data

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        try:
            with self._path.open("rb") as file:
                for number, start, line in _lines(file):
                    yield _parsed(line, f"line {number}", (start, len(line)))
        except OSError as error:
            raise LettersUnusable(f"{self._path} cannot be read: {error.strerror}") from error

    async def read(self, head: StoredLetter) -> DeadLetter:
        try:
            with self._path.open("rb") as file:
                whole = _letter_at(file, head)
        except OSError as error:
            raise BadLetter(f"{self._path} cannot be read: {error.strerror}") from error
        return await self._with_data(whole)

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        """Under the lock of those who append."""
        if heads:
            await to_thread.run_sync(self._rewrite, heads)

    def _rewrite(self, heads: Sequence[StoredLetter]) -> None:
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with self._path.open("rb") as old:
                fcntl.flock(old, fcntl.LOCK_EX)
                for head in heads:
                    _letter_at(old, head)
                with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as kept:
                    _copy_but(old, kept, sorted(map(_range, heads)))
                    kept.flush()
                    shutil.copymode(self._path, new)
                    with suppress(PermissionError):
                        os.chown(new, os.fstat(old.fileno()).st_uid, os.fstat(old.fileno()).st_gid)
                    os.fsync(kept.fileno())
                new.replace(self._path)
                _sync_folder(self._path.parent)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise DeadLetterNotStored(
                f"{self._path} cannot be rewritten: {error.strerror or error}"
            ) from error
        except BadLetter as bad:
            raise LettersUnusable(f"{self._path}: {bad}") from bad


def _letter_at(file: BinaryIO, head: StoredLetter) -> StoredLetter:
    start, length = _range(head)
    file.seek(start)
    try:
        whole = parse_letter(file.read(length), head.place)
    except BadLetter:
        whole = None
    if whole is None or whole.name != head.name:
        raise BadLetter(f"{head.place} was changed meanwhile; start again")
    return whole


def _range(head: StoredLetter) -> tuple[int, int]:
    assert isinstance(head.handle, tuple), "made by `scan`"
    start, length = head.handle
    return int(start), int(length)


def _parsed(line: bytes, place: str, handle: tuple[int, int]) -> StoredLetter | BadPlace:
    if len(line) > _LINE_BYTES_MOST:
        return BadPlace(place, f"longer than {_LINE_BYTES_MOST} bytes: not a dead letter")
    try:
        return parse_letter(line, place).head(handle)
    except BadLetter as bad:
        return BadPlace(place, str(bad))


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Number, start and text. A blank line is left out, one that is too long is cut."""
    number = start = 0
    while line := file.readline(_LINE_BYTES_MOST + 2):
        number += 1
        end = start + len(line)
        rest = line
        while not rest.endswith(b"\n") and (rest := file.readline(_PIECE_BYTES)):
            end += len(rest)
        text = line.removesuffix(b"\n")
        if text.strip():
            yield number, start, text
        start = end


def _copy_but(old: BinaryIO, kept: BinaryIO, gone: list[tuple[int, int]]) -> None:
    at = 0
    for start, length in [*gone, (os.fstat(old.fileno()).st_size, 0)]:
        old.seek(at)
        while at < start:
            if not (piece := old.read(min(_PIECE_BYTES, start - at))):
                break
            kept.write(piece)
            at += len(piece)
        at = start + length + 1


def _sync_folder(folder: Path) -> None:
    """Makes the name of a new file durable."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
