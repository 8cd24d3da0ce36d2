"""Dead letters in a file: JSON lines, one for each record, on disk before anybody goes on.

An adapter of the port `DeadLetters`. Several daemons may share the file; nothing is ever read from it or removed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from anyio import CapacityLimiter, to_thread

from kcl_daemon.errors import ConfigurationError, DeadLetterNotStored
from kcl_daemon.records.dead_letter import DeadLetter

_THREADS: Final = 4
_OWNER_ONLY: Final = 0o600  # records may be anything
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class DeadLetterFile:
    """Appends to one file.

    Args:
        path: created for its owner only where it is missing; its folder must be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Of its own, so that a disk that hangs takes no threads from others.
        self._threads = CapacityLimiter(_THREADS)

    async def prepare(self) -> None:
        """Make sure that the file is there and can be written.

        Raises:
            ConfigurationError: it cannot.
        """
        try:
            await to_thread.run_sync(self._create)
        except OSError as error:
            raise ConfigurationError(
                f"deadLetterDestination: {self._path} cannot be written: {error.strerror or error}; use "
                "a file in an existing folder that the daemon can write to"
            ) from error

    async def store(self, dead_letter: DeadLetter) -> None:
        """As the port says: written and synchronised with the disk."""
        line = dead_letter.line() + b"\n"
        try:
            # A cancelled caller goes at once, and the line may be written all the same.
            await to_thread.run_sync(self._append, line, abandon_on_cancel=True, limiter=self._threads)
        except OSError as error:
            raise DeadLetterNotStored(f"{self._path}: {error.strerror or error}") from error

    def _create(self) -> None:
        os.close(os.open(self._path, _FLAGS, _OWNER_ONLY))
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the name of a new file is on disk only then
        finally:
            os.close(folder)

    def _append(self, line: bytes) -> None:
        if not self._path.exists():
            self._create()  # somebody has moved it away
        with self._locked() as file:
            size_bytes = os.fstat(file).st_size
            if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
                line = b"\n" + line  # behind what a machine left that lost power in the middle of a line
            try:
                _write(file, line)
                os.fsync(file)
            except OSError:
                os.ftruncate(file, size_bytes)  # no half lines
                raise

    @contextmanager
    def _locked(self) -> Generator[int, None, None]:
        """The open file, while nobody else writes to it."""
        file = os.open(self._path, _FLAGS, _OWNER_ONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)  # and with it the lock


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
