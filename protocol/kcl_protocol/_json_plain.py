"""JSON by the standard library, if orjson is missing."""

from __future__ import annotations

import json
from typing import Final, NoReturn

_LONG_LIMIT: Final = 2**63


def dump_line(fields: dict[str, object]) -> bytes:
    """One ASCII line. TypeError if an integer does not fit in 64 bits."""
    _refuse_long_integers(fields)
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


def load(line: bytes) -> object:
    """Lone surrogates stay. Raises ValueError or RecursionError."""
    return json.loads(line.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
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
