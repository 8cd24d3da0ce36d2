"""A landing log in a folder, which may be of NFS."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kcl_landing.store import Cause, NoObject, NotConditional, StoredObject, StorePlace, StoreTrouble

YOUNG: Final = ".young"
"""Below the root, so that linking stays in one file system."""
_LEFT_OVER_S: Final = 24 * 3600
_CAUSES: Final[dict[int, Cause]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "full"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "denied"),
    **dict.fromkeys(
        (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN),
        "unreachable",
    ),
}
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


class FolderStore:
    """The folder is made on the first write, its parent is not: that may be what is not mounted.

    Files get the permissions of the folder, less the umask; one made here is for this user only.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._young = root / YOUNG
        self._lock = threading.Lock()
        self._mode: int | None = None

    @classmethod
    def at(cls, place: StorePlace) -> FolderStore:
        is_path = place.uri.startswith("/") or not urlsplit(place.uri).scheme
        return cls(Path(place.uri if is_path else unquote(urlsplit(place.uri).path)))

    def create(self, path: str, content: bytes | memoryview) -> bool:
        target = self._root / path
        with _trouble(target), self._written(content) as young:
            self._make_folder(target.parent)
            is_new = _link(young, target)
            # Also for another's file, whose name is perhaps not synced yet.
            _sync_folder(target.parent)
            return is_new

    def replace(self, path: str, content: bytes) -> None:
        target = self._root / path
        with _trouble(target), self._written(content) as young:
            self._make_folder(target.parent)
            young.replace(target)
            _sync_folder(target.parent)

    def read(self, path: str) -> bytes:
        target = self._root / path
        with _trouble(target):
            try:
                return target.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                if self._mode is not None and not self._young.exists():
                    raise
                raise NoObject(str(target)) from None

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        with _trouble(self._root / folder):
            yield from self._below(folder, after)

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            with _trouble(self._root / path):
                (self._root / path).unlink(missing_ok=True)

    def _below(self, folder: str, after: str) -> Iterator[StoredObject]:
        try:
            with os.scandir(self._root / folder) as scanned:
                # By whole paths: `a/b` comes behind `a-b`.
                entries = sorted((each.name + "/" * each.is_dir(), each) for each in scanned)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, entry in entries:
            path = f"{folder}/{name}" if folder else name
            if path.endswith("/"):
                if path != f"{YOUNG}/" and (path > after or after.startswith(path)):
                    yield from self._below(path[:-1], after)
            elif path > after:
                with suppress(FileNotFoundError):
                    yield StoredObject(path, entry.stat().st_size)

    @contextmanager
    def _written(self, content: bytes | memoryview) -> Generator[Path]:
        """Synced, and gone afterwards."""
        mode = self._open()
        young = self._young / secrets.token_hex(16)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open(os.open(young, flags, mode & 0o666), "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            yield young
        finally:
            young.unlink(missing_ok=True)

    def _open(self) -> int:
        """The mode of the root. One that was there and is gone is not made again: it is not mounted."""
        with self._lock:
            if self._mode is None:
                self._root.mkdir(mode=0o700, exist_ok=True)
                self._mode = self._root.stat().st_mode & 0o777
                self._young.mkdir(mode=self._mode, exist_ok=True)
                self._remove_left_over()
            return self._mode

    def _remove_left_over(self) -> None:
        """By the file system's clock: other hosts may be writing."""
        now = self._young / secrets.token_hex(16)
        now.touch(mode=0o600)
        began_s = now.stat().st_mtime
        now.unlink()
        for each in self._young.iterdir():
            with suppress(FileNotFoundError):
                if began_s - each.stat().st_mtime > _LEFT_OVER_S:
                    each.unlink()

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(mode=self._open(), exist_ok=True)
        _sync_folder(folder.parent)


def _link(young: Path, target: Path) -> bool:
    try:
        os.link(young, target)
    except OSError as error:
        # NFS repeats a request whose answer was lost: then it is ours.
        if young.stat().st_nlink > 1:
            return True
        if error.errno == errno.EEXIST:
            return False
        if error.errno in _NO_LINKS:
            raise NotConditional(
                f"{target}: the file system has no hard links ({error.strerror}). Use a folder of ext4, XFS, ZFS or NFS"
            ) from error
        raise
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _trouble(place: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        cause = _CAUSES.get(
            error.errno or 0, "unreachable" if isinstance(error, FileNotFoundError) else "failed"
        )
        gone = ": make the folder, or mount it" if isinstance(error, FileNotFoundError) else ""
        raise StoreTrouble(cause, f"{place}: {error.strerror or error}{gone}") from error
