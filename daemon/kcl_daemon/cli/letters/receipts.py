"""What became of replayed letters: a line of JSON for each, on disk before the letter counts as done."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.errors import DeadLetterNotStored
from kcl_daemon.records.letters import Outcome, Receipt, StoredLetter, receipts_of


class Receipts:
    """`latest` has the last receipt of each letter, by name. Without a file they are kept in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: int | None = None
        self.latest: dict[str, Receipt] = {}
        self.now: dict[str, Receipt] = {}

    @classmethod
    @contextmanager
    def opened(cls, path: Path | None) -> Generator[Self, None, None]:
        """NotChanged if another replay has the file, or if it cannot be used."""
        receipts = cls(path)
        try:
            receipts._open()
            yield receipts
        finally:
            if receipts._file is not None:
                os.close(receipts._file)  # also unlocks it

    def _open(self) -> None:
        if self.path is None:
            return
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.latest = read_receipts(self.path)
        except BlockingIOError:
            raise NotChanged(
                f"another replay is using {self.path}; wait for its end, or give another file with --receipts"
            ) from None
        except OSError as error:
            raise NotChanged(
                f"the receipts {self.path} cannot be written: {error.strerror}; give another file with --receipts"
            ) from error

    def is_done(self, letter: StoredLetter) -> bool:
        receipt = self.latest.get(letter.name)
        return receipt is not None and receipt.is_done(letter)

    def write(self, letters: Iterable[StoredLetter], outcome: Outcome, reason: str, at_ms: int) -> None:
        """Returns after fsync; DeadLetterNotStored."""
        new = [Receipt(each.name, each.letter.set_aside_ms, outcome, reason, at_ms) for each in letters]
        if new and self._file is not None:
            try:
                _append(self._file, b"".join(each.line() + b"\n" for each in new))
            except OSError as error:
                raise DeadLetterNotStored(f"receipts {self.path}: {error.strerror or error}") from error
        for receipt in new:
            self.latest[receipt.letter] = self.now[receipt.letter] = receipt


def read_receipts(path: Path) -> dict[str, Receipt]:
    with path.open("rb") as file:
        return {each.letter: each for each in receipts_of(file)}


def _append(file: int, data: bytes) -> None:
    size_bytes = os.fstat(file).st_size
    if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
        data = b"\n" + data  # after a half line from a power loss
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)
