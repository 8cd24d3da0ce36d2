"""Landers for tests: in a thread of this process, or as a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from kcl_landing import lander, segments
from kcl_landing.control import monotonic_s, pause
from kcl_landing.lander import LanderOptions
from kcl_landing.log import Entry, Format, LogInfo, entry_path
from kcl_landing.manifests import ShardLog, known_log
from kcl_landing.marks import Rosters
from kcl_landing.store import LogStore, open_store
from tests.landing.daemon import SHARD, WITHIN_S

STREAM = "words"


def options(folder: Path, **more: Any) -> LanderOptions:
    usual: dict[str, Any] = {
        "uri": str(folder / "log"),
        "application": "app",
        "stream": STREAM,
        "socket": str(folder / f"s{os.urandom(4).hex()}"),
        "worker": "host-1",
        "window_ms": 60_000,
    }
    return LanderOptions(**{**usual, **more})


class Events:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, level: str, event: str, /, **fields: object) -> None:
        self.events.append({"level": level, "event": event, **fields})

    def named(self, name: str) -> list[dict[str, Any]]:
        return [each for each in list(self.events) if each["event"] == name]

    def wait_for(self, name: str) -> dict[str, Any]:
        until(lambda: bool(self.named(name)), f"{name} in {self.events}")
        return self.named(name)[0]


def until(is_so: Callable[[], object], what: str = "it") -> None:
    deadline_s = monotonic_s() + WITHIN_S
    while not is_so():
        assert monotonic_s() < deadline_s, f"{what} did not come"
        pause(0.01)


class LanderThread(Events):
    """`store`: instead of the one in the options."""

    def __init__(self, chosen: LanderOptions, store: LogStore | None = None) -> None:
        super().__init__()
        self.socket = Path(chosen.socket)
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._store = store
        self.rosters = Rosters(self)
        self._thread = threading.Thread(target=self._run, args=(chosen,))
        self._thread.start()

    def _run(self, chosen: LanderOptions) -> None:
        try:
            lander.run(chosen, self, self._stop, self.rosters, store=self._store)
        except BaseException as error:  # noqa: BLE001 - for the test
            self.error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


class LanderProgram(Events):
    def __init__(self, chosen: LanderOptions) -> None:
        super().__init__()
        self.socket = Path(chosen.socket)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kcl_landing.lander"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        given = {each: getattr(chosen, each) for each in LanderOptions.__struct_fields__}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(given).encode() + b"\n")
        self.process.stdin.flush()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(WITHIN_S)
        self._thread.join(WITHIN_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.stop()


class Landed:
    """What a reader finds."""

    def __init__(self, store: LogStore, shard: str = SHARD, stream: str = STREAM) -> None:
        self.store = store
        self.info: LogInfo = known_log(store)
        self.log = ShardLog(store, self.info, stream, shard, segments.read_footer)
        self.stream = stream
        self.shard = shard

    @classmethod
    def at(cls, chosen: LanderOptions, shard: str = SHARD) -> Landed:
        return cls(open_store(chosen.uri), shard)

    @property
    def entries(self) -> list[Entry]:
        return list(self.log.entries())

    def table(self, entry: Entry) -> segments.Table:
        content = self.store.read(entry_path(self.info, self.stream, self.shard, entry))
        return segments.decode(content, self.info.format)

    def rows(self) -> list[dict[str, Any]]:
        """Of all segments; they must follow each other."""
        found: list[dict[str, Any]] = []
        entries = self.entries
        for before, entry in zip([None, *entries], entries, strict=False):
            assert entry.number == (0 if before is None else before.to + 1)
            assert before is None or entry.after == before.last
            found.extend(self.table(entry).to_pylist())
        return found

    def numbers(self) -> list[int]:
        return [int(each["sequence_number"]) for each in self.rows()]


FORMATS: tuple[Format, ...] = ("parquet", "arrow")
formats = pytest.mark.parametrize("file_format", FORMATS)
