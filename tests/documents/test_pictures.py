"""The pictures of terminals: small, still readable where nothing moves, and of commands that exist."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tests.documents.blocks import ROOT
from tests.documents.commandlines import check_command, commands_of
from tools.pictures import Said, drawing, frames_of

SPACE = "{http://www.w3.org/2000/svg}"
PICTURES = ("run", "top")
BYTES_MOST = 150_000


def text_of(name: str) -> str:
    return (ROOT / "docs" / "img" / f"{name}.svg").read_text("utf-8")


def still_lines(svg: str) -> list[str]:
    """What is seen where nothing moves: the last frame."""
    hidden = set(re.findall(r"\.(f\d+-\d+)\{visibility:hidden\}", svg))
    root = ET.fromstring(svg)
    texts = [
        text
        for part in root
        if part.get("class") not in hidden
        for text in ([part] if part.tag == f"{SPACE}text" else part.iter(f"{SPACE}text"))
    ]
    return [" ".join("".join(piece.itertext()) for piece in list(text) or [text]) for text in texts]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_runs_nothing(name: str) -> None:
    svg = text_of(name)
    assert len(svg.encode()) < BYTES_MOST
    assert re.findall(r"<(?:script|foreignObject|image|use|a)\b|\son\w+=|@font-face|javascript:", svg) == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [("run", ["run orders consumer:handle --local", "put orders --local"]), ("top", ["top app.properties"])],
)
def test_the_commands_of_a_picture_exist(name: str, shown: list[str]) -> None:
    typed = [line.removeprefix("$ ") for line in still_lines(text_of(name)) if line.startswith("$ ")]
    ours = [words for line in typed for words in commands_of(line) if words[0] == "kcl-daemon"]
    assert [" ".join(words[1:]) for words in ours] == shown
    for words in ours:
        check_command(words)


def test_the_last_frame_of_run_has_the_records() -> None:
    lines = still_lines(text_of("run"))
    assert [line.partition("| ")[2] for line in lines if "| got" in line] == ["got two apples", "got a pear"]


def test_the_output_of_a_terminal_is_drawn_line_by_line() -> None:
    said = [
        Said(10.0, 0, b"$ make <tea>\r\n"),
        Said(11.0, 0, b"\x1b[31mno tea\x1b[0m\r\n"),
        Said(100.0, 1, b"$ sleep\r\n"),
    ]
    sizes = [(3, 20), (2, 20)]
    frames = frames_of(said, sizes, 20)
    assert [round(at_s, 1) for at_s, _ in frames] == [0.0, 1.0, 2.3], "a pause is cut"
    svg = drawing("title", "what it shows", frames, sizes)
    assert still_lines(svg) == ["$ make <tea>", "no tea", "$ sleep"]
    assert 'fill="#ff8076"' in svg


def test_a_line_that_is_gone_at_the_end_is_hidden_where_nothing_moves() -> None:
    said = [Said(0.0, 0, b"one"), Said(1.0, 0, b"\rtwo")]
    frames = frames_of(said, [(1, 9)], 9)
    svg = drawing("title", "what it shows", frames, [(1, 9)])
    assert still_lines(svg) == ["two"]
    assert "one" in svg
    assert "prefers-reduced-motion" in svg
    assert "animation" not in drawing("title", "what it shows", frames[-1:], [(1, 9)])
