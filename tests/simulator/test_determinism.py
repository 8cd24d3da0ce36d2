"""The same seed gives the same run: in one process, and in two that hash strings differently."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulator.plans.draws import Sizes
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.all import SCENARIOS, draw_plan

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.all import draw_plan
for name in sys.argv[1:]:
    print(name, run_plan(draw_plan(name, 3), scenario=name, seed=3).digest)
"""
NAMES = ("everything", "worker_stopped", "mixed_fleet")
MORE_NAMES = (*NAMES, "reshard_killed", "bootstrap_killed", "streams_by_hundreds")


def digest(scenario: str, seed: int) -> str:
    return run_plan(draw_plan(scenario, seed), scenario=scenario, seed=seed).digest


def digests_with_hash_seed(hash_seed: int, names: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
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


@pytest.mark.parametrize("names", [NAMES, pytest.param(MORE_NAMES, marks=pytest.mark.prove)], ids=len)
def test_runs_do_not_depend_on_how_strings_are_hashed(names: Sequence[str]) -> None:
    here = "".join(f"{name} {digest(name, 3)}\n" for name in names)  # hashed as this process does it
    assert digests_with_hash_seed(1, names) == here


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_a_plan_is_the_same_each_time_and_obeys_what_a_person_sets(scenario: str) -> None:
    sizes = Sizes(workers=3, shards=7, seconds=1000.0)
    plan = draw_plan(scenario, 5, sizes)
    assert plan == draw_plan(scenario, 5, sizes)
    assert plan.shards == 7
    assert plan.ends_at_s >= 1000.0
    assert plan.calm_at_s < plan.ends_at_s
