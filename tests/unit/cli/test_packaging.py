"""`kcl-daemon packaging`: what is listed, printed and written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kcl_daemon.cli import main
from kcl_daemon.cli.packaging import files

ROOT = Path(__file__).parents[3]


def test_everything_is_listed_under_what_it_is_for() -> None:
    lines = CliRunner().invoke(main, ["packaging"]).stdout.splitlines()
    titles = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    folders = {path.name for path in (ROOT / "packaging").iterdir() if path.is_dir()}
    assert set(titles) == folders | {"docs", "lambda"}
    assert len(titles) == len(set(titles))
    assert all(line.partition(": ")[2] for line in lines if not line.startswith(" "))
    assert "  kubernetes/hpa.yaml" in lines
    assert not [line for line in lines if "site_hooks" in line or "__pycache__" in line]


@pytest.mark.parametrize("name", ["systemd", "systemd/kcl-daemon.service", "systemd/"])
def test_one_file_is_printed(name: str) -> None:
    unit = ROOT / "packaging" / "systemd" / "kcl-daemon.service"
    assert CliRunner().invoke(main, ["packaging", name]).stdout_bytes == unit.read_bytes()


def test_of_many_files_the_names_are_printed() -> None:
    said = CliRunner().invoke(main, ["packaging", "kubernetes"]).stdout.splitlines()
    names = ("deployment", "hpa", "keda-prometheus", "keda", "sidecar")
    assert said == [f"kubernetes/{name}.yaml" for name in names]


def test_files_are_written_and_none_is_overwritten(tmp_path: Path) -> None:
    words = ["packaging", "ecs", "--write", str(tmp_path / "packaging")]
    assert CliRunner().invoke(main, words).exit_code == 0
    written = tmp_path / "packaging" / "ecs" / "task-definition.json"
    assert written.read_bytes() == files("ecs")["ecs/task-definition.json"].read_bytes()
    written.write_text("mine")
    again = CliRunner().invoke(main, ["packaging", "--write", str(tmp_path / "packaging")])
    assert again.exit_code == 1
    assert "already exists" in again.stderr
    assert written.read_text() == "mine"
    assert not (tmp_path / "packaging" / "docs").exists()


def test_a_name_that_means_nothing_is_reported() -> None:
    result = CliRunner().invoke(main, ["packaging", "helm"])
    assert result.exit_code == 2
    assert "unknown name helm; known: cloudformation, docs" in result.stderr
