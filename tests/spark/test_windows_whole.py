"""Real daemons land, an own Spark counts by windows, hosts are lost in each way: no record is missing from its window.

The delay of the watermark is the documented one, and the ledger is the stream itself, read once more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kcl_local.demo.check import monotonic_s
from kcl_local.demo.processes import Processes, RunningProcess, environment
from kcl_local.demo.stage import Stage, stage
from kcl_local.demo.stream import in_thread, properties_text
from kcl_local.demo.text import DemoError, Line
from tests.spark.hosts import owners, until
from tests.spark.windowed import WINDOW_S

ROOT = Path(__file__).parents[2]
OF_4_0 = Path(os.environ.get("KCL_SPARK40", ROOT / "build" / "spark40"))
PYTHONPATH = os.pathsep.join(
    str(ROOT / each) for each in ("", "clients/pyspark", "clients/landing", "protocol", "daemon")
)
WITHIN_S = 500
FAULT_AT_S = 20.0
LASTS_S = 75.0
AWAY_S = 30.0
LANDING_WINDOW_MS = 5_000
DELAY_S = 2 * LANDING_WINDOW_MS // 1000 + 5
PER_S = 100

pytestmark = [pytest.mark.anyio, pytest.mark.prove, pytest.mark.timeout(1800)]

Counted = dict[tuple[int, int], tuple[int, int]]
"""Records of a window and key, and the sum of their numbers."""


@dataclass
class Host:
    name: str
    daemon: RunningProcess
    log: Path

    def signal_all(self, number: signal.Signals) -> None:
        """The daemon, its lander and its relays, as when the machine does it."""
        for pid in (*self.daemon.descendants(), self.daemon.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass
class Proof:
    set_up: Stage
    folder: Path
    hosts: list[Host] = field(default_factory=list)
    written: int = 0
    stopped: bool = False

    def properties(self, name: str) -> Path:
        landing = self.folder / f"store-of-{name}"
        landing.symlink_to(self.folder / "log", target_is_directory=True)
        own = {"streamName": self.set_up.stream.name, "applicationName": "demo-word-count", "workerId": name}
        more = {
            "landing": str(landing),
            "landingWindowMillis": str(LANDING_WINDOW_MS),
            "retrievalMode": "POLLING",
        }
        path = self.folder / f"{name}.properties"
        path.write_text(properties_text(self.set_up.urls, own, more), "ascii")
        return path

    async def write(self) -> None:
        """Numbers at a steady pace, until it is stopped."""
        producer, began_s = self.set_up.producer(), monotonic_s()
        while not self.stopped:
            due = int((monotonic_s() - began_s) * PER_S) - self.written
            lines = [
                Line(f"key-{number % 40}", str(number).encode())
                for number in range(self.written, self.written + min(due, 200))
            ]
            if lines:
                await producer.put(lines)
                self.written += len(lines)
            await anyio.sleep(0.1)

    async def computed(self) -> Counted:
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for shard in await self.set_up.stream.shards():
            for arrived_s, number in await in_thread(_records, self.set_up, shard.shard_id):
                found[int(arrived_s) // WINDOW_S * WINDOW_S, number % 4].append(number)
        return {key: (len(numbers), sum(numbers)) for key, numbers in found.items()}

    def counted(self) -> Counted:
        rows = [row for path in (self.folder / "out").glob("*.json") for row in json.loads(path.read_text())]
        found = {(row["start"], row["k"]): (row["n"], row["sum"]) for row in rows}
        assert len(found) == len(rows), "a window comes once"
        return found

    def progress(self) -> list[Any]:
        path = self.folder / "progress.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _records(set_up: Stage, shard_id: str) -> Iterator[tuple[float, int]]:
    client, found = set_up.stream.client, list[tuple[float, int]]()
    iterator: str | None = client.get_shard_iterator(
        StreamName=set_up.stream.name, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    while iterator:
        page = client.get_records(ShardIterator=iterator)
        for each in page["Records"]:
            arrived = each.get("ApproximateArrivalTimestamp")
            assert arrived is not None
            found.append((arrived.timestamp(), int(each["Data"])))
        at_tip = not page["Records"] and page.get("MillisBehindLatest") == 0
        iterator = None if at_tip else page.get("NextShardIterator")
    return iter(found)


async def are_at_work(set_up: Stage, workers: set[str]) -> bool:
    try:
        return set((await owners(set_up)).values()) == workers
    except DemoError:  # there is no table yet
        return False


async def killed(proof: Proof) -> None:
    proof.hosts[0].signal_all(signal.SIGKILL)


async def frozen(proof: Proof) -> None:
    proof.hosts[0].signal_all(signal.SIGSTOP)
    await anyio.sleep(AWAY_S)
    proof.hosts[0].signal_all(signal.SIGCONT)


async def without_its_store(proof: Proof) -> None:
    place, nothing = proof.folder / f"store-of-{proof.hosts[0].name}", proof.folder / "nothing"
    nothing.write_text("no folder")
    for target in (nothing, proof.folder / "log"):
        other = place.with_suffix(".new")
        other.symlink_to(target)
        other.replace(place)
        await anyio.sleep(AWAY_S if target is nothing else 0)


async def stopped(proof: Proof) -> None:
    assert await proof.hosts[0].daemon.stop() == 0


async def resharded(proof: Proof) -> None:
    assert await proof.set_up.stream.split() is not None
    await anyio.sleep(5)
    assert await proof.set_up.stream.merge() is not None
    proof.hosts[0].signal_all(signal.SIGKILL)


Fault = Callable[[Proof], Coroutine[object, object, None]]


@pytest.mark.parametrize("fault", [killed, frozen, without_its_store, stopped, resharded])
async def test_no_record_is_missing_from_its_window(fault: Fault, tmp_path: Path) -> None:
    await play(fault, tmp_path, sys.executable)


@pytest.mark.parametrize("fault", [killed, resharded])
async def test_no_record_is_missing_with_the_oldest_spark_that_has_the_source(
    fault: Fault, tmp_path: Path
) -> None:
    if os.environ.get("KCL_TESTS_OFFLINE") == "1":
        pytest.skip("not run: it needs a Spark 4.0 from the package index")
    python = OF_4_0 / "bin" / "python"
    assert python.exists(), f"there is no {python}: run make build/spark40.stamp, or set KCL_SPARK40"
    await play(fault, tmp_path, str(python))


async def play(fault: Fault, tmp_path: Path, python: str) -> None:
    """`python`: of the environment that has the Spark."""
    last = 0, 0
    (tmp_path / "log").mkdir()
    (tmp_path / "out").mkdir()
    options = tmp_path / "driver.json"
    said = {
        "landing": str(tmp_path / "log"),
        "out": str(tmp_path / "out"),
        "state": str(tmp_path / "state"),
        "progress": str(tmp_path / "progress.jsonl"),
        "delay": f"{DELAY_S} seconds",
    }
    options.write_text(json.dumps(said))
    async with stage(tmp_path, Processes(), shards=4) as set_up:
        proof = Proof(set_up, tmp_path)
        async with (
            set_up.daemon(one := proof.properties("one"), "one") as first,
            set_up.daemon(two := proof.properties("two"), "two") as second,
        ):
            proof.hosts = [Host("one", first, one), Host("two", second, two)]
            logs = [each.with_suffix(".log") for each in (one, two, options)]
            await until(partial(are_at_work, set_up, {"one", "two"}), WITHIN_S, *logs[:2])
            async with (
                set_up.processes.daemon(
                    "the Spark driver",
                    options,
                    set_up.ledgers,
                    program=(python, "-m", "tests.spark.windowed"),
                    base={**environment(), "PYTHONPATH": PYTHONPATH},
                ),
                anyio.create_task_group() as writing,
            ):
                writing.start_soon(proof.write)
                await until(proof.counted, WITHIN_S, *logs)
                await anyio.sleep(FAULT_AT_S)
                writing.start_soon(fault, proof)
                await anyio.sleep(LASTS_S)
                last = max(await proof.computed())
                # More records come, so that the watermark passes the windows up to here.
                await until(lambda: any(each > last for each in proof.counted()), WITHIN_S, *logs)
                proof.stopped = True
            expected, found = await proof.computed(), proof.counted()
    assert sum(number for number, _ in expected.values()) == proof.written
    wrong = {
        key: (found.get(key), value)
        for key, value in expected.items()
        if key <= last and found.get(key) != value
    }
    missing = sum(value[0] - (had or (0, 0))[0] for had, value in wrong.values())
    assert not wrong, f"{missing} of {proof.written} records are missing: {wrong}"
