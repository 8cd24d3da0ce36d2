"""The client libraries themselves, as their authors publish them: downloaded once, unpacked, never built, never committed.

Where one cannot be had the tier fails and says so; `KCL_TESTS_OFFLINE=1` leaves it out by intent, and says that, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import pytest

KCLPY: Final = "3.1.3"
KCLPY_OF_KCL_1_8: Final = "1.5.1"
KCLPY_OF_KCL_1_0: Final = "1.3.1"
KCL_FOR_NODE: Final = "2.3.2"
OFFLINE: Final = "KCL_TESTS_OFFLINE"
_WITHIN_S: Final = 90
_TRIES: Final = 3


def cache() -> Path:
    """Where the downloads are kept."""
    told = os.environ.get("KCL_TESTS_CACHE")
    found = Path(told) if told else Path.home() / ".cache" / "kcl-daemon-tests"
    found.mkdir(parents=True, exist_ok=True)
    return found


def kclpy(version: str = KCLPY) -> Path:
    """The folder in which a version of `amazon_kclpy` and its samples are."""
    name = f"amazon_kclpy-{version}"
    archive = f"{name}.tar.gz"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-binary", ":all:", f"amazon_kclpy=={version}"]
    return _obtained(name, lambda fresh: [*pip, *options, "--dest", str(fresh)], archive) / name


def kcl_for_node() -> Path:
    """The folder of the package `aws-kcl`."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed: the library for Node WAS NOT RUN")
    options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    folder = _obtained(
        f"aws-kcl-{KCL_FOR_NODE}",
        lambda fresh: ["npm", "install", *options, str(fresh), f"aws-kcl@{KCL_FOR_NODE}"],
    )
    return folder / "node_modules" / "aws-kcl"


def _obtained(name: str, download: Callable[[Path], list[str]], archive: str = "") -> Path:
    """A folder with a download in it; made once.

    Args:
        name: of the folder.
        download: the command that downloads to a folder.
        archive: what is unpacked there then; empty: nothing.
    """
    folder = cache() / name
    if folder.is_dir():
        return folder
    if os.environ.get(OFFLINE):
        pytest.skip(f"{OFFLINE} is set and {name} is not in {cache()}: the library WAS NOT RUN")
    fresh = cache() / f"{name}.{os.getpid()}"
    fresh.mkdir()
    try:
        _run(name, download(fresh))
        if archive:
            # By the program: tarfile has its safe filter only from Python 3.11.4 on, and Debian 12 ships 3.11.2.
            subprocess.run(["tar", "-xf", archive], cwd=fresh, check=True, timeout=_WITHIN_S)
        _put(fresh, folder)
    except (OSError, subprocess.SubprocessError) as error:
        _missing(name, str(error))
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _run(name: str, command: list[str]) -> None:
    """Run a download; a registry that fails once is asked again."""
    why = ""
    for _ in range(_TRIES):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
        except subprocess.TimeoutExpired as error:
            why = str(error)
            continue
        if done.returncode == 0:
            return
        why = done.stderr
    _missing(name, why)


def _put(fresh: Path, folder: Path) -> None:
    """Give a download its name, unless another process of the tests was quicker; also by a moment."""
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _missing(name: str, why: str) -> NoReturn:
    pytest.fail(f"{name} cannot be downloaded; set {OFFLINE}=1 to leave it out: {why}")
