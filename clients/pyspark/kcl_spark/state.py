"""The state folder, for one engine at a time."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcl_landing.control import Refused, make_folder, monotonic_s, pause, replace_text
from kcl_landing.positions import Position, to_text

_PROC: Final = Path("/proc")
_ON_LINUX: Final = sys.platform == "linux" and os.environ.get("KCL_POSIX_ONLY") != "1"
_GONE_TRIES: Final = 200
_POLL_S: Final = 0.1


class StateInUse(Exception): ...


@dataclass(frozen=True, slots=True)
class QueryChanges:
    added: list[str]
    put_back: list[str]
    removed: list[str]


@dataclass(frozen=True, slots=True)
class StateFolder:
    path: Path
    state_id: str

    def query_folder(self, name: str) -> Path:
        return self.path / "queries" / name

    def compare(self, names: Collection[str]) -> QueryChanges:
        """Before the queries start."""
        note, folder, now = self.path / "queries.json", self.path / "queries", set(names)
        kept = {each.name for each in folder.iterdir()} if folder.exists() else set[str]()
        before = set((_read(note) or {"names": kept})["names"])
        replace_text(note, json.dumps({"names": sorted(now)}))
        added = now - kept if kept else set[str]()
        return QueryChanges(sorted(added), sorted((now & kept) - before), sorted(before - now))

    def remember_jvm(self, pid: int) -> None:
        note = {"pid": pid, "started": _started(pid)}
        replace_text(self.path / "engine.json", json.dumps(note))


@contextmanager
def open_state(path: Path, application: str, *, wait_s: float = 60.0) -> Generator[StateFolder]:
    """Locked; waits up to `wait_s` for a previous engine to end.

    StateInUse: by another engine or application. Refused: nobody can tell whose state it is.
    """
    make_folder(path)
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait_for(lock, path, wait_s)
        _end_orphan(path / "engine.json")
        state = StateFolder(path, _identify(path / "state.json", application))
        try:
            yield state
        finally:
            (path / "engine.json").unlink(missing_ok=True)
    finally:
        os.close(lock)


def _wait_for(lock: int, path: Path, wait_s: float) -> None:
    deadline_s = monotonic_s() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic_s() < deadline_s:
                pause(_POLL_S)
                continue
            raise StateInUse(
                f"another engine runs on {path}; one application needs one state folder on each host "
                "(sparkStateDir), and one daemon"
            ) from None
        return


def _identify(note: Path, application: str) -> str:
    if not note.exists():
        state_id = os.urandom(12).hex()
        replace_text(note, json.dumps({"id": state_id, "application": application}))
        return state_id
    reported = _read(note)
    if reported is None or not {"id", "application"} <= reported.keys():
        raise Refused(
            f"{note} cannot be read, so that nobody can tell whose state this is. Bring it back from a copy; where "
            "there is none, move the folder away and set sparkStateReset=true to begin with new state from the "
            "stored checkpoints, with new output paths"
        )
    if reported["application"] != application:
        raise StateInUse(
            f"{note.parent} is the state of the application {reported['application']!r}, not of "
            f"{application!r}; give each application a folder of its own (sparkStateDir)"
        )
    return str(reported["id"])


def _end_orphan(note: Path) -> None:
    """It may still write. An unreadable note is ignored."""
    reported = _read(note) or {}
    pid, started = reported.get("pid"), reported.get("started")
    if isinstance(pid, int) and started is not None:
        for _ in range(_GONE_TRIES):
            if _started(pid) != started:
                break
            os.kill(pid, signal.SIGKILL)
            pause(0.05)
    note.unlink(missing_ok=True)


def _read(note: Path) -> dict[str, Any] | None:
    """None: broken; a full disk leaves it empty."""
    try:
        reported = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return reported if isinstance(reported, dict) else None


def _started(pid: int) -> str | None:
    """On Linux in kernel ticks. A pid may be another process now; together they name one. None: it has ended."""
    if not _ON_LINUX:
        return _started_elsewhere(pid)
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _started_elsewhere(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None


def refuse_old_checkpoints(shard_id: str, stored: Position, *, state: str) -> Refused:
    return Refused(
        f"the state folder {state} is new, but {shard_id} has the checkpoint {to_text(stored)}: the state that belongs to "
        "it is elsewhere or lost. Bring it back (sparkStateDir), or set sparkStateReset=true to begin with new state from "
        "the stored checkpoints, with new output paths; also for a host that joins others"
    )
