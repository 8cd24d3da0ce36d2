"""The state folder: one small file per running daemon, locked while it lives.

A free lock shows the next daemon that another died; `leases.expiry` judges the proof.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from anyio import CapacityLimiter, to_thread

from kcl_daemon.children.platform import PROC, boot_id
from kcl_daemon.host_ports import LeftoverRecord
from kcl_daemon.leases.expiry import FileLockState, ProcessObservation, ProcessRecord
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import Log

_NAME: Final = "kcl-daemon"
_RECORDS_MOST: Final = 100
_EVIDENCE_MOST: Final = 20
_RECORD_BYTES_MOST: Final = 4096
_FILE_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# Only here does a free lock prove that its holders have ended.
_LOCAL: Final = frozenset({
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "reiserfs", "tmpfs", "ramfs", "overlay",
})  # fmt: skip
_ENDED: Final = frozenset({"Z", "X", "x"})
_START_FIELD: Final = 19  # of /proc/PID/stat, after the name


class HostFolder:
    """The records of one application.

    Args:
        folders: best first; the first usable one gets a subfolder for the application.
        application: identifies daemons that may take each other's leases.
    """

    def __init__(
        self, folders: tuple[Path, ...], application: str, log: Log, *, proc: Path | None = PROC
    ) -> None:
        self._folders = folders
        self._application = application
        self._log = log
        self._proc = proc
        # A file system that hangs must take no threads from others.
        self._threads = CapacityLimiter(1)
        self._folder: Path | None = None
        self._own: Path | None = None
        self._lock_file: int | None = None
        self._held: dict[str, int] = {}

    @property
    def lock_file(self) -> int | None:
        return self._lock_file

    async def enter(self, worker_id: WorkerId, incarnation: str) -> None:
        await self._quietly(lambda: self._enter(worker_id, incarnation))

    async def poll(self) -> tuple[LeftoverRecord, ...]:
        found: list[LeftoverRecord] = []
        await self._quietly(lambda: found.extend(self._poll()))
        return tuple(found)

    async def forget(self, name: str) -> None:
        await self._quietly(lambda: self._forget(name))

    async def leave_alone(self, name: str) -> None:
        await self._quietly(lambda: self._let_go(name))

    async def leave(self) -> None:
        await self._quietly(self._leave)

    async def keep(self, name: str, lines: Sequence[Mapping[str, object]]) -> str | None:
        """The newest files are kept."""
        kept: list[Path] = []
        await self._quietly(lambda: kept.append(self._keep(name, lines)))
        return str(kept[0]) if kept else None

    def _keep(self, name: str, lines: Sequence[Mapping[str, object]]) -> Path:
        folder = self._folder or self._usable_folder()
        if folder is None:
            raise OSError(f"none of {', '.join(map(str, self._folders))} can be used")
        for old in sorted(folder.glob("invariant-*.jsonl"))[: 1 - _EVIDENCE_MOST]:
            old.unlink(missing_ok=True)
        path = folder / f"invariant-{_plain(name)}.jsonl"
        opened = os.open(path, _FILE_FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(opened, "w", encoding="ascii") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
        return path

    async def _quietly(self, act: Callable[[], object]) -> None:
        try:
            await to_thread.run_sync(act, abandon_on_cancel=True, limiter=self._threads)
        except OSError as error:
            self._unusable(str(error))

    def _unusable(self, why: str) -> None:
        advice = (
            "set stateFolder to a folder that the daemon can write to; until then, leases of a killed "
            "daemon must expire"
        )
        self._log.warning("state_folder_unusable", error=why, advice=advice)

    def _enter(self, worker_id: WorkerId, incarnation: str) -> None:
        boot = boot_id(self._proc)
        if boot is None:
            return  # not Linux: nothing could be proven, so there is nothing to leave
        folder = self._usable_folder()
        if folder is None:
            self._unusable(f"none of {', '.join(map(str, self._folders))} can be used")
            return
        new = folder / f"{incarnation}.new"
        file = os.open(new, _FILE_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        self._lock_file = file
        _lock(file)
        status = os.fstat(file)
        record = ProcessRecord(
            worker_id=worker_id,
            incarnation=incarnation,
            boot_id=boot,
            pid=os.getpid(),
            started=self._start_of(os.getpid()) or 0,
            pid_namespace=self._pid_namespace() or 0,
            device=status.st_dev,
            inode=status.st_ino,
        )
        os.write(file, record.to_text().encode())
        # Whoever sees this name finds the file complete and locked.
        self._own = folder / f"{incarnation}.json"
        new.rename(self._own)
        self._folder = folder

    def _usable_folder(self) -> Path | None:
        name = _plain(self._application.split("\n", 1)[0])[:60].lstrip(".")
        digest = hashlib.sha256(self._application.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        for parent in self._folders:
            folder = parent / f"{name}-{digest}"
            with suppress(OSError):
                _make(parent)
                _make(folder)
                if _is_trusted(parent) and _is_ours(folder) and os.access(folder, os.W_OK | os.X_OK):
                    return folder
        return None

    def _poll(self) -> Iterator[LeftoverRecord]:
        folder = self._folder
        if folder is None:
            return
        names = sorted(path.name for path in folder.glob("*.json") if path != self._own)
        boot = boot_id(self._proc)
        for name in names[:_RECORDS_MOST]:
            with suppress(OSError):  # gone, a link, a folder
                found = self._see(folder / name, boot)
                if found is not None:
                    yield found

    def _see(self, path: Path, boot: str | None) -> LeftoverRecord | None:
        file = self._held.get(path.name)
        lock = FileLockState.FREE
        if file is None:
            file = os.open(path, _FILE_FLAGS)
            lock = _lock(file)
        status = os.fstat(file)
        record = None
        # Another new daemon may have removed it.
        if stat.S_ISREG(status.st_mode) and path.stat().st_ino == status.st_ino:
            record = ProcessRecord.from_text(os.pread(file, _RECORD_BYTES_MOST, 0).decode("utf-8", "replace"))
        if record is None or lock is not FileLockState.FREE:
            os.close(file)
            self._held.pop(path.name, None)
        else:
            self._held[path.name] = file
        if record is None:
            return None
        is_local = self._is_local(status.st_dev)
        running = self._running(record)
        return LeftoverRecord(
            path.name,
            record,
            ProcessObservation(boot, status.st_dev, status.st_ino, lock, is_local=is_local, running=running),
        )

    def _forget(self, name: str) -> None:
        if self._folder is not None:
            (self._folder / name).unlink(missing_ok=True)
        self._let_go(name)

    def _let_go(self, name: str) -> None:
        file = self._held.pop(name, None)
        if file is not None:
            os.close(file)

    def _leave(self) -> None:
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        for name in list(self._held):
            self._let_go(name)

    def close(self) -> None:
        """Our record stays unless `leave` removed it."""
        for name in list(self._held):
            self._let_go(name)
        file, self._lock_file = self._lock_file, None
        if file is not None:
            os.close(file)

    def _pid_namespace(self) -> int | None:
        try:
            return None if self._proc is None else (self._proc / "self/ns/pid").stat().st_ino
        except OSError:
            return None

    def _running(self, record: ProcessRecord) -> bool | None:
        """None: its pid means nothing here, or is another user's."""
        if not record.pid_namespace or record.pid_namespace != self._pid_namespace() or record.pid <= 0:
            return None
        started = self._start_of(record.pid)
        if started is not None:
            return started == record.started
        try:
            os.kill(record.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return None
        fields = self._stat_of(record.pid)
        return False if fields and fields[0] in _ENDED else None  # ended but not reaped yet

    def _start_of(self, pid: int) -> int | None:
        """Clock ticks since boot; None: no such process, or it ended."""
        fields = self._stat_of(pid)
        if len(fields) <= _START_FIELD or fields[0] in _ENDED:
            return None
        return int(fields[_START_FIELD])

    def _stat_of(self, pid: int) -> list[str]:
        return self._read(f"{pid}/stat").rpartition(")")[2].split()

    def _is_local(self, device: int) -> bool:
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in self._read("self/mountinfo").splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2:3] == [wanted]:
                return source.split(" ", 1)[0] in _LOCAL
        return False

    def _read(self, name: str) -> str:
        try:
            return "" if self._proc is None else (self._proc / name).read_text("utf-8", "replace")
        except OSError:
            return ""


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _lock(file: int) -> FileLockState:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return FileLockState.HELD
    except OSError:
        return FileLockState.UNKNOWN
    return FileLockState.FREE


def _make(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)


def _is_trusted(folder: Path) -> bool:
    """Another user could replace our folder."""
    return folder.stat().st_uid in {os.geteuid(), 0}


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & others


def default_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    given = environment.get("STATE_DIRECTORY", "").split(":", 1)[0]
    home = environment.get("HOME", "")
    states = environment.get("XDG_STATE_HOME", "")
    user = states or (f"{home}/.local/state" if home and home != "/" else "")
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    folders = [
        Path(given) if given else None,
        Path(user) / _NAME if user else None,
        Path("/var/lib") / _NAME,
        Path(runtime) / _NAME if runtime else None,
        Path(tempfile.gettempdir()) / f"{_NAME}-{os.geteuid()}",
    ]
    return tuple(folder for folder in folders if folder is not None and folder.is_absolute())
