"""A daemon for the engine's tests: speaks the line protocol for many shards, keeps their checkpoints, delivers again.

Its shards hold numbered records. After a kill it goes on from the stored checkpoints with other borders, as the KCL does.
"""

from __future__ import annotations

import base64
import json
import os
import random  # noqa: TID251 - seeded, for the borders of batches
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.spark import SparkSettings
from kcl_daemon.spark import SparkEngine
from kcl_landing.control import monotonic_s, pause
from kcl_landing.positions import START, Position
from kcl_spark.engine import exit_code
from kcl_spark.session import parse

ROOT = Path(__file__).parents[2]
QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "200ms",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""For a few records it takes longer to compile than to run."""
SETTINGS = Settings(
    application_name="app",
    stream_name="words",
    child=ChildSettings(command=("true",)),
    worker_id="w",
    spark=SparkSettings(
        pipeline="job:pipeline",
        master="local[2]",
        driver_memory="600m",
        checkpoint_interval_ms=100,
        conf=tuple(QUICK.items()),
    ),
)
BASE = 49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000


@dataclass
class Shard:
    """One shard of the stream and its lease."""

    shard_id: str
    count: int
    ends: bool = False
    bytes_each: int = 40
    checkpoint: Position = START
    finished: bool = False
    delivered: int = 0
    checkpoints: list[Position] = field(default_factory=list[Position])

    def record(self, number: int) -> dict[str, Any]:
        data = f"{self.shard_id}:{number}:".ljust(self.bytes_each, "x").encode()
        return {
            "data": base64.b64encode(data).decode(),
            "partitionKey": f"key-{number % 7}",
            "sequenceNumber": str(BASE + number),
            "approximateArrivalTimestamp": 1_735_689_600_000 + number,
            "subSequenceNumber": 0,
            "action": "record",
        }

    @property
    def next_number(self) -> int:
        return 0 if self.checkpoint == START else self.checkpoint[0] - BASE + 1


class Engine:
    """What an engine has told."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def has(self, event: str) -> bool:
        return any(each["event"] == event for each in self.events)

    def event(self, name: str) -> dict[str, Any]:
        return next(each for each in self.events if each["event"] == name)

    def newest_figures(self) -> dict[str, Any]:
        return next(each for each in reversed(self.events) if each["event"] == "spark_figures")


