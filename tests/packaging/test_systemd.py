"""The service file has the form that a graceful stop, a watchdog and a safe host need."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from kcl_daemon.config.children import ChildSettings
from tests.packaging.dockerfile import ROOT

SERVICE: Final = ROOT / "packaging" / "systemd" / "kcl-daemon.service"
WATCH: Final = ROOT / "packaging" / "watch" / "kcl-daemon-watch.service"
EXPOSURE_MOST: Final = 3.0


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep case
    parser.read(SERVICE, encoding="utf-8")
    return parser["Service"]


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    """What systemd's own tool says; the test is named as not run where there is none."""
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("NOT RUN: systemd-analyze is not here (Debian: apt-get install systemd)")
    return subprocess.run([found, *words], capture_output=True, text=True, check=False, timeout=60)


def test_the_service_gives_the_daemon_time_to_finish() -> None:
    section = service()
    defaults = ChildSettings(command=())
    longest_stop_s = (defaults.shutdown_grace_ms + 2 * defaults.exit_grace_ms) / 1000
    assert int(section["TimeoutStopSec"]) > longest_stop_s
    assert section["KillMode"] == "mixed"


def test_the_service_is_told_of_start_and_life() -> None:
    section = service()
    assert section["Type"] == "notify"
    assert section["NotifyAccess"] == "main"  # what a child says does not count
    assert int(section["WatchdogSec"]) >= 30


def test_the_service_restarts_but_not_on_a_wrong_file() -> None:
    section = service()
    assert section["Restart"] == "on-failure"
    assert section["RestartPreventExitStatus"] == "2"
    assert section["OOMPolicy"] == "continue"
    assert section["User"] not in {"", "root"}


def test_the_only_folder_that_can_be_written_is_the_working_directory() -> None:
    section = service()
    assert section["ProtectSystem"] == "strict"
    assert section["WorkingDirectory"] == f"/var/lib/{section['StateDirectory']}"
    assert (section["StateDirectoryMode"], section["UMask"]) == ("0700", "0077")


@pytest.mark.parametrize("service", [SERVICE, WATCH], ids=lambda path: path.stem)
def test_systemd_itself_accepts_the_service(service: Path, tmp_path: Path) -> None:
    unit = tmp_path / service.name
    unit.write_text(service.read_text(encoding="utf-8").replace("/opt/kcl-daemon/bin/kcl-daemon", "/bin/sh"))
    done = analyze("verify", str(unit))
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if service.stem in line]
    assert (about_it, done.returncode) == ([], 0)


@pytest.mark.parametrize("service", [SERVICE, WATCH], ids=lambda path: path.stem)
def test_systemd_finds_the_service_little_exposed(service: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(service))
    match = re.search(rf"Overall exposure level for {service.stem}\.service: ([0-9.]+)", done.stdout)
    assert match is not None, done.stdout + done.stderr
    assert float(match[1]) < EXPOSURE_MOST
