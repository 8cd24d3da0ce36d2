"""Opens and probes stores; has the store in a folder, which may be of NFS."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kcl_landing.control import Refused
from kcl_landing.store import Cause, LogStore, NoObject, NotConditional, StoredObject, StoreTrouble

__all__ = ["FolderStore", "NotConditional", "open_store", "probe"]

YOUNG: Final = ".young"
"""Files that are being written; below the root, so that linking stays in one file system."""
PROBES: Final = "_probe"
_PROBE_WRITERS: Final = 8
_ADVICE: Final = (
    "Two writers could both write one segment, so records would be lost. Use S3, a server that honours `If-None-Match: *`, "
    "HDFS, or a folder"
)
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


def open_store(uri: str, *, endpoint: str = "", region: str = "", encryption: str | None = None) -> LogStore:
    """Opening asks nothing of the store.

    Args:
        uri: a folder, `file:///folder`, `s3://bucket/prefix`, or another scheme of pyarrow's file systems.
        endpoint: URL of S3, if it is not Amazon's.
        region: of S3, if the environment does not say it.
        encryption: of what is written to S3: `AES256`, `aws:kms`, or the ARN of a KMS key.

    Raises:
        Refused: no log can be kept there.
    """
    scheme = urlsplit(uri).scheme
    if not scheme or uri.startswith("/"):
        return FolderStore(Path(uri))
    if scheme == "file":
        return FolderStore(Path(unquote(urlsplit(uri).path)))
    if scheme in {"s3", "s3a", "s3n"}:
        from kcl_landing.s3_store import S3Store  # who writes into a folder needs no SDK

        return S3Store(uri, endpoint=endpoint, region=region, encryption=encryption)
    if scheme in {"gs", "gcs"}:
        raise Refused(
            f"landing = {uri}: Google's store takes conditions only on an object's generation, which neither pyarrow "
            "nor the S3 interface has. Use s3://, hdfs:// or a folder"
        )
    from kcl_landing.arrow_store import open_file_system  # likewise

    return open_file_system(uri)


def probe(store: LogStore) -> None:
    """Find out by trying whether the store creates an object only where there is none.

    Raises:
        NotConditional: it does not, or what was written cannot be read.
    """
    once, raced = (f"{PROBES}/{secrets.token_hex(8)}" for _ in range(2))
    try:
        _probe_in_turn(store, once)
        _probe_at_once(store, raced)
    finally:
        # Who may not delete may land.
        with suppress(StoreTrouble):
            store.remove([once, raced])


def _probe_in_turn(store: LogStore, path: str) -> None:
    store.create(path, b"first")
    if store.create(path, b"second"):
        raise NotConditional(f"the store created {path} a second time, over what was there. {_ADVICE}")
    _probe_content(store, path, {b"first"})


def _probe_at_once(store: LogStore, path: str) -> None:
    contents = [f"writer {index}".encode() for index in range(_PROBE_WRITERS)]
    with ThreadPoolExecutor(_PROBE_WRITERS) as writers:
        won = list(writers.map(partial(store.create, path), contents))
    winners = [content for content, is_winner in zip(contents, won, strict=True) if is_winner]
    if len(winners) > 1:
        raise NotConditional(
            f"the store let {len(winners)} of {_PROBE_WRITERS} writers create {path} at once. {_ADVICE}"
        )
    # Without a winner, the answer was lost and the repeated request refused.
    _probe_content(store, path, set(winners or contents))


def _probe_content(store: LogStore, path: str, expected: set[bytes]) -> None:
    try:
        found = store.read(path)
    except NoObject:
        raise NotConditional(
            f"the store created {path}, and then it was not there to read. {_ADVICE}"
        ) from None
    if found not in expected:
        raise NotConditional(f"the store refused to write {path} again, but changed it. {_ADVICE}")


class FolderStore:
    """The folder is made on the first write, its parent is not: that may be what is not mounted.

    Files get the permissions of the folder, less the umask; a folder that is made here is for this user only.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._young = root / YOUNG
        self._lock = threading.Lock()
        self._mode: int | None = None

    def create(self, path: str, content: bytes | memoryview) -> bool:
        target = self._root / path
        with _trouble(target), self._written(content) as young:
            self._make_folder(target.parent)
            is_new = _link(young, target)
            # Also for another's file: its content is synced, its name perhaps not yet.
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
                # The order of whole paths: `a/b` comes behind `a-b`.
                entries = sorted((each.name + "/" * each.is_dir(), each) for each in scanned)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, entry in entries:
            path = f"{folder}/{name}" if folder else name
            if path.endswith("/"):
                if path != f"{YOUNG}/" and (path > after or after.startswith(path)):
                    yield from self._below(path[:-1], after)
            elif path > after:
                with suppress(FileNotFoundError):  # removed since
                    yield StoredObject(path, entry.stat().st_size)

    @contextmanager
    def _written(self, content: bytes | memoryview) -> Generator[Path]:
        """A synced file, which is gone afterwards."""
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
        """The mode of the root. A root that was there and is gone is not made again: it is not mounted."""
        with self._lock:
            if self._mode is None:
                self._root.mkdir(mode=0o700, exist_ok=True)
                self._mode = self._root.stat().st_mode & 0o777
                self._young.mkdir(mode=self._mode, exist_ok=True)
                self._remove_left_over()
            return self._mode

    def _remove_left_over(self) -> None:
        """Keeps what other hosts are writing. The file system's clock says how old a file is, not ours."""
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
        # NFS repeats a request whose answer was lost; then the name is taken, by us.
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
