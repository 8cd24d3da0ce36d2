"""Texts from files and pipes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from anyio import lowlevel

from kcl_local.demo.text import LINE_BYTES_MAX, DemoError, Feed, Line, PipeFeed, input_feed, library_feed


async def take_all(feed: Feed, most: int = 7) -> list[Line]:
    taken: list[Line] = []
    while lines := await feed.take(most):
        assert len(lines) <= most
        taken += lines
    return taken


def from_pipe(*pieces: bytes) -> list[bytes]:
    """Lines of a pipe that these pieces are written to; each must fit into its buffer."""
    read_end, write_end = os.pipe()

    async def main() -> list[Line]:
        taken: list[Line] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            taken += await take_all(PipeFeed(read_end, "pipe"))
        return taken

    async def write() -> None:
        for piece in pieces:
            await lowlevel.checkpoint()
            os.write(write_end, piece)
        os.close(write_end)

    try:
        return [line.data for line in anyio.run(main)]
    finally:
        os.close(read_end)


def test_lines_of_a_pipe_are_put_together_from_its_pieces() -> None:
    assert from_pipe(b"on", b"e\ntwo\r", b"\n\nlast") == [b"one", b"two", b"", b"last"]


def test_an_empty_pipe_has_no_lines() -> None:
    assert from_pipe() == []


def test_the_lines_of_a_pipe_have_keys_in_blocks() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"x\n" * 101)
    os.close(write_end)
    lines = anyio.run(take_all, PipeFeed(read_end, "pipe"))
    os.close(read_end)
    assert [lines[at].key for at in (0, 99, 100)] == ["pipe#0", "pipe#0", "pipe#1"]


def test_a_pipe_gives_what_it_has_without_waiting_for_more() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"first\nsecond\nnot yet")

    async def main() -> tuple[Sequence[Line], bool]:
        feed = PipeFeed(read_end, "pipe")
        lines = await feed.take(100)
        with anyio.move_on_after(0) as waited:
            await feed.take(100)
        return lines, waited.cancelled_caught

    lines, has_waited = anyio.run(main)
    os.close(read_end)
    os.close(write_end)
    assert [line.data for line in lines] == [b"first", b"second"]
    assert has_waited


def test_an_ordinary_file_as_stdin_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a" * (LINE_BYTES_MAX + 10) + b"\nb\n")
    with path.open("rb") as file:
        lines = anyio.run(take_all, input_feed("-", stdin=file.fileno()))
    assert b"".join(line.data for line in lines) == b"a" * (LINE_BYTES_MAX + 10) + b"b"
    assert max(len(line.data) for line in lines) <= 2 * LINE_BYTES_MAX


def test_a_file_is_keyed_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_bytes(b"one\ntwo\n")
    feed = input_feed(str(path))
    assert anyio.run(take_all, feed) == [Line("novel.txt#0", b"one"), Line("novel.txt#0", b"two")]


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="absent"):
        anyio.run(take_all, input_feed(str(tmp_path / "absent")))


def test_the_library_uses_many_keys_from_the_start() -> None:
    async def first_lines() -> Sequence[Line]:
        return await library_feed().take(200)

    assert len({line.key for line in anyio.run(first_lines)}) >= 20


def test_a_descriptor_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="cannot read standard input"):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            anyio.run(take_all, input_feed("-", stdin=descriptor))
        finally:
            os.close(descriptor)
