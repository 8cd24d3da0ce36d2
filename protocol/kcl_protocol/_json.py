"""JSON by orjson if it is installed, else by the standard library: clients depend on nothing."""

from __future__ import annotations

import json
from importlib import import_module
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Final, NoReturn


def _has_orjson() -> bool:
    try:
        import_module("orjson")
    except ImportError:
        return False
    return True


HAS_ORJSON: Final = _has_orjson()
if TYPE_CHECKING or HAS_ORJSON:
    import orjson
if TYPE_CHECKING:
    from collections.abc import Callable

_LONG_LIMIT: Final = 2**63


def plain_dump_line(fields: dict[str, object]) -> bytes:
    """A message as one ASCII line. TypeError if an integer does not fit in 64 bits."""
    _refuse_long_integers(fields)
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


def plain_load(line: bytes) -> object:
    """Parse JSON; lone surrogates stay. Raises ValueError or RecursionError."""
    return json.loads(line.decode(), parse_constant=refuse_constant)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _refuse_long_integers(value: object) -> None:
    if isinstance(value, dict):
        for each in value.values():
            _refuse_long_integers(each)
    elif isinstance(value, list):
        for each in value:
            _refuse_long_integers(each)
    elif isinstance(value, int) and not -_LONG_LIMIT <= value < 2 * _LONG_LIMIT:
        raise TypeError(f"{value} exceeds 64-bit range")


def fast_dump_line(fields: dict[str, object]) -> bytes:
    """As `plain_dump_line`, by orjson. May change texts of `fields` and of its `records` in place."""
    try:
        line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a lone surrogate has no UTF-8 form, only an escape
        return _dump_escaped(fields)
    # orjson cannot escape non-ASCII text. Most lines have none; the others are dumped a second time.
    return line if line.isascii() else _dump_escaped(fields)


def fast_load(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        # orjson refuses escaped lone surrogates, which a partition key may hold; the standard library keeps
        # them.
        return plain_load(line)


def _dump_escaped(fields: dict[str, object]) -> bytes:
    _escape(fields)
    records = fields.get("records")
    if isinstance(records, list):
        for record in records:
            _escape(record)
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _escape(fields: dict[str, object]) -> None:
    """Replace non-ASCII texts with escaped JSON."""
    for name, value in fields.items():
        if isinstance(value, str) and not value.isascii():
            fields[name] = orjson.Fragment(encode_basestring_ascii(value))


dump_line: Final[Callable[[dict[str, object]], bytes]] = fast_dump_line if HAS_ORJSON else plain_dump_line
load: Final[Callable[[bytes], object]] = fast_load if HAS_ORJSON else plain_load
