"""The state folder: who uses it, whose it is, and the JVM that an engine before may have left behind.

Owns `lock`, `state.json` and `engine.json` in it. One engine at a time: two would write the same outputs.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kcl_spark.clock import monotonic_s, pause
from kcl_spark.private import make_folder, replace_text
from kcl_spark.refused import Refused

_PROC: Final = Path("/proc")
_GONE_TRIES: Final = 200
_POLL_S: Final = 0.1


class StateInUse(Exception):
    """Raised when another engine runs on the same state folder."""


class StateFolder:
    """The folder of one engine; a context manager that holds it.

    Args:
        path: of the folder; made where it is missing.
        application: whose state this is.
        wait_s: how long an engine before may take to end: that of a daemon that was killed ends by itself.

    Attributes:
        state_id: a name that stays with this state and no other.
        is_new: whether the folder was made just now.
    """

    def __init__(self, path: Path, application: str, *, wait_s: float = 60.0) -> None:
        self.path = path
        self._wait_s = wait_s
        self._application = application
        self._lock: int | None = None
        self.state_id = ""
        self.is_new = False

    def __enter__(self) -> Self:
        make_folder(self.path)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if not self._locked(self._lock):
            os.close(self._lock)
            raise StateInUse(
                f"another engine runs on {self.path}; one application needs one state folder on each host "
                "(sparkStateDir), and one daemon"
            )
        try:
            self._end_orphan()
            self._identify()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        (self.path / "engine.json").unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)

    def query_folder(self, name: str) -> Path:
        """Where Spark keeps the books of a query."""
        return self.path / "queries" / name

    def remember_jvm(self, pid: int) -> None:
        """Note which JVM is ours, so that the next engine can end it if it outlives us."""
        note = {"pid": pid, "started": _started(pid)}
        replace_text(self.path / "engine.json", json.dumps(note))

    def _locked(self, lock: int) -> bool:
        deadline_s = monotonic_s() + self._wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic_s() >= deadline_s:
                    return False
                pause(_POLL_S)
            else:
                return True

    def _identify(self) -> None:
        note = self.path / "state.json"
        if note.exists():
            told = _read(note)
            if told is None or not {"id", "application"} <= told.keys():
                raise Refused(
                    f"{note} cannot be read, so that nobody can tell whose state this is. Bring it back from a copy; where "
                    "there is none, move the folder away and set sparkStateReset=true to begin with new state from the "
                    "stored checkpoints, with new output paths"
                )
            if told["application"] != self._application:
                raise StateInUse(
                    f"{self.path} is the state of the application {told['application']!r}, not of "
                    f"{self._application!r}; give each application a folder of its own (sparkStateDir)"
                )
            self.state_id = str(told["id"])
            return
        self.is_new = True
        self.state_id = os.urandom(12).hex()
        replace_text(note, json.dumps({"id": self.state_id, "application": self._application}))

    def _end_orphan(self) -> None:
        """A JVM without its engine ends by itself, but it may still be writing.

        A note that cannot be read is none: it must not keep every engine to come from starting.
        """
        note = self.path / "engine.json"
        told = _read(note) or {}
        pid, started = told.get("pid"), told.get("started")
        if isinstance(pid, int) and started is not None:
            for _ in range(_GONE_TRIES):
                if _started(pid) != started:
                    break
                os.kill(pid, signal.SIGKILL)
                pause(0.05)
        note.unlink(missing_ok=True)


def _read(note: Path) -> dict[str, Any] | None:
    """What a note says; None where it is missing, or not what we write: a full disk leaves it empty."""
    try:
        told = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _started(pid: int) -> str | None:
    """When a process was started, in the kernel's ticks; with its number that names it. None: it is not there."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
