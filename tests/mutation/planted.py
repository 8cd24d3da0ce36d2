"""`python -m tests.mutation.planted NAME`: plants a fault of `planted.toml`, and looks whether it is noticed as the table says.

Such a fault is one that a careful person could make, and each would lose records, give them twice or tell something untrue. The table
says for each of them what notices it: a test that must fail, or a run of the simulator that must end in a violation.
Other tests may be named after NAME: then they are run, to find who notices.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.house.files import ROOT
from tests.mutation.loading import FaultyFinder

LIST: Final = Path(__file__).with_name("planted.toml")
_OPTIONS: Final = (
    "-q",
    "-x",
    "--no-header",
    "--tb=line",
    "-m",
    "",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, and what notices it: a test, or the run of a scenario with a seed.

    Args:
        name: of a word or a few, with dashes.
        of: the capability that it breaks.
        fault: what is wrong.
        file: of the source.
        text: in it, once.
        becomes: the same with the fault.
        test: that fails, as pytest names it.
        violation: in which the run ends.
        reader: whether a reader of the source planted it first.
    """

    name: str
    of: str
    fault: str
    file: str
    text: str
    becomes: str
    test: str = ""
    scenario: str = ""
    seed: int = 0
    violation: str = ""
    reader: bool = False

    @property
    def module(self) -> str:
        """Packages are two folders deep, or three among the clients."""
        names = self.file.removesuffix(".py").removesuffix("/__init__").split("/")
        return ".".join(names[2 if names[0] == "clients" else 1 :])

    @property
    def source(self) -> str:
        return (ROOT / self.file).read_text("utf-8")


def planted() -> list[Planted]:
    return msgspec.convert(tomllib.loads(LIST.read_text("utf-8"))["planted"], type=list[Planted])


def main(name: str, *tests: str) -> int:
    """0: it is noticed as the table says."""
    fault = next(each for each in planted() if each.name == name)
    assert fault.module not in sys.modules, "it is loaded already"
    text = fault.source.replace(fault.text, fault.becomes)
    sys.meta_path.insert(0, FaultyFinder(fault.module, str(ROOT / fault.file), text))
    is_noticed = _ends_in_violation(fault) if fault.scenario and not tests else _fails(tests or (fault.test,))
    assert fault.module in sys.modules, f"nothing has loaded {fault.module}"
    return 0 if is_noticed else 1


def _fails(tests: Sequence[str]) -> bool:
    """A test that is not found, or cannot be loaded, has not failed."""
    return pytest.main([*_OPTIONS, *tests]) == pytest.ExitCode.TESTS_FAILED


def _ends_in_violation(fault: Planted) -> bool:
    from tests.simulator.runner import run_plan  # it loads the source
    from tests.simulator.scenarios.all import draw_plan

    plan = draw_plan(fault.scenario, fault.seed)
    found = run_plan(plan, scenario=fault.scenario, seed=fault.seed).violation
    print(found)  # noqa: T201 - for who looks for a seed
    return found is not None and found.name == fault.violation


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
