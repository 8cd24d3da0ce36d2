"""Reads the arguments of a call: presence, type and range. Knows no operation.

The refusals of the service. Knows only codes and messages; HTTP is the server's business.

What can be set about the Kinesis model. The defaults are the service's own figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast


class ServiceError(Exception):
    """Raised when the service refuses or fails a call.

    Attributes:
        code: as on the wire, such as `ResourceNotFoundException`, or `kcl_local.faults.DROP` for no answer at all.
        message: what was wrong.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def invalid_argument(message: str) -> ServiceError:
    """An argument that is well-formed but makes no sense here."""
    return ServiceError("InvalidArgumentException", message)


def malformed(message: str) -> ServiceError:
    """An argument that is missing, of the wrong type or out of its range."""
    return ServiceError("ValidationException", message)


def not_found(message: str) -> ServiceError:
    """A stream or shard that does not exist, no longer exists or cannot be read yet."""
    return ServiceError("ResourceNotFoundException", message)


def in_use(message: str) -> ServiceError:
    """A stream that exists but is in no state for this call."""
    return ServiceError("ResourceInUseException", message)


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


MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How fast one shard may be read, by all its readers together.

    A consumer with fan-out has the bytes for itself.

    Args:
        reads_per_s: GetRecords calls in any one second.
        bytes_per_s: a shard that gave more than this within a second gives nothing more until it would have taken
            that long at this rate: five seconds after an answer of 10 MiB.
    """

    reads_per_s: int = 5
    bytes_per_s: int = 2 * MIB


@dataclass(frozen=True, slots=True)
class FanOutRules:
    """Settings of consumers with enhanced fan-out.

    Args:
        consumers_max: of one stream.
        creating_s: how long a new consumer is CREATING.
        deleting_s: how long a deregistered one is DELETING; 0: it is gone at once.
        idle_s: an event without records is sent after that long without one.
        lasts_s: a subscription ends by itself after that long.
        protected_s: how soon after a subscription another one for the same consumer and shard is refused; later it
            takes over.
        event_bytes_max: data and partition keys in one event; one larger record is given all the same.
        initial_response: whether a stream of events begins with that frame, as the service's does.
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
        iterator_ttl_s: age at which a shard iterator is refused; 0: at once.
        retention_hours: of new streams.
        creating_s: how long a new stream is CREATING.
        answer_bytes_max: data and partition keys in one GetRecords answer; one larger record is given all the same.
        record_bytes_max: data and partition key of one record, in streams created without a limit of their own.
        fan_out: of consumers and their subscriptions.
    """

    limits: ReadLimits | None = None
    iterator_ttl_s: float = 300.0
    retention_hours: int = 24
    creating_s: float = 0.0
    answer_bytes_max: int = 10 * MIB
    record_bytes_max: int = 1 * MIB
    fan_out: FanOutRules = _FAN_OUT


DEFAULTS: Final = KinesisOptions()
