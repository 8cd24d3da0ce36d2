"""PURE: the head of an HTTP/1.1 answer, and how long its body is.

Reads what a service that speaks HTTP sends, and refuses everything that could be read in two ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

HEAD_BYTES_MOST: Final = 16 * 1024
# An answer of GetRecords has at most 10 MiB of data, a third more as base64, and keys.
BODY_BYTES_MOST: Final = 64 * 2**20
_LENGTH_DIGITS_MOST: Final = 20
_NO_CONTENT: Final = 204
_OK: Final = 200


class MalformedAnswer(Exception):
    """Raised when the other side does not speak HTTP/1.1 as it should; the connection is of no further use."""


class Framing(Enum):
    """Where a body ends."""

    LENGTH = "after so many bytes"
    CHUNKED = "after the chunk of no length"
    CLOSE = "when the connection is closed"


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers.

    Args:
        status: three digits.
        headers: names in lower case; of a header that comes more than once, the last.
        framing: where the body ends.
        length: bytes of the body, 0 where it is not known.
    """

    status: int
    headers: Mapping[str, str]
    framing: Framing
    length: int

    @property
    def is_final(self) -> bool:
        """False for what only announces an answer (100 Continue)."""
        return self.status >= _OK

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may be used again after the body."""
        return self.framing is not Framing.CLOSE and self.headers.get("connection", "").lower() != "close"


def parse_head(data: bytes) -> Head:
    """The head without the empty line that ends it.

    Raises:
        MalformedAnswer: it is none, or the length of the body is unclear or too large.
    """
    lines = data.decode("latin-1").split("\r\n")
    status = _status(lines[0])
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise MalformedAnswer(f"no header: {line[:80]!r}")
        name, value = name.lower(), value.strip()
        if name == "content-length" and headers.get(name, value) != value:
            raise MalformedAnswer("two lengths of one body")
        headers[name] = value
    if not lines[0].startswith("HTTP/1.1"):
        headers["connection"] = "close"
    framing, length = _framing(status, headers)
    return Head(status, headers, framing, length)


def _status(line: str) -> int:
    version, _, rest = line.partition(" ")
    digits = rest[:3]
    known = version in {"HTTP/1.1", "HTTP/1.0"} and digits.isascii() and digits.isdigit() and len(digits) == 3
    if not known or rest[3:4] not in {"", " "}:
        raise MalformedAnswer(f"no answer of HTTP/1.1: {line[:80]!r}")
    return int(digits)


def _framing(status: int, headers: Mapping[str, str]) -> tuple[Framing, int]:
    if status < _OK or status == _NO_CONTENT:
        return Framing.LENGTH, 0
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked" or "content-length" in headers:
            raise MalformedAnswer(f"a body of unclear length: transfer-encoding {coding[:80]!r}")
        return Framing.CHUNKED, 0
    text = headers.get("content-length")
    if text is None:
        return Framing.CLOSE, 0
    is_number = text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS_MOST
    if not is_number or int(text) > BODY_BYTES_MOST:
        raise MalformedAnswer(f"a body of {text[:20]!r} bytes")
    return Framing.LENGTH, int(text)
