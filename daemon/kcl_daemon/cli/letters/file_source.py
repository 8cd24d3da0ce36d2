"""Letters in a file, to which daemons may append meanwhile."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import anyio

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.errors import DeadLetterNotStored
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadLetter, BadPlace, StoredLetter, parse_letter

LINE_BYTES_MOST: Final = 64 * 1024**2
_PIECE_BYTES: Final = 1024**2


class FileLetters:
    """`with_data` adds data that are at another place."""

    def __init__(self, path: Path, with_data: Callable[[StoredLetter], Awaitable[DeadLetter]]) -> None:
        self._path = path.resolve()  # a link stays one when the file is rewritten
        self._with_data = with_data

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        for found in self._found():
            yield found

    def _found(self) -> Iterator[StoredLetter | BadPlace]:
        try:
            with self._path.open("rb") as file:
                for number, start, line in _lines(file):
                    yield _parsed(line, f"line {number}", (start, len(line)))
        except OSError as error:
            raise NotChanged(f"{self._path} cannot be read: {error.strerror}") from error

    async def read(self, head: StoredLetter) -> DeadLetter:
        try:
            with self._path.open("rb") as file:
                whole = _letter_at(file, head)
        except OSError as error:
            raise BadLetter(f"{self._path} cannot be read: {error.strerror}") from error
        return await self._with_data(whole)

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        """Rewrites the file under the lock of those who append to it."""
        if heads:
            await anyio.to_thread.run_sync(self._rewrite, heads)

    async def hold(self) -> None:
        await anyio.sleep_forever()

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
            raise NotChanged(f"{self._path}: {bad}") from bad


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
    if len(line) > LINE_BYTES_MOST:
        return BadPlace(place, f"longer than {LINE_BYTES_MOST} bytes: not a dead letter")
    try:
        return parse_letter(line, place).head(handle)
    except BadLetter as bad:
        return BadPlace(place, str(bad))


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Number, start and text of each line that is not blank; a line that is too long is cut."""
    number = start = 0
    while line := file.readline(LINE_BYTES_MOST + 2):
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
        at = start + length + 1  # with the line end


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
