"""The syntax of properties files is that of java.util.Properties; line numbers are those of an editor."""

from __future__ import annotations

import javaproperties
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.config.properties import MalformedProperties, PropertyEntry, parse


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (b"a = b", "a", "b"),
        (b"a:b", "a", "b"),
        (b"a b c", "a", "b c"),
        (b"a = b  ", "a", "b  "),
        (b"a = b # c", "a", "b # c"),
        (b"l = a\\\n   # b", "l", "a# b"),
        (b"h=C:\\\\x\\y", "h", "C:\\xy"),
        (b"a=\\u00e9", "a", "\u00e9"),
        (b"a=\xe9", "a", "\u00e9"),
        (b"a=\xc3\xa9", "a", "\u00c3\u00a9"),
        (b"alone", "alone", ""),
        (b"==x", "", "=x"),
        (b"a\\ b = c", "a b", "c"),
    ],
)
def test_an_entry_reads_as_in_java(text: bytes, key: str, value: str) -> None:
    assert list(parse(text)) == [PropertyEntry(key, value, 1)]


def test_lines_are_counted_over_comments_blank_lines_and_all_line_ends() -> None:
    text = b"# one\r\n\na = 1\rb = 2\n! five\nc = 3\\\n\\\n  4\nd = 5"
    assert [(entry.key, entry.line) for entry in parse(text)] == [("a", 3), ("b", 4), ("c", 6), ("d", 9)]


def test_an_entry_after_a_continued_blank_line_stands_where_its_key_is() -> None:
    assert list(parse(b"  \\\n  a = 1\n")) == [PropertyEntry("a", "1", 2)]


def test_repeated_keys_are_all_given_in_order() -> None:
    assert [entry.value for entry in parse(b"a=1\na=2\n")] == ["1", "2"]


def test_a_broken_escape_is_refused_with_its_line() -> None:
    with pytest.raises(MalformedProperties) as caught:
        list(parse(b"a=1\n\nb=\\u12\n"))
    assert caught.value.line == 3
    assert "four hexadecimal digits" in caught.value.reason


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(max_codepoint=255)), st.text(st.characters(max_codepoint=255))))
def test_properties_that_a_java_writer_wrote_are_read_back(pairs: dict[str, str]) -> None:
    written = javaproperties.dumps(pairs, timestamp=None).encode("iso-8859-1")
    assert {entry.key: entry.value for entry in parse(written)} == pairs
