"""Dead letters in a folder, a file each."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from anyio import to_thread

from kcl_daemon.config.dead_letters import Destination, Overflow, WithData
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import ConfigurationError, DeadLetterNotStored, LettersUnusable
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadLetter, BadPlace, LetterSource, StoredLetter, parse_letter


class FolderLetters(Destination):
    """`folder:PATH` in a property."""

    scheme = "folder"

    @classmethod
    def read(cls, text: str) -> FolderLetters:
        if not text.startswith("/"):
            raise ValueError("not the absolute path of a folder")
        return cls(text)

    @property
    def path(self) -> Path:
        return Path(self.address)

    @asynccontextmanager
    async def writer(self, endpoints: Endpoints, overflow: Overflow | None) -> AsyncGenerator[_Writer]:
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"deadLetterDestination: {self.path}: {error.strerror}") from error
        yield _Writer(self.path)

    @asynccontextmanager
    async def reader(self, endpoints: Endpoints, with_data: WithData) -> AsyncGenerator[LetterSource]:
        yield _Reader(self.path, with_data)


class _Writer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def store(self, dead_letter: DeadLetter) -> None:
        """A letter that is stored again is the same file."""
        try:
            await to_thread.run_sync(self._store, dead_letter)
        except OSError as error:
            raise DeadLetterNotStored(f"{self._folder}: {error.strerror}") from error

    def _store(self, dead_letter: DeadLetter) -> None:
        names = (dead_letter.application_name, dead_letter.stream_name, dead_letter.key)
        name = sha256("/".join(names).encode()).hexdigest()
        with (self._folder / f".{name}").open("wb") as file:
            file.write(dead_letter.line())
            file.flush()
            os.fsync(file.fileno())
        (self._folder / f".{name}").replace(self._folder / f"{name}.json")
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Reader(LetterSource):
    def __init__(self, folder: Path, with_data: WithData) -> None:
        self._folder = folder
        self._with_data = with_data

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        if not self._folder.is_dir():
            raise LettersUnusable(f"{self._folder} is no folder")
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield self._letter(path).head(path)
            except BadLetter as bad:
                yield BadPlace(str(path), str(bad))

    def _letter(self, path: Path) -> StoredLetter:
        try:
            return parse_letter(path.read_bytes(), str(path))
        except OSError as error:
            raise BadLetter(f"{path}: {error.strerror}") from error

    async def read(self, head: StoredLetter) -> DeadLetter:
        return await self._with_data(self._letter(Path(head.place)))

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        await to_thread.run_sync(self._delete, [Path(head.place) for head in heads])

    def _delete(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
