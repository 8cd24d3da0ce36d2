"""The syntax of a .properties file: bytes to keys and values with line numbers.

Owns nothing but syntax, which is that of `java.util.Properties` (ISO-8859-1, escapes, continued lines) as
`javaproperties` reads it. Knows no key.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import javaproperties

# CR, LF and CRLF all end a line.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_HEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key = value`.

    Args:
        key: as written, escapes resolved.
        value: escapes resolved; blanks after it belong to it.
        line: where the entry begins, counted from 1; 0: not from a file.
        variable: of the environment, where it comes from there.
    """

    key: str
    value: str
    line: int
    variable: str | None = None


class MalformedProperties(ValueError):
    """Raised when the text is no properties file; Java refuses it as well.

    Attributes:
        line: where the entry begins, counted from 1.
        reason: what is wrong with it.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def parse(data: bytes) -> Iterator[Entry]:
    """Every entry in the order of the file, repeated keys included (Java: the last one counts).

    A byte order mark of UTF-8, which editors on Windows put in front, is passed over.

    Raises:
        MalformedProperties: a backslash and `u` without four hexadecimal digits, or a file in UTF-16.
    """
    line = 1
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in data[:_HEAD_BYTES]:
        raise MalformedProperties(line, "the file is in UTF-16; save it as UTF-8 or ISO-8859-1")
    elements = javaproperties.parse(data.removeprefix(codecs.BOM_UTF8))
    while True:
        try:
            element = next(elements)
        except StopIteration:
            return
        except javaproperties.InvalidUEscapeError as error:
            raise MalformedProperties(
                line, f"{error.escape} is not a character: \\u needs four hexadecimal digits"
            ) from None
        if isinstance(element, javaproperties.KeyValue):
            yield Entry(element.key, element.value, line + _blank_lines_before(element.source))
        line += len(_LINE_END.findall(element.source))


def _blank_lines_before(source: str) -> int:
    """How many continued blank lines stand before the first character of the key."""
    before = source[: len(source) - len(source.lstrip(" \t\f\r\n\\"))]
    return len(_LINE_END.findall(before)) if "\\" in before else 0
