"""Dead letters in a file: one JSON line per record, on disk before processing continues.

Several daemons may share the file; it is only appended to, but for `kcl-daemon letters delete`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from anyio import CapacityLimiter, to_thread

from kcl_daemon.errors import ConfigurationError, DeadLetterNotStored
from kcl_daemon.records.dead_letter import DeadLetter

_THREADS: Final = 4
_OWNER_ONLY: Final = 0o600
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class DeadLetterFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        # A disk that hangs must block no other threads.
        self._threads = CapacityLimiter(_THREADS)

    async def prepare(self) -> None:
        """ConfigurationError if the file cannot be written."""
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
        """Returns after one fsync."""
        lines = b"".join(b"%b\n" % each.line() for each in dead_letters)
        try:
            # After a cancel the lines may still be written.
            await to_thread.run_sync(self._append, lines, abandon_on_cancel=True, limiter=self._threads)
        except OSError as error:
            raise DeadLetterNotStored(f"{self._path}: {error.strerror or error}") from error

    def _create(self) -> None:
        os.close(os.open(self._path, _FLAGS, _OWNER_ONLY))
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # makes the name of a new file durable
        finally:
            os.close(folder)

    def _append(self, line: bytes) -> None:
        if not self._path.exists():
            self._create()  # an operator moved it away
        with self._locked() as file:
            size_bytes = os.fstat(file).st_size
            if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
                line = b"\n" + line  # after a half line from a power loss
            try:
                _write(file, line)
                os.fsync(file)
            except OSError:
                os.ftruncate(file, size_bytes)
                raise

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
                os.close(file)  # also unlocks it


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
