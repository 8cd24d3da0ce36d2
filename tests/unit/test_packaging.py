"""Image and service file have the form that a graceful stop and a safe host need."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kcl_daemon.config.settings import ChildSettings

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "packaging" / "systemd" / "kcl-daemon.service"


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each instruction of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", without_comments)
    return [
        (name, arguments.strip())
        for name, _, arguments in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def last(name: str) -> str:
    return [arguments for instruction, arguments in instructions() if instruction == name][-1]


def test_the_image_does_not_run_as_root() -> None:
    names = [name for name, _ in instructions()]
    user = last("USER").partition(":")[0]
    assert user.isdigit()
    assert int(user) > 0
    assert names.index("USER") > len(names) - 1 - names[::-1].index("FROM")


def test_signals_reach_the_daemon_itself() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["kcl-daemon"]
    assert isinstance(json.loads(last("CMD")), list)
    assert last("STOPSIGNAL") == "SIGTERM"


def test_base_images_are_pinned_to_a_python() -> None:
    bases = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+-slim", base) for base in bases)


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name, arguments in instructions():
        if name == "COPY" and not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignore, source


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep case
    parser.read(SERVICE, encoding="utf-8")
    return parser["Service"]


def test_the_service_gives_the_daemon_time_to_finish() -> None:
    section = service()
    defaults = ChildSettings(command=())
    longest_stop_s = (defaults.shutdown_grace_ms + 2 * defaults.exit_grace_ms) / 1000
    assert int(section["TimeoutStopSec"]) > longest_stop_s
    assert section["KillMode"] == "mixed"
    assert section["Type"] == "exec"


def test_the_service_restarts_but_not_on_a_wrong_file() -> None:
    section = service()
    assert section["Restart"] == "on-failure"
    assert section["RestartPreventExitStatus"] == "2"
    assert section["OOMPolicy"] == "continue"
    assert section["User"] not in {"", "root"}


def test_systemd_itself_accepts_the_service(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    unit = tmp_path / SERVICE.name
    unit.write_text(SERVICE.read_text(encoding="utf-8").replace("/opt/kcl-daemon/bin/kcl-daemon", "/bin/sh"))
    done = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Unknown" not in done.stderr
