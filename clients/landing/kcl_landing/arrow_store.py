"""A landing log on a file system of pyarrow, such as HDFS."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from kcl_landing.control import Refused, pause
from kcl_landing.store import NoObject, StoredObject, StorePlace, StoreTrouble

_YOUNG: Final = ".young"
_ATTEMPTS: Final = 5
_REPLACED_WITHIN_S: Final = 0.05


class ArrowStore:
    """A file is written beside and moved to its name; `probe` finds out whether a move never replaces.

    While `replace` works, the object is not there for a moment.
    """

    def __init__(self, file_system: Any, root: str) -> None:
        self._fs = file_system
        self._root = root.rstrip("/")

    @classmethod
    def at(cls, place: StorePlace) -> ArrowStore:
        try:
            file_system, root = fs.FileSystem.from_uri(place.uri)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise Refused(
                f"landing = {place.uri} cannot be opened: {error}. Use a folder, s3:// or hdfs:// "
                "(which needs Hadoop's libhdfs and CLASSPATH)"
            ) from error
        return cls(file_system, root)

    def create(self, path: str, content: bytes | memoryview) -> bool:
        with self._trouble(path), self._written(content) as young:
            target = self._prepared(path)
            try:
                # Whether the name is free is not asked first: `probe` must notice a file system that replaces.
                self._fs.move(young, target)
            except (OSError, pa.ArrowException):
                if self._is_file(young) and self._is_file(target):
                    return False
                if not self._is_file(target):
                    raise
            return True

    def replace(self, path: str, content: bytes) -> None:
        with self._trouble(path), self._written(content) as young:
            target = self._prepared(path)
            for _attempt in range(_ATTEMPTS):
                try:
                    self._fs.move(young, target)
                except (OSError, pa.ArrowException):
                    if not self._is_file(young):
                        raise
                    with suppress(FileNotFoundError):
                        self._fs.delete_file(target)
                else:
                    return
            raise StoreTrouble("slow down", f"{target}: other writers replaced it {_ATTEMPTS} times")

    def read(self, path: str) -> bytes:
        """Waits a little for what may be about to be replaced."""
        with self._trouble(path):
            for _attempt in range(_ATTEMPTS):
                with suppress(FileNotFoundError):
                    if self._is_file(self._at(path)):
                        with self._fs.open_input_file(self._at(path)) as file:
                            return bytes(file.readall())
                pause(_REPLACED_WITHIN_S)
            raise NoObject(self._at(path))

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        selector = fs.FileSelector(self._at(folder), allow_not_found=True, recursive=True)
        with self._trouble(folder), suppress(NotADirectoryError):
            below = len(self._root) + 1
            for each in sorted(self._fs.get_file_info(selector), key=lambda info: info.path):
                path = each.path[below:]
                if each.type == fs.FileType.File and path > after and not path.startswith(_YOUNG):
                    yield StoredObject(path, each.size)

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            with self._trouble(path), suppress(FileNotFoundError):
                self._fs.delete_file(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _prepared(self, path: str) -> str:
        target = self._at(path)
        self._fs.create_dir(target.rpartition("/")[0], recursive=True)
        return target

    def _is_file(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == fs.FileType.File)

    @contextmanager
    def _written(self, content: bytes | memoryview) -> Generator[str]:
        young = self._prepared(f"{_YOUNG}/{secrets.token_hex(16)}")
        try:
            with self._fs.open_output_stream(young) as file:
                file.write(content)
            yield young
        finally:
            if self._is_file(young):
                self._fs.delete_file(young)

    @contextmanager
    def _trouble(self, path: str) -> Generator[None]:
        try:
            yield
        except PermissionError as error:
            raise StoreTrouble("denied", f"{self._at(path)}: {error}") from error
        except (OSError, pa.ArrowException) as error:
            full = any(word in str(error).lower() for word in ("no space", "quota"))
            raise StoreTrouble("full" if full else "failed", f"{self._at(path)}: {error}") from error
