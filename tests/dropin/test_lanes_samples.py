"""Eight children for each shard: unmodified sample processors, while lanes are killed and shards split.

What the samples log is the ledger: every record is there, and each key's records came in order.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.dropin.obtain import kclpy, node_repository
from tests.dropin.resharding import QUICK, is_finished, open_shards, split
from tests.process.daemon import Application, Daemon, application, run_daemon, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

LANES: Final = 8
KEYS: Final = 40
PYTHON_RECORD: Final = re.compile(r"Record \(Partition Key: (\S+), Sequence Number: (\d+), ")
NODE_RECORD: Final = re.compile(r"Record: .*, SeqenceNumber: (\d+), PartitionKey:(\S+)$")


@dataclass
class Put:
    """What was written: sequence numbers by key, in order."""

    app: Application
    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict[str, list[int]](list))

    def some(self, times: int) -> None:
        """So many records of each key."""
        for _ in range(times):
            keys = [f"key-{number}" for number in range(KEYS)]
            answer = self.app.kinesis.put_records(
                StreamName=self.app.name, Records=[{"Data": b"a record", "PartitionKey": key} for key in keys]
            )
            for key, result in zip(keys, answer["Records"], strict=True):
                self.numbers[key].append(int(result.get("SequenceNumber", "0")))

    def assert_delivered(self, seen: Iterable[tuple[str, int]]) -> None:
        """Every record, and no key's record for the first time before an earlier one of the same key."""
        first: dict[str, list[int]] = defaultdict(list)
        for key, number in seen:
            if number not in first[key]:
                first[key].append(number)
        assert first == self.numbers


def in_stderr(daemon: Daemon) -> list[tuple[str, int]]:
    """What the sample of amazon_kclpy has said; it ends no line, so each child's words come at its end."""
    said: dict[int, str] = defaultdict(str)
    for event in daemon.named("child_stderr"):
        said[event["pid"]] += event["line"]
    return [(key, int(number)) for text in said.values() for key, number in PYTHON_RECORD.findall(text)]


def in_log(file: Path) -> list[tuple[str, int]]:
    """What the sample for Node has written."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return [(found[2], int(found[1])) for line in lines if (found := NODE_RECORD.search(line))]


def kill_some(daemon: Daemon, shard_id: str, lanes: Iterable[int]) -> None:
    """SIGKILL to the children of these lanes, and wait for others in their place."""
    for lane in lanes:
        started = daemon.wait_for("child_started", shard_id=shard_id, lane=lane)
        os.kill(started["pid"], signal.SIGKILL)
        daemon.wait_for("child_started", times=2, shard_id=shard_id, lane=lane)


def run_through(app: Application, daemon: Daemon, put: Put, before_kill: Callable[[], object]) -> None:
    """Put, kill, put, split, put, kill, split, until all that was put is behind the end of a shard."""
    (root,) = open_shards(app)
    put.some(5)
    before_kill()
    kill_some(daemon, root, (1, 6))
    put.some(5)
    split(app, root, open_then=2)
    put.some(5)
    parents = open_shards(app)
    before_kill()
    kill_some(daemon, parents[0], (3,))
    put.some(5)
    for open_then, parent in enumerate(parents, start=3):
        split(app, parent, open_then=open_then)
    wait_until(lambda: all(is_finished(app, each) for each in (root, *parents)), "all are finished")
    daemon.stop()
    lanes_of_root = {event["lane"] for event in daemon.named("child_started", shard_id=root)}
    assert lanes_of_root == set(range(LANES))


def settings(app: Application) -> dict[str, object]:
    return {**QUICK, "streamName": app.name, "shardConcurrency": LANES, "childRestartBackoffMillis": 100}


def test_the_sample_of_amazon_kclpy_in_lanes(local: Local, tmp_path: Path) -> None:
    folder = kclpy()
    command = f"{sys.executable} {folder / 'samples' / 'sample_kclpy_app.py'}"
    with application(local, tmp_path, "lanes-python", shards=1) as app:
        put = Put(app)
        file = app.write_properties("worker", command, settings(app))
        around = {**local.environment, "PYTHONPATH": str(folder)}
        with run_daemon(tmp_path, "--properties", file, environment=around) as daemon:
            run_through(app, daemon, put, lambda: None)
        put.assert_delivered(in_stderr(daemon))


def test_the_sample_of_node_in_lanes(local: Local, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(node_repository(), repository, symlinks=True)
    command = f"node {repository / 'samples' / 'basic_sample' / 'consumer' / 'sample_kcl_app.js'}"
    log = tmp_path / "application.log"
    with application(local, tmp_path, "lanes-node", shards=1) as app:
        put = Put(app)
        file = app.write_properties("worker", command, settings(app))
        around = {**local.environment, "NODE_LOG_DIR": str(tmp_path)}

        def is_written() -> bool:
            return len(set(in_log(log))) == sum(map(len, put.numbers.values()))

        with run_daemon(tmp_path, "--properties", file, environment=around) as daemon:
            # It writes its log some time after it has answered: what it has not written dies with it.
            run_through(app, daemon, put, lambda: wait_until(is_written, "it is in the log"))
        put.assert_delivered(in_log(log))
