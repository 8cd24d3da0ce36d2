"""What a child's stdout line means to the daemon, read as tolerantly as KCL reads it.

A child's stdout is shared with whatever its author prints, so nothing here is an error: a line that is no message is
`Stray`. Where KCL's reader only leaves the child hanging or dies, this one is kinder: unknown extra fields, the
pre-2017 key `checkpoint` and a bare `null` do no harm. Knows nothing of what may be said when (`conversation`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from json import JSONDecoder
from typing import Final, NoReturn

from kcl_protocol.messages import (
    CheckpointRequest,
    ChildMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)

# The most of a stray line that is kept: a log line, not a payload.
_STRAY_CHARACTERS: Final = 2_000
_REASON_CHARACTERS: Final = 80
_JSON_SPACE: Final = b" \t\r\n"
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LONG_LIMIT: Final = 2**63
_DAEMON_ACTIONS: Final = frozenset(
    kind.action for kind in (Initialize, ProcessRecords, LeaseLost, ShardEnded, ShutdownRequested, Shutdown)
)


@dataclass(frozen=True, slots=True)
class Echo:
    """The child repeated a message of the daemon; without meaning, as in KCL."""

    action: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A line that is no message: the program's own output, or a message too broken to be understood.

    Args:
        reason: why it is none, for the log.
        text: the line, undecodable bytes replaced, at most 2,000 characters and then an ellipsis.
        blank: whether it holds nothing but spaces; not worth a log line, many children send such lines as separators.
    """

    reason: str
    text: str
    blank: bool = False


class _NumberText(str):
    """A JSON number as it was written: no digit of a sequence number may be lost on the way."""

    __slots__ = ()


class _Unusable(Exception):
    """Raised when a line is not a message; says why."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


# The standard library's decoder, not orjson: it gives a number's own digits and stops after the first value.
_DECODER: Final = JSONDecoder(parse_int=_NumberText, parse_float=_NumberText, parse_constant=_refuse_constant)


def decode_child_line(line: bytes) -> ChildMessage | Echo | Stray:
    """What one line means, with or without its terminator. Never raises, whatever the bytes.

    As in KCL only the first object on a line counts and undecodable bytes are replaced before the line is read.
    Numbers and texts are taken for each other where the field is clear: a numeric `sequenceNumber` keeps its
    digits, `subSequenceNumber` "3" is 3 and 4.7 is 4.
    """
    trimmed = line.strip(_JSON_SPACE)
    if not trimmed:
        return Stray("blank line", "", blank=True)
    try:
        return _message(_first_object(trimmed))
    except _Unusable as error:
        return Stray(str(error), _excerpt(trimmed))


def _first_object(trimmed: bytes) -> dict[str, object]:
    if not trimmed.startswith(b"{"):
        raise _Unusable("not a JSON object")
    try:
        fields: dict[str, object]
        fields, _end = _DECODER.raw_decode(trimmed.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"not JSON: {error}") from error
    return fields


def _message(fields: dict[str, object]) -> ChildMessage | Echo:
    action = fields.get("action")
    if action == Status.action:
        return Status(_text(fields, "responseFor"))
    if action == CheckpointRequest.action:
        # Until 2016 the position was called `checkpoint`, like the action.
        key = "sequenceNumber" if "sequenceNumber" in fields else "checkpoint"
        return CheckpointRequest(_text(fields, key), _integer(fields, "subSequenceNumber"))
    if not isinstance(action, str):
        raise _Unusable('no "action" with a text')
    if action in _DAEMON_ACTIONS:
        return Echo(action)
    raise _Unusable(f"unknown action {action[:_REASON_CHARACTERS]!r}")


def _text(fields: dict[str, object], key: str) -> str | None:
    match fields.get(key):
        case None:
            return None
        case bool(value):
            return "true" if value else "false"
        case str(value):
            return str(value)
        case _:
            raise _Unusable(f'"{key}" is not a text')


def _integer(fields: dict[str, object], key: str) -> int | None:
    """An optional 64-bit integer; texts are trimmed, and empty or "null" is null (KCL: Jackson's coercions)."""
    value = fields.get(key)
    if value is None:
        return None
    number: float | None = None
    if isinstance(value, str):
        text = value.strip()
        if text in ("", "null"):
            return None
        if _WHOLE_NUMBER.fullmatch(text):
            number = int(text)
        elif isinstance(value, _NumberText):
            number = float(text)
    if number is None or not -_LONG_LIMIT <= number < _LONG_LIMIT:
        raise _Unusable(f'"{key}" is not a 64-bit integer')
    return int(number)


def _excerpt(trimmed: bytes) -> str:
    # No character takes more than four bytes, so this prefix is enough and a long line costs nothing.
    text = trimmed[: _STRAY_CHARACTERS * 4 + 4].decode("utf-8", "replace")
    return text if len(text) <= _STRAY_CHARACTERS else f"{text[:_STRAY_CHARACTERS]}…"
