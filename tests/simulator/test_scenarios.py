"""Every scenario with a fixed seed, then as many new seeds as fit into a while. `make prove` runs thousands."""

from __future__ import annotations

import os
import time  # real time, which bounds the random batch

import pytest

from tests.simulator.batch import replay_command
from tests.simulator.plans.draws import Sizes
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.scenarios.all import LONG, SCENARIOS, draw_plan

# The figures that decide how long the random batch takes, and where it starts: a new place each day, so that seeds are tried
# that nobody chose, and the same place all day, so that a failure can be seen again.
BATCH_S = float(os.environ.get("SIMULATOR_BATCH_S", "4"))
FIRST_SEED = int(os.environ.get("SIMULATOR_FIRST_SEED", time.time_ns() // 86_400_000_000_000 * 1_000))
SHORT = [name for name in SCENARIOS if name not in LONG]
EACH = [pytest.param(name, marks=[pytest.mark.prove] if name in LONG else []) for name in SCENARIOS]


def run(scenario: str, seed: int) -> Outcome:
    return run_plan(draw_plan(scenario, seed), scenario=scenario, seed=seed)


def explained(outcome: Outcome) -> str:
    return f"{outcome.scenario} seed {outcome.seed}: {outcome.violation}\nreplay: {replay_command(outcome, Sizes())}"


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("scenario", EACH)
def test_a_fixed_seed_ends_without_a_violation(scenario: str, seed: int) -> None:
    outcome = run(scenario, seed)
    assert outcome.violation is None, explained(outcome)
    assert outcome.records > 0
    assert outcome.checkpoints > 0


def test_a_batch_of_new_seeds_ends_without_a_violation() -> None:
    ends_s = time.perf_counter() + BATCH_S
    seed = FIRST_SEED
    while time.perf_counter() < ends_s:
        scenario = SHORT[seed % len(SHORT)]
        outcome = run(scenario, seed)
        assert outcome.violation is None, f"SIMULATOR_FIRST_SEED={seed}: {explained(outcome)}"
        seed += 1
