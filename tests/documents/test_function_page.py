"""What docs/function.md shows: each program can be run, its test passes, its properties file is what is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from kcl_daemon.cli import main
from tests.documents.blocks import ROOT, blocks_of
from tests.documents.stage import block_of

PAGE: Final = "docs/function.md"
PROGRAMS = [
    block for block in blocks_of((ROOT / PAGE).read_text("utf-8"), PAGE) if block.language == "python"
]


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda block: block.where)
def test_each_program_can_be_run(program: object, tmp_path: Path) -> None:
    body: str = getattr(program, "body")  # noqa: B009 - pytest hands it on without its type
    (tmp_path / "consumer.py").write_text(body, "utf-8")
    done = python(tmp_path, "-m", "kcl_client.run", "--check", "consumer:handle")
    assert done.returncode == 0, done.stderr


def test_its_test_passes(tmp_path: Path) -> None:
    (tmp_path / "test_consumer.py").write_text(block_of(PAGE, "python", "processor_of"), "utf-8")
    done = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cloudcoil")
    assert done.returncode == 0, done.stdout


def test_its_app_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(block_of(PAGE, "python", "App("), "utf-8")
    done = python(tmp_path, "consumer.py", "--print-properties")
    assert "-m kcl_client.run consumer.py:handle --concurrency 4\n" in done.stdout
    assert done.returncode == 0, done.stderr


def test_its_properties_file_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "consumer.py").write_text(PROGRAMS[0].body, "utf-8")
    monkeypatch.chdir(tmp_path)
    words = ("run", "orders", "consumer:handle", "--region", "eu-west-1", "--print-properties")
    printed = CliRunner().invoke(main, words, catch_exceptions=False)
    head, _, rest = printed.stdout.partition("\n")
    assert head == "# the same as: kcl-daemon run orders consumer:handle --region=eu-west-1"
    assert rest.replace(sys.executable, "python3") == block_of(PAGE, "properties")
