"""The fenced blocks of the documents, and what is to be done with those that hold commands.

The line above such a block says it:

    <!-- test: run -->                   run as it stands, beside the local endpoints; it must end well
    <!-- test: run until TEXT -->        run until it has printed TEXT, then ended with SIGTERM
    <!-- test: parse -->                 not run: commands, options and targets must exist
    <!-- test: not ours -->              programs of others; only lines of kcl-daemon among them are looked at

In a story, a document whose blocks run in order in one empty folder (tests/documents/story.py), there are also:

    <!-- test: terminal N until TEXT --> run in this terminal until it has printed TEXT, and then on, while the next
                                         blocks run; Ctrl-C ends it before the next block of this terminal
    <!-- test: terminal N -->            run in this terminal to its end
    <!-- test: printed -->               above a block of text: the block before has printed these lines; `...` is anything
    <!-- test: printed in terminal N --> this terminal has printed them, or will soon

A block that is neither is a file, if the paragraph above it names one last, in backquotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("packaging/**/*.md"))
)
STORIES = ("README.md", "docs/tutorial.md")
LANGUAGES = frozenset({"bash", "console", "sh", "shell"})
COMMANDS = (
    "kcl-daemon",
    "make",
    "pip",
    "python",
    "python3",
    ".venv/bin/",
    "docker",
    "curl",
    "aws ",
    "kubectl",
    "systemctl",
    "$ ",
)

_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<marker>[^\n]*?) -->\n)?(?P<fence>```+)(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_UNTIL = re.compile(r"(?:run|terminal \d) until (?P<text>.+)")
_TERMINAL = re.compile(r"(?:printed in )?terminal (?P<number>\d)(?: until .+)?$")
_PRINTED = re.compile(r"printed(?: in terminal \d)?")
_FILE = re.compile(r"`([\w-]+\.[a-z]+)`")
_INDENTED = re.compile(r"^[ \t]+```(?:bash|console|sh|shell)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Args:
        where: file and line, for people.
        language: what stands behind the fence.
        marker: what the line above says; empty where there is none.
        body: the lines in it.
        above: the paragraph before it.
    """

    where: str
    language: str
    marker: str
    body: str
    above: str = ""

    @property
    def holds_commands(self) -> bool:
        """Whether it must be marked; a block without a language does where a line begins with a command."""
        if self.language in LANGUAGES:
            return True
        return not self.language and any(line.startswith(COMMANDS) for line in self.body.splitlines())

    @property
    def script(self) -> str:
        """The commands: of a console those lines that begin with a prompt."""
        lines = self.body.splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return "\n".join(lines) + "\n"

    @property
    def file(self) -> str | None:
        """Which file it is, if any."""
        if self.marker or self.holds_commands or self.language in {"", "text"}:
            return None
        names: list[str] = _FILE.findall(self.above)
        return names[-1] if names else None

    @property
    def terminal(self) -> str | None:
        """The terminal in which it runs on, or that has printed it."""
        found = _TERMINAL.match(self.marker)
        return found["number"] if found else None

    @property
    def is_printed(self) -> bool:
        return _PRINTED.fullmatch(self.marker) is not None

    @property
    def runs(self) -> bool:
        return not self.is_printed and bool(self.marker == "run" or self.until or self.terminal)

    @property
    def until(self) -> str | None:
        """The text until which it runs; None where it ends by itself."""
        found = _UNTIL.match(self.marker)
        return found["text"] if found else None


def blocks_of(text: str, name: str) -> list[Block]:
    """All blocks of a document that begin at the margin."""
    return [
        Block(
            f"{name}:{text.count(chr(10), 0, found.start('fence')) + 1}",
            found["language"],
            found["marker"] or "",
            found["body"],
            text[: found.start()].rstrip().rpartition("\n\n")[2],
        )
        for found in _BLOCK.finditer(text)
    ]


def problems_of(text: str, name: str) -> Iterator[str]:
    """What is wrong with the marking of a document, with what to do."""
    for found in _INDENTED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield f"{name}:{line}: put this block at the margin, so that it can be tested"
    for block in blocks_of(text, name):
        known = block.marker in {"run", "parse", "not ours"} or bool(block.until)
        if name in STORIES and block.language == "text" and block.is_printed:
            continue
        if block.terminal:
            known = name in STORIES
        if block.holds_commands and not block.language:
            yield f"{block.where}: write ```bash, and above it <!-- test: run -->, <!-- test: parse --> or <!-- test: not ours -->"
        elif block.holds_commands and not block.marker:
            yield (
                f"{block.where}: put above it <!-- test: run --> (or `run until TEXT`), <!-- test: parse --> "
                "or <!-- test: not ours -->; tests/documents/blocks.py says what they do"
            )
        elif block.marker and (not known or not block.holds_commands):
            yield f"{block.where}: <!-- test: {block.marker} --> means nothing here"


def documented() -> list[Block]:
    """Every block with commands of every document."""
    return [
        block
        for path in DOCUMENTS
        for block in blocks_of(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())
        if block.holds_commands
    ]
