"""Stores under faults, and what opening and probing say."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyarrow import fs

from kcl_landing.arrow_store import ArrowStore
from kcl_landing.control import Refused
from kcl_landing.folder_store import YOUNG, FolderStore
from kcl_landing.s3_store import S3Store
from kcl_landing.store import Cause, NoObject, NotConditional, StoreTrouble, open_store, probe
from tests.landing.memory_store import Fault, MemoryStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def young(folder: Path) -> list[str]:
    return [each.name for each in (folder / YOUNG).iterdir()]


def test_addresses(folder: Path) -> None:
    for uri in (str(folder), f"file://{folder}"):
        assert open_store(uri).create(uri.replace("/", "_"), b"")
    assert len(list(folder.iterdir())) == 3
    assert isinstance(open_store("s3://bucket/a/b/"), S3Store)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://bucket/prefix", "generation"),
        ("s3:///prefix", "names no bucket"),
        ("ftp://host/prefix", "cannot be opened"),
    ],
)
def test_addresses_of_no_store(uri: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        open_store(uri)


def test_a_store_that_replaces_is_refused() -> None:
    store = MemoryStore(conditional=False)
    with pytest.raises(NotConditional, match=r"a second time.*Use S3"):
        probe(store)
    assert store.objects == {}


def test_a_file_system_that_moves_over_what_is_there_is_refused(folder: Path) -> None:
    plain = ArrowStore(fs.LocalFileSystem(), str(folder))
    with pytest.raises(NotConditional, match="a second time"):
        probe(plain)


def test_a_store_that_looks_first_and_writes_then_is_refused() -> None:
    """In turn it refuses, so only writers at once find it out."""
    store = MemoryStore(conditional=False)
    together = threading.Barrier(8)

    class LooksFirst(MemoryStore):
        def create(self, path: str, content: bytes | memoryview) -> bool:
            is_free = path not in store.objects
            if bytes(content).startswith(b"writer"):
                together.wait(timeout=30)
            return is_free and store.create(path, content)

        def read(self, path: str) -> bytes:
            return store.read(path)

        def remove(self, paths: Sequence[str]) -> None:
            store.remove(paths)

    with pytest.raises(NotConditional, match="let 8 of 8 writers create"):
        probe(LooksFirst())
    assert store.objects == {}


def test_a_store_that_forgets_is_refused() -> None:
    store = MemoryStore()

    def forget(operation: str, _path: str) -> None:
        if operation == "read":
            store.objects.clear()

    store.before = forget
    with pytest.raises(NotConditional, match="not there to read"):
        probe(store)


@pytest.mark.parametrize("operation", ["create", "read"])
def test_trouble_is_not_taken_for_a_refusal(operation: str) -> None:
    store = MemoryStore()
    store.faults.append(Fault("create" if operation == "create" else "read", "denied"))
    with pytest.raises(StoreTrouble) as raised:
        probe(store)
    assert raised.value.cause == "denied"


def test_who_may_not_remove_may_land() -> None:
    store = MemoryStore()
    store.faults.append(Fault("remove", "denied"))
    probe(store)
    assert len(store.objects) == 2


def test_a_folder_of_ours_is_private(folder: Path) -> None:
    FolderStore(folder).create("a/b", b"")
    modes = [(folder / name).stat().st_mode & 0o777 for name in ("", "a", "a/b", YOUNG)]
    assert modes == [0o700, 0o700, 0o600, 0o700]


@pytest.mark.parametrize(
    ("root", "umask", "below", "file"), [(0o750, 0o022, 0o750, 0o640), (0o770, 0o077, 0o700, 0o600)]
)
def test_files_are_for_those_the_folder_is_for(
    folder: Path, root: int, umask: int, below: int, file: int
) -> None:
    folder.mkdir()
    folder.chmod(root)
    before = os.umask(umask)
    try:
        FolderStore(folder).create("a/b", b"")
    finally:
        os.umask(before)
    assert (folder / "a").stat().st_mode & 0o777 == below
    assert (folder / "a/b").stat().st_mode & 0o777 == file


def test_a_file_that_a_crash_left_is_not_listed_and_is_removed_after_a_day(folder: Path) -> None:
    FolderStore(folder).create("a", b"")
    for name, age_s in (("old", 25 * 3600), ("another-host-writes", 3600)):
        left = folder / YOUNG / name
        left.write_bytes(b"x")
        now_s = (folder / "a").stat().st_mtime
        os.utime(left, (now_s - age_s, now_s - age_s))
    store = FolderStore(folder)
    assert [each.path for each in store.listing("")] == ["a"]
    store.replace("a", b"")
    assert young(folder) == ["another-host-writes"]


def test_a_folder_that_is_not_mounted_is_not_made(folder: Path) -> None:
    store = FolderStore(folder / "mounted" / "log")
    with pytest.raises(StoreTrouble, match="mount it") as raised:
        store.create("a", b"")
    assert raised.value.cause == "unreachable"
    (folder / "mounted").mkdir(parents=True)
    assert store.create("a", b"")


def test_a_folder_that_is_not_mounted_any_more(folder: Path) -> None:
    store = FolderStore(folder)
    store.create("a", b"")
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()
    for use in (lambda: store.create("b", b""), lambda: store.replace("a", b""), lambda: store.read("a")):
        with pytest.raises(StoreTrouble) as raised:
            use()
        assert raised.value.cause == "unreachable"
    assert list(folder.iterdir()) == []
    folder.rmdir()
    away.rename(folder)
    assert store.create("b", b"")


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _quota(*_: object) -> None:
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


def _read_only(*_: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def _stale(*_: object) -> None:
    raise OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize(
    ("fail", "cause"), [(_no_room, "full"), (_quota, "full"), (_read_only, "denied"), (_stale, "unreachable")]
)
@pytest.mark.parametrize("call", ["open", "fsync", "link"])
def test_causes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, fail: Callable[..., None], cause: Cause
) -> None:
    store = FolderStore(folder)
    store.create("a", b"")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreTrouble) as raised:
            store.create("b", b"")
    assert raised.value.cause == cause
    assert young(folder) == []
    assert store.create("b", b"")


LIMITED = """
import resource, signal, sys
from pathlib import Path
from kcl_landing.store import StoreTrouble
from kcl_landing.folder_store import FolderStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = FolderStore(Path(sys.argv[1]))
try:
    store.create("a", bytes(200_000))
