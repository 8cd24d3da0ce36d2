"""Every scenario with one seed, then as many more as fit into a while: always the same. `make prove` runs thousands of others."""

from __future__ import annotations

import os
import time  # real time, which bounds the batch

import pytest

from tests.simulator.__main__ import replay_command
from tests.simulator.draws import Sizes
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.scenarios import SCENARIOS, draw_plan

# The figures that decide how long the batch takes, and where it starts. It starts at the same place in each run, so that
# a run judges the change and not its luck: the proof has looked at these seeds, and looks for new ones.
BATCH_S = float(os.environ.get("SIMULATOR_BATCH_S", "20"))
FIRST_SEED = int(os.environ.get("SIMULATOR_FIRST_SEED", "2"))


def run(scenario: str, seed: int) -> Outcome:
    return run_plan(draw_plan(scenario, seed), scenario=scenario, seed=seed)


def explained(outcome: Outcome) -> str:
    return f"{outcome.scenario} seed {outcome.seed}: {outcome.violation}\nreplay: {replay_command(outcome, Sizes())}"


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_a_fixed_seed_ends_without_a_violation(scenario: str, seed: int) -> None:
    outcome = run(scenario, seed)
    assert outcome.violation is None, explained(outcome)
    assert outcome.records > 0
    assert outcome.checkpoints > 0


def test_a_batch_of_seeds_ends_without_a_violation() -> None:
    ends_s = time.perf_counter() + BATCH_S
    seed = FIRST_SEED
    while time.perf_counter() < ends_s:
        scenario = list(SCENARIOS)[seed % len(SCENARIOS)]
        outcome = run(scenario, seed)
        assert outcome.violation is None, f"SIMULATOR_FIRST_SEED={seed}: {explained(outcome)}"
        seed += 1
