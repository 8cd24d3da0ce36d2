"""Each fault of `tests/mutation/planted.toml` is planted, and noticed as that says. Each in a process of its own, as it must be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.files import ROOT
from tests.mutation.planted import planted

FAULTS = planted()


@pytest.mark.prove
@pytest.mark.parametrize("name", [each.name for each in FAULTS])
def test_a_planted_fault_is_noticed(name: str) -> None:
    command = (sys.executable, "-m", "tests.mutation.planted", name)
    found = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, f"{name} is not noticed:\n{found.stdout[-2_000:]}{found.stderr[-2_000:]}"
