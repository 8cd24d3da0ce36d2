"""The fault points of the daemon's code: named once each, all known to the simulator or to a unit test, and empty."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TypeGuard

from tests.house.files import ROOT, content, tree
from tests.simulator.plans.point_draws import BASES, ELSEWHERE
from tests.simulator.scenarios.all import SCENARIOS

SOURCES = ROOT / "daemon" / "kcl_daemon"


def called(name: str) -> Iterator[ast.Call]:
    for path in SOURCES.rglob("*.py"):
        if f"faults.{name}(".encode() in content(path):
            yield from (node for node in ast.walk(tree(path)) if is_call(node, name))


def is_call(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name("faults"), attr=attr)):
            return attr == name
        case _:
            return False


def test_each_point_has_a_name_of_its_own() -> None:
    names = [ast.literal_eval(node.args[0]) for node in called("maybe")]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [name for name in names if not re.fullmatch(r"(after|before)(-[a-z]+)+", name)] == []
    assert len(names) > 40


def test_the_simulator_or_a_unit_test_stops_at_each_point() -> None:
    names = {ast.literal_eval(node.args[0]) for node in called("maybe")}
    assert names == BASES.keys() | ELSEWHERE
    assert not BASES.keys() & ELSEWHERE
    assert {base for bases in BASES.values() for base in bases} <= SCENARIOS.keys()
    units = [path.read_text("utf-8") for path in (ROOT / "tests" / "unit").rglob("test_*.py")]
    assert [name for name in ELSEWHERE if not any(f'"{name}"' in text for text in units)] == []


def test_the_document_has_a_line_for_each_point() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    listed = re.findall(r"^\| `((?:after|before)-[a-z-]+)` \|", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(BASES.keys() | ELSEWHERE)


def test_the_document_names_rules_that_there_are() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text("utf-8").partition("## Tested before")[2]
    table = text.partition("The simulator runs")[0]
    rules = set(re.findall(r"`([a-z_]+)`", table))
    simulator = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "simulator").rglob("*.py"))
    assert len(rules) > 20
    assert [
        name for name in rules if f'"{name}"' not in simulator and f"self._{name}," not in simulator
    ] == []
    processes = re.findall(r"`(test_\w+\.py)`", table)
    assert [name for name in processes if not (ROOT / "tests" / "process" / name).is_file()] == []


def test_production_injects_nothing() -> None:
    """Nobody reaches past `maybe`, so what holds once the module is loaded holds."""
    reached = {
        name for path in SOURCES.rglob("*.py") for name in re.findall(rb"\bfaults\.(\w+)", content(path))
    }
    assert reached == {b"maybe"}
    assert [path for path in SOURCES.rglob("*.py") if b"from kcl_daemon.faults" in content(path)] == []
    program = "from kcl_daemon import faults\nassert faults._at is faults._nothing"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
