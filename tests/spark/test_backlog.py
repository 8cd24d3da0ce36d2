"""Windows over a backlog: an hour of event time that is read at once, by a real daemon from local endpoints.

The producer writes in the order of the records' own time, as fast as it can: the shards' arrival times differ by seconds
where the event times span an hour. Whatever a batch takes from one shard before another's older records is dropped by
Spark as late, so that the count tells whether all shards ended each batch at the same time.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import anyio
import pytest

from kcl_local.demo.processes import Processes
from kcl_local.demo.stage import Stage, stage
from kcl_local.demo.text import Line
from tests.spark.hosts import batches, until, windows

RECORDS = 36_000
SPAN_MS = 3_600_000
BASE_MS = 1_735_689_600_000
KEYS = 40
MIB = 1024**2
WITHIN_S = 400

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Backlog:
    """One case.

    Args:
        shards: at the beginning.
        hot: of 100 records, so many have one key.
        batch_bytes: `sparkMaxBytesPerTrigger`.
        record_bytes: of each record's data.
        reshards: whether shards are split and merged in the middle.
    """

    shards: int
    hot: int
    batch_bytes: int
    record_bytes: int = 1_000
    reshards: bool = False


def lines(case: Backlog, first: int, last: int) -> list[Line]:
    return [
        Line(
            "hot" if number * 37 % 100 < case.hot else f"key-{number % KEYS}",
            f"{BASE_MS + number * SPAN_MS // RECORDS}|".ljust(case.record_bytes, "x").encode(),
        )
        for number in range(first, last)
    ]


async def write(set_up: Stage, case: Backlog) -> None:
    producer, step = set_up.producer(), RECORDS // 4
    for part in range(4):
        for first in range(part * step, (part + 1) * step, 100):
            await producer.put(lines(case, first, first + 100))
        if case.reshards and part < 3:
            await (set_up.stream.merge() if part == 1 else set_up.stream.split())


def properties_of(set_up: Stage, case: Backlog, more: dict[str, str]) -> Path:
    properties = set_up.write_properties(
        "worker",
        {
            "sparkPipeline": "jobs:minutes",
            "sparkTrigger": "availableNow",
            "sparkMaster": "local[2]",
            "sparkDriverMemory": "600m",
            "sparkMaxBytesPerTrigger": str(case.batch_bytes),
            "sparkStateDir": str(set_up.directory / "state"),
            "sparkConf.spark.ui.enabled": "false",
            "sparkConf.spark.sql.shuffle.partitions": "2",
            "sparkConf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            **more,
        },
    )
    kept = [line for line in properties.read_text().splitlines() if not line.startswith("executableName")]
    properties.write_text("\n".join(kept))
    return properties


async def counted(folder: Path, case: Backlog, more: dict[str, str] | None = None) -> tuple[int, int, str]:
    """Play a case: the records in the windows, the batches that Spark made, the daemon's log."""
    shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
    async with stage(folder, Processes(), shards=case.shards) as set_up:
        await write(set_up, case)
        async with set_up.daemon(properties_of(set_up, case, more or {})) as daemon:
            with anyio.fail_after(WITHIN_S):
                code = await daemon.wait()
        log = daemon.log.read_text()
        assert code == 0, log[-5_000:]
    out = folder / "out" / "minutes"
    return sum(windows(out).values()), len({number for number, _ in batches(out)}), log


@pytest.mark.prove  # every day `test_session` counts windows, over a reshard
async def test_windows_count_a_skewed_backlog_whole(tmp_path: Path) -> None:
    case = Backlog(shards=4, hot=70, batch_bytes=MIB, record_bytes=400)
    total, made, log = await counted(tmp_path, case)
    assert (total, made > 4) == (RECORDS, True)  # in few batches it proves nothing
    assert "spark_rows_late" not in log


# Every two values are played together, and every three of keys, batch and reshards. KCL_BACKLOGS=all plays all 32 cases.
FEW = [
    (1, 0, 8 * MIB, False), (1, 70, 64 * MIB, True),
    (2, 0, 8 * MIB, True), (2, 70, 64 * MIB, False),
    (4, 0, 64 * MIB, False), (4, 70, 8 * MIB, True),
    (8, 0, 64 * MIB, True), (8, 70, 8 * MIB, False),
]  # fmt: skip
ALL = list(product((1, 2, 4, 8), (0, 70), (8 * MIB, 64 * MIB), (False, True)))
CASES = ALL if os.environ.get("KCL_BACKLOGS") == "all" else FEW


@pytest.mark.prove
@pytest.mark.parametrize(("shards", "hot", "batch_bytes", "reshards"), CASES)
async def test_windows_count_every_backlog_whole(
    tmp_path: Path, shards: int, hot: int, batch_bytes: int, reshards: bool
) -> None:
    case = Backlog(shards, hot, batch_bytes, reshards=reshards)
    assert (await counted(tmp_path, case))[0] == RECORDS


@pytest.mark.prove
async def test_a_stop_in_a_backlog_with_a_closed_shard_lets_no_shard_run_ahead(tmp_path: Path) -> None:
    """All is in the spool, and one shard has ended: it may not go on alone while the others are given back."""
    case = Backlog(shards=2, hot=0, batch_bytes=MIB // 2, record_bytes=400)
    shutil.copy(Path(__file__).with_name("jobs.py"), tmp_path / "jobs.py")
    commits = tmp_path / "state" / "queries" / "minutes" / "commits"
    async with stage(tmp_path, Processes(), shards=case.shards) as set_up:
        await write(set_up, case)
        await set_up.stream.split()
        endless = properties_of(set_up, case, {"sparkTrigger": "0 seconds"})
        async with set_up.daemon(endless, "the first run") as first:
            await until((commits / "2").exists, WITHIN_S, first.log)
            assert await first.stop() == 0, first.log.read_text()[-5_000:]
        log = first.log.read_text()
        stopped_at = windows(tmp_path / "out" / "minutes")
        async with set_up.daemon(properties_of(set_up, case, {}), "the second run") as second:
            with anyio.fail_after(WITHIN_S):
                assert await second.wait() == 0, second.log.read_text()[-5_000:]
    assert sum(stopped_at.values()) < RECORDS  # else it proves nothing
    assert "child_failed" not in log
    assert "child_overran" not in log
    assert sum(windows(tmp_path / "out" / "minutes").values()) == RECORDS
    assert "spark_rows_late" not in log + second.log.read_text()
