"""Wheel and sdist: one is built from the other, they hold what they should, and install without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Final

import pytest

import kcl_daemon
from tests.packaging.dockerfile import ROOT

SHIPPED: Final = "kcl_daemon/shipped/"
PACKAGES: Final = {
    "kcl_client",
    "kcl_daemon",
    "kcl_landing",
    "kcl_local",
    "kcl_protocol",
    "kcl_prove",
    "kcl_spark",
}
SOURCE: Final = {"kcl_spark_source.py", "pyspark_kcl.py"}


# Where this environment has what ours depends on; ours itself is installed here as a link, which is not followed from there.
DEPENDENCIES: Final = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))


def run(*words: str | Path, cwd: Path = ROOT, borrow: bool = False) -> str:
    """What a program prints; it must end well. May borrow dependencies from this environment."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**kept, "PYTHONPATH": DEPENDENCIES} if borrow else kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Built:
    """What `make dist` makes."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def fresh(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder)
    python = folder / "bin" / "python"
    offline = ("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, built.wheel)
    return python


def modules(names: Sequence[str]) -> set[str]:
    return {name for name in names if name.endswith(".py")}


def test_the_wheel_holds_every_module_and_no_test(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0] for name in modules(names)} == {*PACKAGES, *SOURCE, "kcl_spark_sink.py"}
    folders = ("daemon", "protocol", "clients/python", "clients/landing", "clients/pyspark")
    ours = {
        str(path.relative_to(ROOT / folder)) for folder in folders for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in modules(names) if not name.startswith(SHIPPED)} == ours
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_source_of_spark_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    run(
        sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT / "clients" / "spark-source"
    )  # fmt: skip
    (path,) = tmp_path.iterdir()
    with zipfile.ZipFile(path) as wheel:
        assert modules(wheel.namelist()) == SOURCE
        for name in SOURCE:
            assert wheel.read(name) == (ROOT / "clients" / "pyspark" / name).read_bytes()
    assert path.name == f"kcl_spark_source-{kcl_daemon.__version__}-py3-none-any.whl"


def test_the_wheel_says_what_it_is(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
        about = Parser().parsestr(wheel.read(name).decode("utf-8"))
        assert any(each.endswith("/licenses/LICENSE") for each in wheel.namelist())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (about["Name"], about["Version"]) == ("kcl-daemon", kcl_daemon.__version__)
    assert about["License-Expression"] == "Apache-2.0"
    required = [each for each in about.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert sorted(required) == sorted(re.sub(r"\s", "", each) for each in project["dependencies"])


def test_the_wheel_holds_packaging_documents_and_samples(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name.removeprefix(SHIPPED) for name in wheel.namelist() if name.startswith(SHIPPED)}
    wanted = {
        path.relative_to(ROOT / above).as_posix()
        for above, folder in (("", "packaging"), ("", "docs"), ("clients", "samples"))
        for path in (ROOT / above / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "site_hooks.py"
    }
    assert names == wanted


def test_the_long_description_leads_nowhere_that_is_not_there(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
        about = Parser().parsestr(wheel.read(name).decode("utf-8"))
    text = str(about.get_payload())
    assert about["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# kcl-daemon\n")
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []
    assert "kcl-daemon packaging docs --write ." in text
    assert "[install](docs/install.md)" in (ROOT / "README.md").read_text("utf-8")


def test_an_installed_package_writes_its_files(fresh: Path, tmp_path: Path) -> None:
    program = fresh.with_name("kcl-daemon")
    unit = run(program, "packaging", "systemd", cwd=tmp_path, borrow=True)
    assert unit == (ROOT / "packaging" / "systemd" / "kcl-daemon.service").read_text("utf-8")
    run(program, "packaging", "docs", "--write", ".", cwd=tmp_path, borrow=True)
    assert (tmp_path / "docs" / "start.md").read_bytes() == (ROOT / "docs" / "start.md").read_bytes()
    run(program, "init", "new", "--language", "node", cwd=tmp_path, borrow=True)
    sample = ROOT / "clients" / "samples" / "node" / "consumer.js"
    assert (tmp_path / "new" / "consumer.js").read_bytes() == sample.read_bytes()
    schema = json.loads(run(program, "check", "--schema", cwd=tmp_path, borrow=True))
    assert "failoverTimeMillis" in schema["properties"]


def test_the_sdist_holds_what_a_distributor_needs(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"LICENSE", "Makefile", "Dockerfile", "docs/properties.md", "tests/conftest.py", "CHANGELOG.md"}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "packaging").rglob("*") if path.is_file()}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".git/", ".venv/"))]


def test_the_wheel_installs_offline_and_runs(fresh: Path, tmp_path: Path) -> None:
    program = fresh.with_name("kcl-daemon")
    version = run(program, "--version", cwd=tmp_path, borrow=True)
    assert version == f"kcl-daemon {kcl_daemon.__version__}\n"
    (site,) = fresh.parents[1].glob("lib/python3.*/site-packages")
    code = "import kcl_daemon; print(kcl_daemon.__file__)"
    assert Path(run(fresh, "-c", code, cwd=tmp_path, borrow=True)).is_relative_to(site)
    (tmp_path / "app.properties").write_text(
        "executableName = true\nstreamName = s\napplicationName = app\nregionName = eu-west-1\n", "ascii"
    )
    policy = run(program, "iam-policy", "app.properties", cwd=tmp_path, borrow=True)
    assert '"dynamodb:UpdateItem"' in policy


def test_the_bill_of_materials_names_what_is_installed(fresh: Path, tmp_path: Path) -> None:
    (line,) = re.findall(
        r"cyclonedx-py (environment .*?)\n\n", (ROOT / "Makefile").read_text("utf-8"), re.DOTALL
    )
    file = tmp_path / "bill.json"
    places = {"dist/kcl-daemon.cdx.json": str(file), "build/sbom/bin/python": str(fresh)}
    words = [places.get(word, word) for word in re.sub(r"\\\n\s*", "", line).split()]
    run(Path(sys.executable).with_name("cyclonedx-py"), *words)
    bill = json.loads(file.read_text("utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    found = {each["name"]: each for each in bill["components"]}
    assert found["kcl-daemon"]["version"] == kcl_daemon.__version__
    assert found["kcl-daemon"]["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert found.keys() == {"kcl-daemon"}  # and not what this environment has for development
