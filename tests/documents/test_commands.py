"""Every command in the documents works: what can be run is run, of everything else all words must exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator
from pathlib import Path, PurePosixPath

import pytest

from tests.documents.blocks import DOCUMENTS, ROOT, STORIES, Block, blocks_of, documented, problems_of
from tests.documents.commandlines import NotACommand, check_command, check_script, commands_of
from tests.documents.stage import furnish, perform
from tests.process.local import local_process

pytestmark = pytest.mark.timeout(600)  # for a hang: `stage` gives up first

RUN = [block for block in documented() if block.runs and not block.where.startswith(STORIES)]
TOLD = [block for block in documented() if block.runs and block.where.startswith(STORIES)]
PARSED = [block for block in documented() if block.marker == "parse" or (block.runs and block not in TOLD)]
INLINE = re.compile(r"(?<!`)`(kcl-daemon [^`\n]+)`(?!`)")


def ours_in(block: Block) -> list[list[str]]:
    """The commands of kcl-daemon in a block, wherever it is installed."""
    return [words for words in commands_of(block.script) if PurePosixPath(words[0]).name == "kcl-daemon"]


OURS_AMONG_OTHERS = [
    pytest.param(words, id=f"{block.where} {shlex.join(words)}")
    for block in documented()
    if block.marker == "not ours"
    for words in ours_in(block)
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    """Local endpoints with the stream of the documents, and an application that has read it."""
    with local_process("--stream", "orders:4") as local:
        directory = tmp_path_factory.mktemp("application")
        furnish(directory, local.environment)
        script = "kcl-daemon --properties app.properties\n"
        perform(
            Block("the application", "bash", "run until child_started", script), directory, local.environment
        )
        yield local.environment


def test_every_block_with_commands_is_marked() -> None:
    problems = [
        problem
        for path in DOCUMENTS
        for problem in problems_of(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())
    ]
    assert not problems, "\n".join(["", *problems])


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.where)
def test_a_block_marked_run_runs(block: Block, environment: dict[str, str], tmp_path: Path) -> None:
    furnish(tmp_path, environment)
    perform(block, tmp_path, environment)


@pytest.mark.parametrize("block", PARSED, ids=lambda block: block.where)
def test_a_block_marked_parse_has_only_commands_and_options_that_exist(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(tmp_path, {})
    monkeypatch.chdir(tmp_path)
    check_script(block.script)


@pytest.mark.parametrize("words", OURS_AMONG_OTHERS)
def test_our_commands_among_those_of_others_could_be_run(words: list[str]) -> None:
    check_command(words)


def test_our_commands_are_found_among_those_of_others() -> None:
    script = "useradd kcl-daemon\nln -s kcl-daemon-1 /opt/x && /opt/x/bin/kcl-daemon check a\nkcl-daemon b \\\n  c\n"
    assert ours_in(Block("x.md:1", "bash", "not ours", script)) == [
        ["/opt/x/bin/kcl-daemon", "check", "a"], ["kcl-daemon", "b", "c"],
    ]  # fmt: skip


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_within_the_text_exist(path: Path) -> None:
    wrong: list[str] = []
    for command in INLINE.findall(path.read_text("utf-8")):
        words = [word for word in command.split()[1:3] if re.fullmatch(r"[a-z][a-z-]+", word)]
        try:
            check_command(["kcl-daemon", *words, "--help"])
        except NotACommand as error:
            wrong.append(f"{command}: {error}")
    assert wrong == []


def marked(marker: str, body: str, language: str = "bash") -> str:
    return f"<!-- test: {marker} -->\n```{language}\n{body}\n```\n"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("```bash\nls\n```\n", "x.md:1: put above it <!-- test: run -->"),
        ("text\n\n```\nkcl-daemon check a\n```\n", "x.md:3: write ```bash"),
        (marked("walk", "ls"), "x.md:2: <!-- test: walk --> means nothing here"),
        (marked("run", "{}", "json"), "means nothing here"),
        (marked("terminal 1 until x", "ls"), "means nothing here"),
        (marked("printed", "ls", "text"), "means nothing here"),
        ("1. Do:\n\n    ```bash\n    ls\n    ```\n", "x.md:3: put this block at the margin"),
    ],
)
def test_a_block_that_is_marked_wrongly_is_reported(text: str, reported: str) -> None:
    (problem,) = problems_of(text, "x.md")
    assert reported in problem


@pytest.mark.parametrize(
    "text",
    [marked("run", "ls"), marked("run until x", "ls"), "```text\nkcl-daemon\n```\n", "```\nlost 0\n```\n"],
)
def test_a_block_that_is_right_is_left_alone(text: str) -> None:
    assert list(problems_of(text, "x.md")) == []


def test_of_a_console_only_what_stands_behind_a_prompt_is_run() -> None:
    (block,) = blocks_of(marked("run", "$ one\nits answer\n$ two", "console"), "x.md")
    assert block.script == "one\ntwo\n"


def test_commands_are_taken_apart() -> None:
    script = "A=1 . ./x && kcl-daemon local --stream 'a b' > y  # why\nmake a \\\n  b | tee z\n"
    assert commands_of(script) == [
        [".", "./x"], ["kcl-daemon", "local", "--stream", "a b"], ["make", "a", "b"], ["tee", "z"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        ("kcl-daemon leases list --no-such-option", "--no-such-option"),
        ("kcl-daemon leases lits app.properties", "lits"),
        ("kcl-daemon --properties a --log-format yaml", "yaml"),
        ("make nothing", "no such target"),
        ("pip install 'kcl-daemon[more]'", "no such extra"),
        (".venv/bin/pytest tests/none", "no such test"),
        ("python -m tests.simulator --sceanrio x", "no such option"),
        ("kafka-topics --list", "not ours"),
    ],
)
def test_a_documented_command_that_does_not_exist_is_reported(script: str, reported: str) -> None:
    with pytest.raises(NotACommand, match=re.escape(reported)):
        check_script(script)
