"""The lander as a program: several processes, refusals, its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.landing.daemon import ShardOfDaemon, given
from tests.landing.landers import Landed, LanderProgram, LanderThread, options, until
from tests.landing.memory_store import MemoryStore


def test_it_says_that_it_is_ready_reports_figures_and_stops(tmp_path: Path) -> None:
    chosen = options(tmp_path, window_ms=100)
    with LanderProgram(chosen) as program, ShardOfDaemon(program.socket) as daemon:
        program.wait_for("lander_ready")
        daemon.initialize()
        daemon.give(given(1, 10))
        daemon.give(given(5, 12))
        until(
            lambda: any(
                each["shards"].get(daemon.shard, {}).get("rows") == 12
                for each in program.named("landing_figures")
            )
        )
        figures = program.named("landing_figures")[-1]
        shard = figures["shards"][daemon.shard]
        assert figures["trouble"] is None
        assert (shard["rows"], shard["number"], shard["redelivered"]) == (12, shard["segments"] - 1, 6)
        assert (shard["waiting_rows"], shard["waiting_bytes"], shard["lag_s"]) == (0, 0, 0)
        assert shard["size_bytes"] > 0
        assert shard["landed_ms"] > 1_700_000_000_000
        assert program.stop() == 0
    assert not Path(chosen.socket).exists()


def test_another_applications_log_is_refused(tmp_path: Path) -> None:
    with LanderThread(options(tmp_path)) as lander:
        lander.wait_for("lander_ready")
    with LanderProgram(options(tmp_path, application="other")) as program:
        refused = program.wait_for("landing_refused")
        assert program.process.wait(30) == 78
        assert "applicationName = app" in refused["error"]


def test_a_store_without_conditional_creation_is_refused(tmp_path: Path) -> None:
    lander = LanderThread(options(tmp_path), MemoryStore(conditional=False))
    with pytest.raises(Exception, match="create") as raised, lander:
        until(lambda: lander.error is not None)
    assert type(raised.value).__name__ == "NotConditional"


def others(program: LanderProgram) -> list[psutil.Process]:
    return psutil.Process(program.process.pid).children()


def test_several_processes_take_the_shards_and_one_that_is_killed_comes_back(tmp_path: Path) -> None:
    chosen, shards = options(tmp_path, processes=3, window_ms=100), 12
    with LanderProgram(chosen) as program:
        program.wait_for("lander_ready")
        until(lambda: len(others(program)) == 2)
        daemons = [ShardOfDaemon(program.socket, f"shardId-{number:012d}") for number in range(shards)]
        for daemon in daemons:
            daemon.initialize()
            daemon.give(given(1, 5))
            daemon.shut_down()
        until(lambda: len(program.named("landing_figures")[-1]["shards"]) == shards)
        for daemon in daemons:
            daemon.close()
        killed = others(program)[0]
        os.kill(killed.pid, signal.SIGKILL)
        assert program.wait_for("lander_process_ended")["code"] == -signal.SIGKILL
        until(lambda: len(others(program)) == 2 and killed not in others(program))
        for number in range(shards):
            with ShardOfDaemon(program.socket, f"shardId-{number:012d}", checkpoint=(5, 0)) as daemon:
                assert daemon.initialize() == (5, 0)
        running = others(program)
        assert program.stop() == 0
        assert not any(each.is_running() for each in running)
    for number in range(shards):
        assert Landed.at(chosen, f"shardId-{number:012d}").numbers() == [1, 2, 3, 4, 5]


def test_the_others_end_with_the_first(tmp_path: Path) -> None:
    with LanderProgram(options(tmp_path, processes=2)) as program:
        program.wait_for("lander_ready")
        until(lambda: len(others(program)) == 1)
        (other,) = others(program)
        program.process.kill()
        until(lambda: not other.is_running() or other.status() == psutil.STATUS_ZOMBIE)
