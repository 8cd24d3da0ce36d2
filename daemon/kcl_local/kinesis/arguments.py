"""Reads the arguments of a call: presence, type and range. Knows no operation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from kcl_local.kinesis.errors import invalid_argument, malformed

MAX_HASH: Final = 2**128 - 1
_HASH_DIGITS: Final = len(str(MAX_HASH))


class Arguments:
    """The arguments of one call, or a structure among them.

    Every reader raises ServiceError `ValidationException` that names the argument. A JSON null counts as absent.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return self._values.get(name) is not None

    def text(self, name: str) -> str:
        """A text that must be there."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise malformed(f"{name} must be a string, not {value!r:.80}")
        return value

    def optional_text(self, name: str) -> str | None:
        """A text, None where it is absent."""
        return self.text(name) if self.has(name) else None

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number between both ends, inclusive, that must be there."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise malformed(f"{name} must be an integer from {low} to {high}, not {value!r:.80}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number between both ends, None where it is absent."""
        return self.integer(name, low, high) if self.has(name) else None

    def flag(self, name: str) -> bool:
        """True or false; false where it is absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise malformed(f"{name} must be true or false, not {value!r:.80}")
        return value is True

    def hash_key(self, name: str) -> int:
        """A hash as decimal text, that must be there; else ServiceError `InvalidArgumentException`."""
        text = self.text(name)
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= _HASH_DIGITS else -1
        if not 0 <= value <= MAX_HASH:
            raise invalid_argument(f"{name} must be a decimal number from 0 to 2^128 - 1, not {text!r:.80}")
        return value

    def optional_timestamp(self, name: str) -> float | None:
        """Epoch seconds, cut to the service's milliseconds; None where it is absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise malformed(f"{name} must be a timestamp in epoch seconds, not {value!r:.80}")
        return whole_milliseconds(value)

    def structure(self, name: str) -> Arguments | None:
        """A structure, None where it is absent."""
        value = self._values.get(name)
        if value is None:
            return None
        return _as_arguments(name, value)

    def structures(self, name: str) -> list[Arguments]:
        """A list of structures that must be there."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise malformed(f"{name} must be a list, not {value!r:.80}")
        return [_as_arguments(name, item) for item in cast("list[object]", value)]


def whole_milliseconds(seconds: float) -> float:
    """The service keeps time in milliseconds: the start of the one that this falls into, in seconds."""
    return math.floor(seconds * 1000 + 1e-6) / 1000  # the crumb: 1.001 * 1000 is a little below 1001


def _as_arguments(name: str, value: object) -> Arguments:
    if not isinstance(value, dict):
        raise malformed(f"{name} must be a structure, not {value!r:.80}")
    return Arguments(cast("dict[str, object]", value))
