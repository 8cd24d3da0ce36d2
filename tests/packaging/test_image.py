"""The image: its linter has nothing to say, its steps build, and what they build is a daemon that is safe as process 1."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from kcl_daemon import __version__
from kcl_local.demo.check import monotonic_s
from tests.packaging.dockerfile import DOCKERFILE, ROOT, stages
from tests.process.daemon import Daemon, application
from tests.process.local import Local

BUILD: Final = [sys.executable, "-m", "tests.packaging.rootfs"]
PRIVATE: Final = ["unshare", "--mount", "--propagation", "private", "--"]
# What a registry hands out; python:3.13-slim is 45 MB of it.
IMAGE_BYTES_MOST: Final = 120_000_000
BASE_BYTES: Final = 46_000_000
# Leaves an orphan behind, and says who reaped it and as whom all this runs.
CHILD: Final = """\
import json, os, subprocess, sys, time
def told(text):
    print(text, file=sys.stderr, flush=True)
for line in sys.stdin:
    action = json.loads(line)["action"]
    if action == "initialize":
        told(f"user {os.getuid()}:{os.getgid()}")
        told("process 1 is " + open("/proc/1/comm").read().strip())
        shell = subprocess.run(["/bin/sh", "-c", "sleep 0.1 >&2 & echo $!"], stdout=subprocess.PIPE, check=True)
        orphan = f"/proc/{int(shell.stdout)}"
        for _ in range(200):
            if not os.path.exists(orphan):
                break
            time.sleep(0.05)
        told("orphan left" if os.path.exists(orphan) else "orphan reaped")
    if action == "shutdownRequested":
        told("asked to stop")
    print(json.dumps({"action": "status", "responseFor": action}), flush=True)
"""


@pytest.mark.parametrize(
    "path", [DOCKERFILE, ROOT / "packaging" / "sidecar" / "Dockerfile"], ids=["daemon", "sidecar"]
)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(
            f"NOT RUN: hadolint comes with the dev extra on x86-64 Linux; this is {platform.machine()}"
        )
    done = subprocess.run(
        [found, "--failure-threshold", "style", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_does_not_run_as_root() -> None:
    final = stages()[-1]
    names = [each.name for each in final.instructions]
    assert int(final.last("USER").partition(":")[0]) > 0
    assert "RUN" not in names[names.index("USER") :]


def test_signals_reach_the_daemon_and_orphans_are_reaped() -> None:
    final = stages()[-1]
    # Without --single-child signals would go to all of the daemon's session: also to what has to be asked by its pipes.
    assert json.loads(final.last("ENTRYPOINT")) == ["dumb-init", "--single-child", "--", "kcl-daemon"]
    assert isinstance(json.loads(final.last("CMD")), list)
    assert final.last("STOPSIGNAL") == "SIGTERM"


def test_base_images_are_one_slim_python() -> None:
    bases = [stage.base for stage in stages()]
    assert len(bases) == 2
    assert len(set(bases)) == 1  # else the environment that is copied is of another Python
    assert re.fullmatch(r"python:3\.\d+-slim", bases[0])


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for stage in stages():
        for each in stage.instructions:
            if each.name == "COPY" and not each.words.startswith("--from"):
                for source in each.words.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    assert f"!{source}" in ignore, source


def why_not_built() -> str | None:
    """Why this machine cannot build the steps; None where it can."""
    if os.environ.get("KCL_TESTS_OFFLINE") == "1":
        return "KCL_TESTS_OFFLINE=1: the steps install packages"
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "building in a plain root file system needs root and unshare"
    layers = (
        "mount -t tmpfs tmpfs /mnt && mkdir /mnt/up /mnt/work /mnt/all &&"
        "mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/all"
    )
    tried = subprocess.run(
        [*PRIVATE, "sh", "-c", layers],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return None if tried.returncode == 0 else f"no layers over the root here: {tried.stderr.strip()}"


@contextmanager
def container(local: Local, folder: Path, work: Path) -> Generator[tuple[dict[str, Any], Daemon]]:
    """What was built, and the daemon that runs in it; all is gone at the end."""
    work.mkdir()
    reported = work.with_suffix(".json")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (
        reported.open("w") as stdout,
        subprocess.Popen(
            [*PRIVATE, *BUILD, str(work), str(folder), json.dumps(local.environment)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        daemon = Daemon(process, monotonic_s())
        try:
            daemon.wait_for("daemon_starting", within_s=240)
            yield json.loads(reported.read_text()), daemon
        finally:
            daemon.close()


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_the_steps_build_a_daemon_that_is_safe_as_process_1(local: Local, tmp_path: Path) -> None:
    reason = why_not_built()
    if reason is not None:
        pytest.skip(f"NOT RUN: {reason}")
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "child.py").write_text(CHILD, "ascii")
    with application(local, folder, "contained", shards=1) as app:
        file = app.write_properties("worker", "python child.py")
        (folder / file).rename(folder / "app.properties")
        with container(local, folder, tmp_path / "work") as (reported, daemon):
            daemon.wait_for("child_stderr", line="orphan reaped")
            daemon.wait_for("child_stderr", line="user 10001:10001")
            daemon.wait_for("child_stderr", line="process 1 is dumb-init")
            (first,) = psutil.Process(daemon.process.pid).children()
            first.send_signal(signal.SIGTERM)
            assert daemon.end() == 0, daemon.tail()
            daemon.wait_for("child_stderr", line="asked to stop")
            assert daemon.named("daemon_stopped")
    assert reported["version"] == f"kcl-daemon {__version__}"
    assert "not set" in reported["health"]
    assert reported["sizes"]["packed"] + BASE_BYTES < IMAGE_BYTES_MOST
