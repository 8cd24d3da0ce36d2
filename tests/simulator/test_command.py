"""`python -m tests.simulator` as people use it."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest
from click.testing import CliRunner, Result

from tests.simulator import fleet
from tests.simulator.__main__ import main
from tests.simulator.scenarios import SCENARIOS

_STANDS_STILL: Final = """
from tests.simulator import __main__, batch, machine

def new_pid(_self):
    while True:
        pass

batch.RUN_MOST_S = 0.5
machine.Machine.new_pid = new_pid
__main__.main(["--scenario", "steady", "--seeds", "1", "--first", "9", "--jobs", "1"])
"""


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_it_sums_up_in_its_last_line() -> None:
    result = command("--scenario", "steady", "--seeds", "2", "--first", "5")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].startswith("seeds 2  runs 2  virtual hours 0.")
    assert result.output.splitlines()[-1].endswith("violations 0")


def test_it_lists_the_scenarios() -> None:
    result = command("--list")
    assert [line.split()[0] for line in result.output.splitlines()] == list(SCENARIOS)


def test_it_prints_what_happens() -> None:
    result = command("--scenario", "steady", "--seeds", "1", "--trace", "--workers", "1", "--shards", "1")
    assert "worker_started" in result.output
    assert "delivered" in result.output


def test_it_refuses_a_scenario_that_it_does_not_have() -> None:
    result = command("--scenario", "no-such-thing")
    assert result.exit_code == 2
    assert "--list shows them" in result.output


def test_a_violation_is_printed_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> object:
        raise RuntimeError("planned")

    monkeypatch.setattr(fleet, "build", build)
    result = command(
        "--scenario", "steady", "--seeds", "1", "--first", "9", "--shards", "2", "--seconds", "90"
    )
    assert result.exit_code == 1
    first, replay, last = result.output.splitlines()
    assert first.startswith("steady seed 9: worker_failed at 0.000 s: worker-1: RuntimeError('planned') in ")
    assert replay.strip() == (
        "replay: python -m tests.simulator --scenario steady --seeds 1 --first 9 --seconds 90 --shards 2 --trace"
    )
    assert last.endswith("violations 1")


def test_a_run_without_an_end_is_named_with_the_place_where_it_stands_still() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STANDS_STILL], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == "steady seed 9: no end after 0.5 s of CPU time\n"
    assert "in new_pid" in ended.stderr
