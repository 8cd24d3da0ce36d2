"""The processors that the documents show live through records that are no text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcl_daemon.cli import main
from kcl_daemon.config.settings import BY_NAME
from tests.documents.blocks import ROOT, Block, blocks_of
from tests.documents.stage import block_of

HOW_TO = "docs/how-to.md"
ANSWERS = blocks_of((ROOT / HOW_TO).read_text("utf-8"), HOW_TO)


def test_a_sample_takes_a_record_that_is_not_utf_8(tmp_path: Path) -> None:
    program, records = tmp_path / "consumer.py", tmp_path / "records.jsonl"
    program.write_text(block_of("docs/start.md", "python"), "utf-8")
    records.write_text('{"partitionKey": "k", "data": "//4A/w=="}\n', "ascii")
    words = ["run-child", "--records", str(records), "--", sys.executable, str(program)]
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code == 0, ran.output
    assert "delivered 1 of 1 records" in ran.output


@pytest.mark.parametrize(
    "block", [each for each in ANSWERS if each.language == "properties"], ids=lambda block: block.where
)
def test_the_properties_of_an_answer_are_accepted_beside_those_of_an_application(
    block: Block, tmp_path: Path
) -> None:
    written = {line.partition("=")[0].strip() for line in block.body.splitlines()}
    assert written <= set(BY_NAME)
    replaced = set().union(*(REPLACED.get(name, {name}) for name in written))
    kept = [
        line
        for line in block_of("docs/start.md", "properties").splitlines()
        if line.partition("=")[0].strip() not in replaced
    ]
    path = tmp_path / "app.properties"
    path.write_text("\n".join([*kept, block.body]), "latin-1")
    checked = CliRunner().invoke(main, ["check", str(path)])
    assert checked.exit_code == 0, checked.output


REPLACED = {
    "streamArns": {"streamName"},
    "tableName.source": {"streamName"},
    "landing": {"executableName", "timeoutInSeconds"},
}
"""What an answer's property takes the place of."""


@pytest.mark.parametrize(
    "block", [each for each in ANSWERS if each.language == "python"], ids=lambda block: block.where
)
def test_the_python_of_an_answer_runs_with_its_tests(block: Block) -> None:
    module: dict[str, object] = {"__name__": "answer"}
    exec(compile(block.body, block.where, "exec"), module)
    for name, value in module.items():
        if name.startswith("test_"):
            assert callable(value)
            value()


def test_every_question_has_an_answer_that_leads_on() -> None:
    text = (ROOT / HOW_TO).read_text("utf-8")
    answers = text.split("\n### … ")[1:]
    assert len(answers) > 25
    assert [answer.splitlines()[0] for answer in answers if "```" not in answer] == []
    assert [answer.splitlines()[0] for answer in answers if "\nMore: [" not in answer] == []
