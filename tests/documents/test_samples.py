"""The processors that the documents show live through records that are no text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcl_daemon.cli import main
from tests.documents.stage import block_of


@pytest.mark.parametrize("document", ["README.md", "docs/start.md"])
def test_a_sample_takes_a_record_that_is_not_utf_8(document: str, tmp_path: Path) -> None:
    program, records = tmp_path / "consumer.py", tmp_path / "records.jsonl"
    program.write_text(block_of(document, "python"), "utf-8")
    records.write_text('{"partitionKey": "k", "data": "//4A/w=="}\n', "ascii")
    words = ["run-child", "--records", str(records), "--", sys.executable, str(program)]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    assert "delivered 1 of 1 records" in ran.output
