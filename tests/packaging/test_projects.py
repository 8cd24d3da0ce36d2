"""What `kcl-daemon init` writes beside a processor passes its linters: image, compose file, unit, script."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kcl_daemon import __version__
from kcl_daemon.cli.init import LANGUAGES, Project, write
from tests.packaging.dockerfile import stages
from tests.packaging.test_systemd import analyze


@pytest.fixture(params=sorted(LANGUAGES))
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write(Project(request.param, "orders", "orders-consumer", None).files(), tmp_path, force=False)
    return tmp_path


def test_hadolint_has_nothing_to_say(project: Path) -> None:
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(
            f"NOT RUN: hadolint comes with the dev extra on x86-64 Linux; this is {platform.machine()}"
        )
    words = [found, "--failure-threshold", "style", str(project / "Dockerfile")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_all_that_runs_and_no_root(project: Path) -> None:
    final = stages(project / "Dockerfile")[-1]
    assert f"=={__version__}" in " ".join(each.words for each in final.instructions)
    assert final.last("USER") == "10001:10001"
    copied = final.last("COPY").split()[:-1]
    assert all((project / each).is_file() for each in copied)
    assert "app.properties" in copied


def test_the_compose_file_has_the_local_endpoints_on_the_loopback_of_the_consumer(project: Path) -> None:
    document = yaml.safe_load((project / "compose.yaml").read_text())
    assert set(document) == {"services"}
    local, consumer = document["services"]["local"], document["services"]["consumer"]
    known = {
        *(
            "build",
            "command",
            "healthcheck",
            "network_mode",
            "depends_on",
            "environment",
            "stop_grace_period",
        ),
    }
    assert {*local, *consumer} <= known
    assert consumer["network_mode"] == "service:local"
    assert consumer["depends_on"] == {"local": {"condition": "service_healthy"}}
    assert local["build"] == consumer["build"] == {"context": ".", "args": local["build"]["args"]}
    assert "local" in local["build"]["args"]["EXTRAS"]
    ports = dict(zip(local["command"][3::2], local["command"][4::2], strict=True))
    addresses = {name: value for name, value in consumer["environment"].items() if "ENDPOINT" in name}
    assert {each.rpartition(":")[2] for each in addresses.values()} == set(ports.values())
    assert all(each.startswith("http://127.0.0.1:") for each in addresses.values())
    assert all(isinstance(each, str) for each in consumer["environment"].values())
    grace_s = int(consumer["stop_grace_period"].removesuffix("s"))
    assert grace_s == (130 if "spark" in local["build"]["args"]["EXTRAS"] else 45)


def test_systemd_accepts_the_unit_and_finds_it_little_exposed(project: Path) -> None:
    (service,) = project.glob("*.service")
    text = service.read_text()
    assert "/etc/kcl-daemon/app.properties" not in text
    assert (
        "ExecStart=/opt/kcl-daemon/bin/kcl-daemon --properties /srv/orders-consumer/app.properties\n" in text
    )
    service.write_text(text.replace("/opt/kcl-daemon/bin/kcl-daemon --", "/bin/sh --"))
    done = analyze("verify", str(service))
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if service.stem in line]
    assert (about_it, done.returncode) == ([], 0)
    done = analyze("security", "--offline=true", "--no-pager", str(service))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < 3


def test_the_script_is_one_for_any_shell(project: Path) -> None:
    for script in project.glob("*.sh"):
        subprocess.run(["sh", "-n", str(script)], check=True, timeout=60)
        subprocess.run(["bash", "--posix", "-n", str(script)], check=True, timeout=60)
