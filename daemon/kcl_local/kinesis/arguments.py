"""Arguments and errors of Kinesis calls, and the settings of the model; defaults are the service's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast


class ServiceError(Exception):
    """Raised when the service refuses or fails a call.

    `code` is as on the wire, such as `ResourceNotFoundException`, or `DROP`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def invalid_argument(message: str) -> ServiceError:
    """A well-formed argument that makes no sense here."""
    return ServiceError("InvalidArgumentException", message)


def malformed(message: str) -> ServiceError:
    """An argument that is missing, of the wrong type or out of range."""
    return ServiceError("ValidationException", message)


def not_found(message: str) -> ServiceError:
    """A stream or shard that does not exist, or cannot be read yet."""
    return ServiceError("ResourceNotFoundException", message)


def in_use(message: str) -> ServiceError:
    """A stream in the wrong state for this call."""
    return ServiceError("ResourceInUseException", message)


MAX_HASH: Final = 2**128 - 1
_HASH_DIGITS: Final = len(str(MAX_HASH))


class Arguments:
    """The arguments of one call, or a structure among them; JSON null counts as absent.

    Every reader raises ServiceError `ValidationException` with the argument's name.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise malformed(f"{name} must be a string, not {value!r:.80}")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def integer(self, name: str, low: int, high: int) -> int:
        """From `low` to `high`, inclusive."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise malformed(f"{name} must be an integer from {low} to {high}, not {value!r:.80}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        return self.integer(name, low, high) if self.has(name) else None

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise malformed(f"{name} must be true or false, not {value!r:.80}")
        return value is True

    def hash_key(self, name: str) -> int:
        """A hash as decimal text; else ServiceError `InvalidArgumentException`."""
        text = self.text(name)
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= _HASH_DIGITS else -1
        if not 0 <= value <= MAX_HASH:
            raise invalid_argument(f"{name} must be a decimal number from 0 to 2^128 - 1, not {text!r:.80}")
        return value

    def optional_timestamp(self, name: str) -> float | None:
        """Epoch seconds, cut to milliseconds."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise malformed(f"{name} must be a timestamp in epoch seconds, not {value!r:.80}")
        return whole_milliseconds(value)

    def structure(self, name: str) -> Arguments | None:
        value = self._values.get(name)
        if value is None:
            return None
        return _as_arguments(name, value)

    def structures(self, name: str) -> list[Arguments]:
        value = self._values.get(name)
        if not isinstance(value, list):
            raise malformed(f"{name} must be a list, not {value!r:.80}")
        return [_as_arguments(name, item) for item in cast("list[object]", value)]


def whole_milliseconds(seconds: float) -> float:
    """Cut to milliseconds, as the service does."""
    return math.floor(seconds * 1000 + 1e-6) / 1000  # 1.001 * 1000 is a little below 1001


def _as_arguments(name: str, value: object) -> Arguments:
    if not isinstance(value, dict):
        raise malformed(f"{name} must be a structure, not {value!r:.80}")
    return Arguments(cast("dict[str, object]", value))


MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How fast all readers together may read a shard; a fan-out consumer has the bytes for itself.

    Above `bytes_per_s` in a second, the shard refuses reads until the average is back: five seconds after 10
    MiB.
    """

    reads_per_s: int = 5
    bytes_per_s: int = 2 * MIB


@dataclass(frozen=True, slots=True)
class FanOutRules:
    """Settings of enhanced fan-out consumers.

    Args:
        consumers_max: per stream.
        creating_s: how long a new consumer is CREATING.
        deleting_s: how long a deregistered one is DELETING.
        idle_s: time until an event without records.
        lasts_s: lifetime of a subscription.
        protected_s: a second subscription is refused within this time; later it takes over.
        event_bytes_max: data and partition keys in one event; a larger single record still goes.
        initial_response: whether an event stream begins with that frame, as the service's does.
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
    """Settings of a `KinesisModel`.

    Args:
        limits: None: reads are never refused.
        iterator_ttl_s: 0: iterators expire at once.
        creating_s: how long a new stream is CREATING.
        answer_bytes_max: data and partition keys in one GetRecords answer; a larger single record still goes.
        record_bytes_max: default limit of one record.
    """

    limits: ReadLimits | None = None
    iterator_ttl_s: float = 300.0
    retention_hours: int = 24
    creating_s: float = 0.0
    answer_bytes_max: int = 10 * MIB
    record_bytes_max: int = 1 * MIB
    fan_out: FanOutRules = _FAN_OUT


DEFAULTS: Final = KinesisOptions()
