"""The checks of `make lint` find what they are there for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.dockerfile import ROOT


def bandit(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bandit", "--quiet", "--recursive", "--configfile", "pyproject.toml"]
    return subprocess.run(
        [*command, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=250
    )


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


def test_bandit_is_part_of_make_lint_and_skips_no_rule_about_shells() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    assert "bandit" in lint
    assert "daemon protocol clients" in lint
