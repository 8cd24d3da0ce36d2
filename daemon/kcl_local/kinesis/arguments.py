"""Defaults are the service's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

MAX_HASH: Final = 2**128 - 1
_HASH_DIGITS: Final = len(str(MAX_HASH))
PAGE_MAX: Final = 10_000
SHARDS_MAX: Final = 10_000
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_NUMBERS: Final[tuple[type[float], ...]] = (float, int)
T = TypeVar("T")
MIB: Final = 2**20


class ServiceError(Exception):
    """`code` as on the wire, or `DROP`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def invalid_argument(message: str) -> ServiceError:
    return ServiceError("InvalidArgumentException", message)


def malformed(message: str) -> ServiceError:
    return ServiceError("ValidationException", message)


def not_found(message: str) -> ServiceError:
    return ServiceError("ResourceNotFoundException", message)


def in_use(message: str) -> ServiceError:
    return ServiceError("ResourceInUseException", message)


class Arguments:
    """Every reader raises ServiceError `ValidationException`; JSON null counts as absent."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str:
        return _checked(name, self._values.get(name), str, "a string")

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise malformed(f"{name} must be an integer from {low} to {high}, not {value!r:.80}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        return self.integer(name, low, high) if self.has(name) else None

    def flag(self, name: str) -> bool:
        return self.has(name) and _checked(name, self._values[name], bool, "true or false")

    def hash_key(self, name: str) -> int:
        """ServiceError `InvalidArgumentException` unless it is a hash in decimal."""
        text = self.text(name)
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= _HASH_DIGITS else -1
        if not 0 <= value <= MAX_HASH:
            raise invalid_argument(f"{name} must be a decimal number from 0 to 2^128 - 1, not {text!r:.80}")
        return value

    def optional_timestamp(self, name: str) -> float | None:
        """Epoch seconds, cut to milliseconds."""
        if not self.has(name):
            return None
        return whole_milliseconds(
            _checked(name, self._values[name], _NUMBERS, "a timestamp in epoch seconds")
        )

    def structure(self, name: str) -> Arguments | None:
        return _as_arguments(name, self._values[name]) if self.has(name) else None

    def structures(self, name: str) -> list[Arguments]:
        items: list[object] = _checked(name, self._values.get(name), list, "a list")
        return [_as_arguments(name, item) for item in items]


def _checked(name: str, value: object, kind: type[T] | tuple[type[T], ...], expected: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise malformed(f"{name} must be {expected}, not {value!r:.80}")
    return value


def _as_arguments(name: str, value: object) -> Arguments:
    return Arguments(_checked(name, value, dict, "a structure"))


def checked_name(argument: str, name: str) -> str:
    """ServiceError `ValidationException`."""
    if not _NAME.fullmatch(name):
        raise malformed(f"{argument} must be 1 to 128 of a-z A-Z 0-9 _ . -, not {name!r:.140}")
    return name


def whole_milliseconds(seconds: float) -> float:
    return math.floor(seconds * 1000 + 1e-6) / 1000  # 1.001 * 1000 is a little below 1001


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """All readers of a shard share them; a fan-out consumer has the bytes for itself.

    Above `bytes_per_s` the shard refuses reads until the average is back: five seconds after 10 MiB.
    """

    reads_per_s: int = 5
    bytes_per_s: int = 2 * MIB


@dataclass(frozen=True, slots=True)
class FanOutRules:
    """A second subscription is refused within `protected_s`; later it takes over.

    An event without records comes after `idle_s`. A single record may exceed `event_bytes_max`.
    """

    consumers_max: int = 20
    creating_s: float = 0.0
    deleting_s: float = 0.0
    idle_s: float = 5.0
    lasts_s: float = 300.0
    protected_s: float = 5.0
    event_bytes_max: int = 1 * MIB
    initial_response: bool = True


_FAN_OUT: Final = FanOutRules()


@dataclass(frozen=True, slots=True)
class KinesisOptions:
    """Without `limits` reads are never refused. A single record may exceed `answer_bytes_max`."""

    limits: ReadLimits | None = None
    iterator_ttl_s: float = 300.0
    retention_hours: int = 24
    creating_s: float = 0.0
    answer_bytes_max: int = 10 * MIB
    record_bytes_max: int = 1 * MIB
    fan_out: FanOutRules = _FAN_OUT


DEFAULTS: Final = KinesisOptions()
