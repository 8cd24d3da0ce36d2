"""Every folder of tests is run: the lists of the Makefile, the table of CONTRIBUTING.md and the disk say the same."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.house.files import ROOT, tracked

ELSEWHERE: Final = {"tests/peers": "peers"}
"""What `make test` leaves out, and the target that runs it."""


def makefile() -> str:
    return (ROOT / "Makefile").read_text("utf-8")


def tiers_on_disk() -> set[str]:
    tests = [path.relative_to(ROOT) for path in tracked() if path.match("test_*.py")]
    return {"/".join(path.parts[:2]) for path in tests if path.parts[0] == "tests"}


def listed(name: str) -> list[str]:
    found = re.search(rf"^{name} := (.+)$", makefile(), re.MULTILINE)
    assert found is not None, f"the Makefile has no {name}"
    return found[1].split()


def test_make_test_runs_each_folder_of_tests_once() -> None:
    run = [*listed("COMPUTING"), *listed("WAITING")]
    assert sorted(run) == sorted(tiers_on_disk() - ELSEWHERE.keys()), (
        "put the folder into COMPUTING or WAITING of the Makefile, or, if make test is to leave it out, into ELSEWHERE here"
    )


@pytest.mark.parametrize(("folder", "target"), ELSEWHERE.items())
def test_a_folder_that_make_test_leaves_out_has_its_own_make_target(folder: str, target: str) -> None:
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile(), re.MULTILINE)
    assert recipe is not None
    assert folder in recipe[1]


def test_contributing_names_each_folder_that_make_test_runs_with_its_budget() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| `(tests/\w+)/` \|.*\| \d+ \|$", text, re.MULTILINE)
    assert sorted(rows) == sorted(tiers_on_disk() - ELSEWHERE.keys())
