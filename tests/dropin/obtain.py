"""The client libraries themselves, and an editor's server, as their authors publish them: downloaded once, unpacked, never built, never committed.

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

KCLPY: Final = "3.2.0"
KCLPY_OF_KCL_1_8: Final = "1.5.1"
KCL_FOR_NODE: Final = "2.3.2"
YAML_LANGUAGE_SERVER: Final = "1.25.0"
NODE_REPOSITORY: Final = "https://github.com/awslabs/amazon-kinesis-client-nodejs"
NODE_RELEASE: Final = "v3.1.1"
POWERTOOLS: Final = "3.37.0"
POWERTOOLS_FOR_NODE: Final = "2.35.0"
SNIPPETS: Final = "https://github.com/aws-samples/serverless-snippets"
OFFLINE: Final = "KCL_TESTS_OFFLINE"
_WITHIN_S: Final = 90
_TRIES: Final = 3


def cache() -> Path:
    """Where the downloads are kept."""
    reported = os.environ.get("KCL_TESTS_CACHE")
    found = Path(reported) if reported else Path.home() / ".cache" / "kcl-daemon-tests"
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


def powertools() -> Path:
    """The folder of AWS's Powertools for Lambda; what they need comes with boto3 and pydantic."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    options = ["--no-deps", f"aws-lambda-powertools=={POWERTOOLS}"]
    name = f"aws-lambda-powertools-{POWERTOOLS}"
    return _obtained(name, lambda fresh: [*pip, *options, "--target", str(fresh / "packages")]) / "packages"


def powertools_for_node() -> Path:
    """The folder `node_modules` with the part of them that is for batches."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed: Powertools for Node WERE NOT RUN")
    options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    package = f"@aws-lambda-powertools/batch@{POWERTOOLS_FOR_NODE}"
    name = f"aws-lambda-powertools-batch-{POWERTOOLS_FOR_NODE}"
    return _obtained(name, lambda fresh: ["npm", "install", *options, str(fresh), package]) / "node_modules"


def serverless_snippets() -> Path:
    """A checkout of AWS's sample handlers."""
    name = "serverless-snippets"
    if not (cache() / name).is_dir() and (
        shutil.which("git") is None or not _answers(SNIPPETS, "refs/heads/main")
    ):
        pytest.skip(f"{SNIPPETS} is not in reach: AWS's sample handlers WERE NOT RUN")
    clone = ["git", "clone", "--quiet", "--depth", "1", SNIPPETS]
    return _obtained(name, lambda fresh: [*clone, str(fresh / "repository")]) / "repository"


def yaml_language_server() -> Path:
    """The program of the package `yaml-language-server`, which editors start."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed: the language server WAS NOT RUN")
    options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    folder = _obtained(
        f"yaml-language-server-{YAML_LANGUAGE_SERVER}",
        lambda fresh: [
            "npm",
            "install",
            *options,
            str(fresh),
            f"yaml-language-server@{YAML_LANGUAGE_SERVER}",
        ],
    )
    return folder / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"


def node_repository() -> Path:
    """A checkout of the repository of the library for Node, with its samples, which the package does not have.

    Its dependencies and those of the samples are installed, as its README says.
    """
    if shutil.which("npm") is None or shutil.which("git") is None:
        pytest.skip("npm and git are not installed: the samples for Node WERE NOT RUN")
    name = f"amazon-kinesis-client-nodejs-{NODE_RELEASE}"
    if not (cache() / name).is_dir() and not _answers(NODE_REPOSITORY, f"refs/tags/{NODE_RELEASE}"):
        pytest.skip(f"{NODE_REPOSITORY} is not in reach: the samples for Node WERE NOT RUN")
    clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", NODE_RELEASE, NODE_REPOSITORY]
    folder = _obtained(name, lambda fresh: [*clone, str(fresh / "repository")]) / "repository"
    options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save", "--omit=dev"]
    for where, packages in ((folder, ()), (folder / "samples", ("log4js@6",))):
        if not (where / "node_modules").is_dir():
            _run(name, ["npm", "install", "--prefix", str(where), *options, *packages])
    return folder


def _answers(repository: str, reference: str) -> bool:
    command = ["git", "ls-remote", "--quiet", "--exit-code", repository, reference]
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        asked = subprocess.run(command, env=quiet, capture_output=True, timeout=_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


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