except StoreTrouble as trouble:
    print(trouble.cause)
print(store.create("b", bytes(100_000)), [each.path for each in store.listing("")])
"""


def test_a_limit_of_the_system_in_the_middle_of_a_file(folder: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "full\nTrue ['b']\n"
    assert young(folder) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000


def test_an_answer_that_nfs_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    store = FolderStore(folder)
    monkeypatch.setattr(os, "link", link_twice)
    assert store.create("a", b"ours")
    monkeypatch.undo()
    assert not store.create("a", b"theirs")
    assert store.read("a") == b"ours"


def test_a_file_system_without_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(NotConditional, match="no hard links"):
        probe(FolderStore(folder))


def test_readers_need_no_writing(folder: Path) -> None:
    store = FolderStore(folder)
    assert list(store.listing("")) == []
    with pytest.raises(NoObject):
        store.read("a")
    assert not folder.exists()


def test_another_user_is_denied(folder: Path) -> None:
    FolderStore(folder).create("a", b"")
    program = f"""
import os
from pathlib import Path
from kcl_landing.folder_store import FolderStore
from kcl_landing.store import StoreTrouble
store = FolderStore(Path({str(folder)!r}))
os.setresuid(65534, 65534, 65534)
for use in (lambda: store.read("a"), lambda: store.create("b", b""), lambda: list(store.listing(""))):
    try:
        use()
    except StoreTrouble as trouble:
        print(trouble.cause)
"""
    if os.geteuid() == 0:
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
        )
        assert done.stdout == "denied\n" * 3
    else:
        folder.chmod(0)
        with pytest.raises(StoreTrouble) as raised:
            FolderStore(folder).read("a")
        assert raised.value.cause == "denied"
        folder.chmod(0o700)