class EngineThread(Engine):
    """The engine in a thread of this process, with the Spark that the fixture `spark_of_engines` gives it."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._codes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(json.dumps(options).encode(),), daemon=True)
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, within_s: float = 120) -> int:
        """Ask it to stop; gives the exit code."""
        self._stop.set()
        return self.wait(within_s)

    def wait(self, within_s: float) -> int:
        self._thread.join(within_s)
        assert not self.is_running(), "the engine did not end"
        (code,) = self._codes
        return code

    def _run(self, line: bytes) -> None:
        self._codes.append(exit_code(parse(line), self._log_event, self._stop))

    def _log_event(self, level: str, event: str, /, **fields: object) -> None:
        self.events.append(json.loads(json.dumps({"level": level, "event": event, **fields}, default=str)))


class EngineProcess(Engine):
    """The engine as the daemon starts it: a process group of its own."""

    def __init__(self, options: dict[str, Any], cwd: Path, environment: Mapping[str, str]) -> None:
        super().__init__()
        self.started_s = monotonic_s()
        self.stderr = (cwd / "engine.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kcl_spark.engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            cwd=cwd,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(options).encode() + b"\n")
        self.process.stdin.flush()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.close()

    def kill_parent(self) -> None:
        """SIGKILL to the Python process alone; its JVM is left to itself."""
        self.process.kill()
        self.close()

    def stop(self, within_s: float = 120) -> int:
        self.process.terminate()
        code = self.process.wait(within_s)
        self.close()
        return code

    def close(self) -> None:
        """Read what is left, when it has ended."""
        self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.stderr.close()


class Relay(threading.Thread):
    """Serves one shard to the engine until it has all, is told to stop, or the engine is gone."""

    def __init__(self, daemon: Daemon, shard: Shard) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self.shard = shard
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(daemon.socket))
        self._lines = self._socket.makefile("rb")
        self.error: Exception | None = None
        self.drain = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self._serve()
        except OSError:
            pass  # the engine was killed
        finally:
            self._lines.close()
            self._socket.close()

    def _serve(self) -> None:
        shard, number = self.shard, self.shard.next_number
        stored = ("TRIM_HORIZON", 0) if shard.checkpoint == START else (str(shard.checkpoint[0]), 0)
        self._do("initialize", shardId=shard.shard_id, sequenceNumber=stored[0], subSequenceNumber=stored[1])
        while not self.drain.is_set():
            size = min(self._daemon.random.randint(1, self._daemon.most_records), shard.count - number)
            records = [shard.record(each) for each in range(number, number + size)]
            number += size
            shard.delivered = max(shard.delivered, number)
            pause(self._daemon.pace_s)
            behind_ms = 0 if number == shard.count else 1000
            self._do("processRecords", records=records, millisBehindLatest=behind_ms)
            if number == shard.count:
                if shard.ends:
                    self._daemon.hook("shard_end", self)
                    self._do("shardEnded")
                    return
                pause(0.05)
        self._daemon.hook("drain", self)
        self._do("shutdownRequested")
        self._do("leaseLost")

    def _do(self, action: str, **fields: Any) -> None:
        self._socket.sendall(json.dumps({"action": action, **fields}).encode() + b"\n")
        while True:
            line = self._lines.readline()
            if not line.endswith(b"\n"):
                raise ConnectionError("the engine is gone")
            if line.isspace():
                continue  # children send blank lines as separators, and the daemon drops them
            answer = json.loads(line)
            if answer["action"] == "status":
                assert answer["responseFor"] == action
                return
            self._store(answer, action)

    def _store(self, request: dict[str, Any], action: str) -> None:
        self._daemon.hook("checkpoint", self)
        shard, error = self.shard, None
        if request["sequenceNumber"] is None:
            assert action == "shardEnded", "only the end of the shard is checkpointed without a number"
            shard.finished = True
        else:
            position = (int(request["sequenceNumber"]), request["subSequenceNumber"])
            if position <= shard.checkpoint or position[0] >= BASE + shard.delivered:
                error = "IllegalArgumentException"
            else:
                shard.checkpoint = position
                shard.checkpoints.append(position)
        answer = {**request, "error": error}
        self._socket.sendall(json.dumps(answer).encode() + b"\n")
        assert error is None, f"{request} lies outside of what was delivered"


class Daemon:
    """The daemon's side of one host: shards, checkpoints, an engine."""

    def __init__(
        self,
        folder: Path,
        shards: list[Shard],
        *,
        seed: int = 1,
        most_records: int = 400,
        pace_s: float = 0.0,
    ) -> None:
        self.folder = folder
        self.shards = shards
        self.random = random.Random(seed)
        self.most_records = most_records
        self.pace_s = pace_s
        self.socket = folder / "engine.sock"
        self.hooks: dict[str, Callable[[Relay], None]] = {}
        self.engine: EngineProcess | None = None
        self.thread: EngineThread | None = None
        self.relays: list[Relay] = []
        self.environment: dict[str, str] = {}
        """Of engines, beside ours."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """No engine outlives its test."""
        if self.engine is not None:
            if self.engine.process.poll() is None:
                self.engine.kill()
            self.engine.close()
        if self.thread is not None and self.thread.is_running():
            self.thread.stop()
        for relay in self.relays:
            relay.drain.set()
            relay.join(60)

    def engine_log(self) -> str:
        """The end of what Spark and Java printed."""
        return (self.folder / "engine.log").read_text("utf-8", "replace")[-4_000:]

    def hook(self, point: str, relay: Relay) -> None:
        if point in self.hooks:
            self.hooks[point](relay)

    def options(self, **more: Any) -> dict[str, Any]:
        given: dict[str, Any] = json.loads(SparkEngine.options(SETTINGS, self.socket))
        return {**given, "state_dir": str(self.folder / "state"), **more}

    def start_engine(self, *, ready_within_s: float = 240, **more: Any) -> EngineProcess:
        engine = self.engine = EngineProcess(self.options(**more), self.folder, self.environment)
        wait_for(lambda: engine.has("engine_ready") or engine.process.poll() is not None, ready_within_s)
        return engine

    def start_engine_thread(self, **more: Any) -> EngineThread:
        engine = self.thread = EngineThread(self.options(**more))
        wait_for(lambda: engine.has("engine_ready") or not engine.is_running(), 240)
        return engine

    def start_relays(self) -> None:
        self.relays = [Relay(self, shard) for shard in self.shards if not shard.finished]

    def is_done(self) -> bool:
        return all(
            shard.finished if shard.ends else shard.next_number == shard.count for shard in self.shards
        )

    def drain(self, within_s: float = 240) -> None:
        for relay in self.relays:
            relay.drain.set()
        for relay in self.relays:
            relay.join(within_s)
            assert not relay.is_alive(), f"{relay.shard.shard_id} did not end"

    def expected(self) -> list[str]:
        return sorted(f"{shard.shard_id}:{number}" for shard in self.shards for number in range(shard.count))


def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    """Poll real processes."""
    deadline_s = monotonic_s() + within_s
    while not condition():
        assert monotonic_s() < deadline_s, f"not within {within_s} s"
        pause(0.02)
