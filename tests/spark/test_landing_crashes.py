"""The Spark driver is killed at each point of a batch, with its JVM; after all kills each record is in each sink once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from kcl_local.demo.spark import logged_files, rows_of
from tests.spark.daemon import ROOT, wait_for
from tests.spark.landed import Landed

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]
WITHIN_S = 240
SEGMENTS = 40


class Driver:
    def __init__(self, folder: Path, point: str = "-", path: str = "") -> None:
        environment = {**os.environ, "KCL_TEST_OUT": str(folder / "out")}
        if path:
            environment["PATH"] = f"{path}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.doomed_driver", str(folder), point],
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def killed_itself(self) -> bool:
        return self.process.wait(WITHIN_S) == -signal.SIGKILL


def held_commit(folder: Path, query: str) -> tuple[str, Callable[[], bool]]:
    """A PATH on which Spark stands when it writes a query's commit log: its local file system runs `chmod` for each file."""
    program, held = folder / "bin" / "chmod", folder / f"held-{query}"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f'#!/bin/sh\ncase "$*" in */state/{query}/commits/*) touch {held}; exec sleep 600 ;; esac\n'
        f'exec {shutil.which("chmod")} "$@"\n'
    )
    program.chmod(0o755)
    return str(program.parent), held.exists


def kill_before_commit(folder: Path, query: str) -> None:
    path, stands = held_commit(folder, query)
    driver = Driver(folder, path=path)
    wait_for(lambda: stands() or driver.process.poll() is not None, WITHIN_S)
    assert driver.process.poll() is None, "no commit was left"
    driver.kill()


def assert_each_record_is_there_once(folder: Path, expected: list[str]) -> None:
    out = folder / "out"
    once = Counter(expected)
    files = Counter(row["text"] for row in rows_of(logged_files(out / "files" / "_spark_metadata")))
    assert files == once
    batches = ds.dataset(out / "batches", format="parquet").to_table(columns=["text"])["text"].to_pylist()
    assert Counter(batches) == once


def test_a_driver_that_is_killed_at_each_point_of_a_batch_lands_each_record_once(tmp_path: Path) -> None:
    log = Landed(tmp_path / "log")
    for number in range(SEGMENTS):
        for shard in (0, 1):
            log.add(shard, rows=50, at_s=number)
    log.end(0, [2])
    log.add(2, rows=50, at_s=SEGMENTS)
    for point in ("before-sink:1", "after-sink:1", "before-sink:3", "after-sink:2"):
        assert Driver(tmp_path, point).killed_itself(), point
    for query in ("files", "batches"):
        kill_before_commit(tmp_path, query)
    driver = Driver(tmp_path)
    assert driver.process.wait(WITHIN_S) == 0
    assert_each_record_is_there_once(tmp_path, log.data(0, 1, 2))
