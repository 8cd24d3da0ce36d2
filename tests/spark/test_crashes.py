"""The engine is killed at named points, and started again: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.spark.crashes import POINTS, Account, finish, kill_at, stage


@pytest.mark.prove
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_loses_nothing_and_repeats_nothing(point: str, tmp_path: Path) -> None:
    with stage(tmp_path) as daemon:
        kill_at(daemon, point)
        accounts = finish(daemon)
    sys.stdout.write(f"{point}: {accounts}\n")  # with -s: the table of the suite
    assert accounts == {"files": Account(0, 0), "batches": Account(0, 0)}


@pytest.mark.prove  # every day `test_session` kills one within a batch
@pytest.mark.timeout(900)
def test_a_kill_between_sink_and_log_with_the_spool_gone_loses_nothing(tmp_path: Path) -> None:
    with stage(tmp_path, records=3_000) as daemon:
        kill_at(daemon, "spool_deleted")
        assert finish(daemon) == {"files": Account(0, 0), "batches": Account(0, 0)}
