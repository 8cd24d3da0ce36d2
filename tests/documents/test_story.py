"""The tutorial and the README, block for block, as a reader follows them: from a wheel, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.documents.blocks import ROOT, STORIES, Block, blocks_of
from tests.documents.story import Story
from tests.ports import free_port

pytestmark = pytest.mark.timeout(600)  # for a hang: the story gives up first

INSTALL = 'python3 -m venv .venv && . .venv/bin/activate\npip install "kcl-daemon[local]"\n'
DEPENDENCIES = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    folder = tmp_path / "apart"
    folder.mkdir()
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def environment(apart: Path) -> dict[str, str]:
    """Of a user without settings and files."""
    names = ("LANG", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_CERT", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {
        **kept,
        "TERM": "xterm",
        "HOME": str(apart),
        "XDG_RUNTIME_DIR": str(apart),
        "XDG_STATE_HOME": str(apart),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def borrowing(wheels: Path) -> dict[str, str]:
    """pip takes ours from the folder, and its dependencies are those of this environment: nothing is downloaded."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PYTHONPATH": DEPENDENCIES,
    }


@pytest.fixture
def story(empty: Path, apart: Path, wheels: Path) -> Generator[Story]:
    with closing(Story(empty, {**environment(apart), **borrowing(wheels)}, apart, free_port())) as story:
        yield story


@pytest.mark.parametrize("document", STORIES)
def test_each_block_does_what_the_document_says(document: str, story: Story) -> None:
    tell(document, story)


@pytest.mark.prove
def test_the_tutorial_does_so_with_everything_freshly_installed(
    empty: Path, apart: Path, wheels: Path
) -> None:
    fresh: Mapping[str, str] = {"PIP_FIND_LINKS": str(wheels)}
    with closing(Story(empty, {**environment(apart), **fresh}, apart, free_port())) as story:
        tell("docs/tutorial.md", story)


def tell(document: str, story: Story) -> None:
    blocks = blocks_of((ROOT / document).read_text("utf-8"), document)
    if not any("pip install" in block.script and block.runs for block in blocks):
        story.perform(Block("the installation", "bash", "run", INSTALL))
    for block in blocks:
        story.perform(block)


@pytest.fixture
def bare(empty: Path, apart: Path) -> Generator[Story]:
    """Nothing is installed."""
    with closing(Story(empty, {"TERM": "xterm"}, apart, free_port())) as story:
        yield story


def told(text: str, story: Story) -> None:
    for block in blocks_of(text, "x.md"):
        story.perform(block)


def test_files_are_written_and_terminals_run_on(bare: Story, empty: Path) -> None:
    text = (
        "This is `a.txt`, no `b.txt`:\n\n```json\n8080\n```\n\n"
        "<!-- test: terminal 1 until begun -->\n```bash\ntrap 'echo over > over.txt; exit' INT\n"
        "echo begun; while true; do sleep 0.1; done\n```\n\n"
        "<!-- test: run -->\n```bash\ntest ! -e over.txt; cat b.txt\n```\n\n"
        "<!-- test: terminal 1 -->\n```bash\ncat over.txt\n```\n\n"
        "<!-- test: printed in terminal 1 -->\n```text\no...r\n```\n"
    )
    told(text, bare)
    assert (empty / "b.txt").read_text("utf-8") != "8080\n", "a free port is in its place"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("<!-- test: run -->\n```bash\nfalse\n```\n", "x.md:2 ended with 1"),
        ("<!-- test: run until x -->\n```bash\necho y\n```\n", "x.md:2 did not print 'x'"),
        (
            "<!-- test: run -->\n```bash\necho one two\n```\n\n<!-- test: printed -->\n```text\none\n```\n",
            "x.md:7 was not printed: 'one'",
        ),
    ],
)
def test_a_block_that_does_not_do_what_it_says_is_reported(text: str, reported: str, bare: Story) -> None:
    with pytest.raises(AssertionError, match=re.escape(reported)):
        told(text, bare)
