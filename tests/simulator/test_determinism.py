"""The same seed gives the same run: in one process, and in two that hash strings differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.draws import Sizes
from tests.simulator.runner import run_plan
from tests.simulator.scenarios import SCENARIOS, draw_plan

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.simulator.runner import run_plan
from tests.simulator.scenarios import draw_plan
for name in sys.argv[1:]:
    print(name, run_plan(draw_plan(name, 3), scenario=name, seed=3).digest)
"""
NAMES = ("everything", "reshard_killed", "worker_stopped", "bootstrap_killed", "mixed_fleet")


def digest(scenario: str, seed: int) -> str:
    return run_plan(draw_plan(scenario, seed), scenario=scenario, seed=seed).digest


def digests_with_hash_seed(hash_seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *NAMES],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_seed_gives_the_same_run() -> None:
    assert digest("everything", 11) == digest("everything", 11)


def test_another_seed_gives_another_run() -> None:
    assert digest("steady", 11) != digest("steady", 12)


def test_runs_do_not_depend_on_how_strings_are_hashed() -> None:
    assert digests_with_hash_seed(1) == digests_with_hash_seed(2)


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_a_plan_is_the_same_each_time_and_obeys_what_a_person_sets(scenario: str) -> None:
    sizes = Sizes(workers=3, shards=7, seconds=1000.0)
    plan = draw_plan(scenario, 5, sizes)
    assert plan == draw_plan(scenario, 5, sizes)
    assert plan.shards == 7
    assert plan.ends_at_s >= 1000.0
    assert plan.calm_at_s < plan.ends_at_s
