"""The checks of `make lint` find what they are there for."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.dockerfile import ROOT

OPTIONS: Final = ("--quiet", "--recursive", "--configfile", "pyproject.toml")
ABOUT_SHELLS: Final = {"B602", "B604", "B605", "B607"}


def bandit(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bandit", *OPTIONS, str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("subprocess.run(sys.argv[1], shell=True)", "B602"),
        ("os.system(sys.argv[1])", "B605"),
        ("os.popen(sys.argv[1])", "B605"),
        ("pickle.loads(sys.stdin.buffer.read())", "B301"),
        ("pathlib.Path('x'); os.chmod('x', 0o666)", "B103"),
    ],
)
def test_a_shell_or_an_open_door_does_not_pass(tmp_path: Path, line: str, rule: str) -> None:
    (tmp_path / "module.py").write_text(f"import os, pathlib, pickle, subprocess, sys\n{line}\n", "ascii")
    done = bandit(tmp_path)
    assert done.returncode == 1
    assert rule in done.stdout


def test_make_lint_has_bandit_look_at_all_that_is_shipped() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    (line,) = [line for line in lint.splitlines() if "bandit" in line]
    assert line.split() == ["$(BIN)/bandit", *OPTIONS, "daemon", "protocol", "clients"]


def test_no_rule_about_shells_is_skipped() -> None:
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["bandit"]
    assert configured.keys() == {"skips"}, "nothing else narrows what is looked at"
    assert ABOUT_SHELLS.isdisjoint(configured["skips"])
