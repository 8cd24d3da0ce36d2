"""`python -m tests.simulator` as people use it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from tests.simulator.__main__ import main, tasks_of
from tests.simulator.fleet import workers as fleet
from tests.simulator.scenarios.all import LONG, SCENARIOS

_STANDS_STILL: Final = """
from tests.simulator import __main__, batch
from tests.simulator.fleet import machine

def new_pid(_self):
    while True:
        pass

batch.STANDS_MOST_S = 0.5
machine.Machine.new_pid = new_pid
__main__.main(["--scenario", "steady", "--seeds", "1", "--first", "9", "--jobs", "1"])
"""
_TAKES_LONG: Final = """
from tests.simulator import __main__, batch

batch.STANDS_MOST_S = 0.5
__main__.main(["--scenario", "steady", "--seeds", "1", "--first", "9", "--jobs", "1", "--seconds", "300"])
"""
_STANDS_STILL_FOR_HOURS: Final = _STANDS_STILL.replace('"--seeds", "1"', '"--hours", "0.0003"')
_FAILS_FOR_HOURS: Final = """
from tests.simulator import __main__
from tests.simulator.fleet import workers as fleet

def build(*_):
    raise RuntimeError("planned")

fleet.build = build
__main__.main(["--scenario", "steady", "--hours", "0.0001", "--jobs", "1"])
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


def test_a_long_scenario_is_played_with_every_tenth_seed_unless_it_is_alone() -> None:
    assert SCENARIOS.keys() >= LONG
    (name, *_) = LONG
    assert tasks_of(["steady", name], 5, 11) == [
        (each, seed)
        for seed in range(5, 16)
        for each in ("steady", name)
        if each == "steady" or seed in {5, 15}
    ]
    assert tasks_of([name], 5, 3) == [(name, 5), (name, 6), (name, 7)]


def test_it_runs_for_a_time_and_writes_what_it_did(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ("--scenario", "worker_killed", "--first", "3", "--jobs", "1", "--json", str(file))
    result = command("--hours", "0.0002", *words)
    assert result.exit_code == 0
    last = result.output.splitlines()[-1]
    assert last.startswith("first seed 3  hours 0.00  runs ")
    assert last.endswith("violations 0")
    figures = json.loads(file.read_text())
    assert figures["runs"] == figures["runs_by_scenario"]["worker_killed"] > 0
    assert figures["records"] > figures["checkpoints"] > 0
    assert figures["faults"]["worker killed"] > 0
    assert figures["points"]["after-checkpoint-write"]["visits"] > 0
    assert figures["violations"] == []


def test_figures_of_hours_need_hours(tmp_path: Path) -> None:
    assert command("--json", str(tmp_path / "figures.json")).exit_code == 2


def test_a_violation_in_hours_is_named_with_its_command_at_the_end() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FAILS_FOR_HOURS], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1, ended.stderr
    *_, what, replay, last = ended.stdout.splitlines()
    assert what.startswith("steady seed ")
    assert "RuntimeError('planned')" in what
    assert replay.strip().startswith("replay: python -m tests.simulator --scenario steady --seeds 1 --first ")
    assert not last.endswith("violations 0")


def test_interrupted_hours_end_with_the_sum_so_far() -> None:
    words = [sys.executable, "-m", "tests.simulator", "--hours", "1", "--scenario", "steady", "--jobs", "1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert re.fullmatch(r"1 hours from seed (\d+): --first \1 begins with the same\n", first)
    second = process.stderr.readline()  # the first run has ended
    assert second.startswith("0 min: runs "), second
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "interrupted" in errors
    assert re.search(r"runs [1-9]\d* .* violations 0$", output.splitlines()[-1])


def test_hours_go_on_after_a_run_without_an_end() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STANDS_STILL_FOR_HOURS],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1
    assert "steady seed 9: process_ended at 0.000 s: " in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("first seed 9 ")


def test_a_run_that_takes_long_is_not_ended_while_virtual_time_goes_on() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _TAKES_LONG], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.splitlines()[-1].endswith("violations 0")


def test_a_run_without_an_end_is_named_with_the_place_where_it_stands_still() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _STANDS_STILL], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert re.fullmatch(
        r"steady seed 9: virtual time stands at [\d.]+ s after 0.5 s of CPU time\n", ended.stdout
    )
    assert "in new_pid" in ended.stderr
