"""Which text the demo writes, cut how, and what counts as a word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_local.demo.text import (
    KEY_LENGTH_MAX,
    LINE_BYTES_MAX,
    Line,
    file_by_file,
    in_blocks,
    interleave,
    library_files,
    licence_file,
    partition_key,
    read_lines,
    words,
)


def test_words_are_letters_in_lower_case_with_an_inner_apostrophe() -> None:
    assert words(b"Don't split_this, 3rd 'quoted' X1Y --- end.") == [
        "don't", "split", "this", "rd", "quoted", "x", "y", "end",
    ]  # fmt: skip


def test_words_of_other_scripts_count() -> None:
    assert words("Füße МИР 日本".encode()) == ["füße", "мир", "日本"]


@given(st.binary())
def test_any_bytes_have_words_without_blanks_or_capitals(data: bytes) -> None:
    for word in words(data):
        assert word == word.lower()
        assert not any(character.isspace() for character in word)


def test_the_library_has_its_licence_first_and_then_its_top_modules() -> None:
    files = library_files()
    licence = licence_file()
    names = [key for key, _ in files]
    if licence is not None:
        assert files[0] == (licence.name, licence)
    assert names.index("os.py") < names.index("json/decoder.py")
    assert not any("site-packages" in name or name.startswith("test/") for name in names)
    assert len(set(names)) == len(names)


def test_lines_are_read_as_bytes_without_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"unix\ndos\r\n\n\xff\xfe no text\nlast without end")
    assert list(read_lines(path)) == [b"unix", b"dos", b"", b"\xff\xfe no text", b"last without end"]


def test_a_very_long_line_comes_in_pieces_that_fit_into_a_record(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * (LINE_BYTES_MAX * 2 + 5) + b"\nshort\n")
    assert [len(line) for line in read_lines(path)] == [LINE_BYTES_MAX, LINE_BYTES_MAX, 5, 5]


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(1, 5))
def test_interleaving_keeps_every_line_and_the_order_of_each_source(
    lengths: list[int], at_a_time: int
) -> None:
    sources = [[Line(str(key), str(n).encode()) for n in range(length)] for key, length in enumerate(lengths)]
    mixed = list(interleave((iter(source) for source in sources), at_a_time))
    assert len(mixed) == sum(lengths)
    for key, source in enumerate(sources):
        assert [line for line in mixed if line.key == str(key)] == source


def test_interleaving_takes_turns() -> None:
    sources = [[Line(key, b"1"), Line(key, b"2")] for key in "abc"]
    assert [line.key for line in interleave((iter(source) for source in sources), 2)] == list("ababcc")


def test_files_are_opened_only_when_their_turn_comes(tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"here\n")
    lines = interleave(file_by_file([("a", tmp_path / "first"), ("b", tmp_path / "absent")]), 1)
    assert next(lines) == Line("a", b"here")
    with pytest.raises(FileNotFoundError):
        next(lines)


def test_one_text_is_spread_over_keys_in_blocks() -> None:
    lines = list(in_blocks("novel.txt", (str(number).encode() for number in range(250))))
    assert [lines[at].key for at in (0, 99, 100, 249)] == [
        "novel.txt#0",
        "novel.txt#0",
        "novel.txt#1",
        "novel.txt#2",
    ]


@given(st.text(max_size=600) | st.binary(min_size=1, max_size=600).map(os.fsdecode))
def test_any_file_name_makes_a_legal_partition_key(name: str) -> None:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return  # not a file name: a lone surrogate that stands for no byte
    for key in (partition_key(name), next(in_blocks(name, [b""])).key):
        assert 1 <= len(key) <= KEY_LENGTH_MAX
        key.encode()
