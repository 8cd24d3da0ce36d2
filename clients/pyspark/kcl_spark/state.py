"""The state folder, for one engine at a time, and the marks on outputs.

A file sink remembers finished batch numbers. With new state the numbers restart, and it would silently drop
new batches. Two engines with one output would remove each other's files. So each output is marked with its
state, and a mismatch is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from kcl_spark.api import is_connect
from kcl_spark.control import Refused, make_folder, monotonic_s, pause, replace_text
from kcl_spark.positions import Position, to_text

_PROC: Final = Path("/proc")
_GONE_TRIES: Final = 200
_POLL_S: Final = 0.1


class StateInUse(Exception): ...


class StateFolder:
    """Locks the folder; waits up to `wait_s` for a previous engine to end."""

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
        return self.path / "queries" / name

    def remember_jvm(self, pid: int) -> None:
        """The next engine ends this JVM if it still runs."""
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
            reported = _read(note)
            if reported is None or not {"id", "application"} <= reported.keys():
                raise Refused(
                    f"{note} cannot be read, so that nobody can tell whose state this is. Bring it back from a copy; where "
                    "there is none, move the folder away and set sparkStateReset=true to begin with new state from the "
                    "stored checkpoints, with new output paths"
                )
            if reported["application"] != self._application:
                raise StateInUse(
                    f"{self.path} is the state of the application {reported['application']!r}, not of "
                    f"{self._application!r}; give each application a folder of its own (sparkStateDir)"
                )
            self.state_id = str(reported["id"])
            return
        self.is_new = True
        self.state_id = os.urandom(12).hex()
        replace_text(note, json.dumps({"id": self.state_id, "application": self._application}))

    def _end_orphan(self) -> None:
        """Kill a previous engine's JVM, which may still be writing. An unreadable note is ignored."""
        note = self.path / "engine.json"
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
    """None if the note is broken: a full disk leaves it empty."""
    try:
        reported = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return reported if isinstance(reported, dict) else None


def _started(pid: int) -> str | None:
    """Start time in kernel ticks, which with the pid identifies a process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


MARK: Final = "_kcl_spark.json"
_SINK_LOG: Final = "_spark_metadata"
_UNKNOWN: Final = {"query": "unknown"}


def refuse_old_checkpoints(shard_id: str, stored: Position, *, state: str) -> Refused:
    return Refused(
        f"the state folder {state} is new, but {shard_id} has the checkpoint {to_text(stored)}: the state that belongs to "
        "it is elsewhere or lost. Bring it back (sparkStateDir), or set sparkStateReset=true to begin with new state from "
        "the stored checkpoints, with new output paths; also for a host that joins others"
    )


def claim_path(spark: SparkSession, path: str, *, state_id: str, query: str, is_new: bool) -> None:
    """Mark an output as ours; Refused if it belongs to another query or state.

    `is_new`: the query has committed no batch yet.
    """
    output = _RemoteOutput(spark, path) if is_connect(spark) else _Output(spark, path)
    wanted = {"state": state_id, "query": query}
    reported = output.mark()
    if reported is None:
        if is_new and output.has_sink_log():
            raise Refused(_belongs_to_another(path, query, _UNKNOWN))
        output.write_mark(wanted)
    elif reported != wanted:
        raise Refused(_belongs_to_another(path, query, reported))


class _Output:
    def __init__(self, spark: SparkSession, path: str) -> None:
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001 - the only way to Hadoop's file systems
        self._folder = self._path(path)
        self._files = self._folder.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001

    def mark(self) -> dict[str, str] | None:
        mark = self._path(self._folder, MARK)
        if not self._files.exists(mark):
            return None
        stream = self._files.open(mark)
        try:
            reported: dict[str, str] = json.loads(bytes(stream.readAllBytes()))
        finally:
            stream.close()
        return reported

    def has_sink_log(self) -> bool:
        return bool(self._files.exists(self._path(self._folder, _SINK_LOG)))

    def write_mark(self, mark: Mapping[str, str]) -> None:
        stream = self._files.create(self._path(self._folder, MARK), True)
        try:
            stream.write(bytearray(json.dumps(mark).encode()))
        finally:
            stream.close()


class _RemoteOutput:
    """The mark is a small text table."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def mark(self) -> dict[str, str] | None:
        rows = self._rows(MARK)
        if rows is None:
            return None
        return dict(json.loads(rows[0])) if rows else dict(_UNKNOWN)

    def has_sink_log(self) -> bool:
        return self._rows(_SINK_LOG) is not None

    def write_mark(self, mark: Mapping[str, str]) -> None:
        frame = self._spark.createDataFrame([(json.dumps(mark),)], "value string").coalesce(1)
        frame.write.mode("overwrite").text(f"{self._path}/{MARK}")

    def _rows(self, name: str) -> list[str] | None:
        try:
            return [row.value for row in self._spark.read.text(f"{self._path}/{name}").collect()]
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return None


def _belongs_to_another(path: str, query: str, reported: dict[str, str]) -> str:
    return (
        f"query {query!r} would write to {path}, which is the output of query {reported.get('query')!r} under other state "
        f"({reported.get('state', 'no mark')}): batches would be dropped without a word. Give the query a path of its own; "
        f"where several hosts run, one for each host"
    )
