"""Two versions of kcl-daemon beside each other: this checkout, and one that users may still run, from a wheel of its own.

Which one that is, `previous_version.txt` says: a tag or a commit. Each release puts its tag there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.commands import run_command
from tests.process.daemon import ROOT

NAMED_IN: Final = Path(__file__).with_name("previous_version.txt")
_WITHIN_S: Final = 300.0
_OFFLINE: Final = ("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")


@dataclass(frozen=True, slots=True)
class Version:
    """`python`: of an environment in which this version of daemon, clients and landing log is installed."""

    name: str
    python: str

    def program(self, module: str) -> str:
        """A record processor of the tests, on this version of the client."""
        return f"{self.python} -m tests.process.processors.{module}"

    def command(
        self, *words: str, directory: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """A command of `kcl-daemon` that ends by itself; of this version it needs no process of its own."""
        if self.python == sys.executable:
            known = {"PYTHONPATH": str(ROOT), **environment}
            return run_command(*words, directory=directory, environment=known)
        return self.run("-m", "kcl_daemon", *words, directory=directory, environment=environment)

    def run(
        self, *words: str, directory: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """The interpreter, with these words."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return subprocess.run(
            [self.python, *words],
            cwd=directory,
            env={**kept, "PYTHONPATH": str(ROOT), "AWS_EC2_METADATA_DISABLED": "true", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
        )

    def json(self, *words: str, directory: Path, environment: Mapping[str, str]) -> Any:
        """What a command prints as JSON; it must end well, and say nothing is wrong."""
        done = self.command(*words, "--json", directory=directory, environment=environment)
        assert done.returncode == 0, f"{self.name}: {words}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)


THIS: Final = Version("new", sys.executable)


def previous(folder: Path) -> Version:
    """The version before this one, installed below `folder` from its own wheel. Skips where there is no history."""
    commit = NAMED_IN.read_text("ascii").strip()
    _unpack(commit, folder / "source")
    _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, folder / "source")
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", *_OFFLINE, wheel)
    # What it depends on is taken from here; our own packages stand in links, which are not followed from there.
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in others), "utf-8")
    where = _run(python, "-c", "import kcl_daemon; print(kcl_daemon.__file__)")
    assert where.startswith(str(folder)), where
    return Version("old", str(python))


def _unpack(commit: str, folder: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git: the version before this one WAS NOT RUN")
    known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, check=False)
    if known.returncode:
        pytest.skip(
            f"this checkout lacks {commit} (git fetch --unshallow): the version before this one WAS NOT RUN"
        )
    archive = folder.with_suffix(".zip")
    _run("git", "archive", "--output", archive, commit)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)


def _run(*words: str | Path) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=_WITHIN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
