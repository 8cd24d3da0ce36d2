"""Every error the daemon raises on purpose; adapters translate others into these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class KclError(Exception):
    pass


class ConfigurationError(KclError):
    """The message names file, key and value."""


class AwsError(KclError):
    """`operation` is the API call, such as `GetRecords`."""

    def __init__(self, message: str, *, operation: str = "") -> None:
        super().__init__(f"{operation}: {message}" if operation else message)
        self.operation = operation


class Throttled(AwsError):
    """The service limited the rate: nothing took effect, try again later."""


class Unavailable(AwsError):
    """The service failed or did not answer: a write may have taken effect."""


class ChildNotListed(Unavailable):
    """A shard was read to its end."""


class AccessDenied(AwsError):
    """A retry alone does not help."""


class EnvironmentLacks(KclError):
    """The process environment lacks something that only a person can add."""


class NoRegion(Unavailable, EnvironmentLacks):
    pass


class NoCredentials(AccessDenied, EnvironmentLacks):
    pass


class StreamNotFound(AwsError):
    pass


class TableNotFound(AwsError):
    pass


class SchemaNotFound(AwsError):
    pass


class IteratorExpired(AwsError):
    """The shard iterator is too old; get a new one."""


class Trimmed(AwsError):
    """The position is older than what the stream keeps; records were lost."""


class ConsumerLimitReached(AwsError):
    pass


class SubscriptionTaken(AwsError):
    """Another subscription of this consumer to this shard."""


class InvalidRequest(AwsError):
    """The service calls a request malformed: our bug, or a bad setting."""


NO_FAN_OUT: Final = (ConsumerLimitReached, AccessDenied, InvalidRequest)
"""With these a stream can only be polled."""


class LeaseError(KclError):
    pass


class LeaseLost(LeaseError):
    """This worker no longer holds the lease it writes."""


class DeadLetterNotStored(KclError):
    """This host could not store a dead letter; it may still be stored."""


class LettersUnusable(KclError):
    """Letters cannot be had, or have changed meanwhile; says what to do."""


class DeadLetterTooLarge(KclError):
    """The destination never takes a letter of this size; says what to set."""


class WorkerIdTaken(KclError):
    """An older live process has our worker id."""


class CpuUnreadable(KclError):
    """This machine gives no CPU figure; the message says what was read."""


class Invariant(StrEnum):
    """What is checked while the daemon runs; the values are those of the label `invariant`."""

    LEASE_COUNTER = "lease_counter"
    ONE_CHILD = "one_child"
    CHECKPOINT_WINDOW = "checkpoint_window"
    POSITIONS_GROW = "positions_grow"
    ANSWERED_ONCE = "answered_once"
    MEMORY = "memory"


@dataclass
class InvariantViolated(KclError):
    """A bug of the daemon. It ends one consumer, which begins anew after a pause."""

    invariant: Invariant
    expected: str
    seen: str

    def __str__(self) -> str:
        return f"invariant {self.invariant.value} does not hold: expected {self.expected}, seen {self.seen}"


class ChildError(KclError):
    """The child is replaced; other shards do not notice."""


class ChildStartFailed(ChildError):
    """`message` is for a properties file, `plain` for a command line."""

    def __init__(self, message: str, *, plain: str = "") -> None:
        super().__init__(message)
        self.plain = plain or message


@dataclass
class ChildExited(ChildError):
    """`doing` is its action or `idle`; `status` is negative for a signal, None if only stdout was closed."""

    doing: str
    status: int | None

    def __str__(self) -> str:
        how = "closed its stdout" if self.status is None else f"ended with {describe_exit(self.status)}"
        return f"child {how} during {self.doing}"


@dataclass
class ChildTimedOut(ChildError):
    doing: str
    seconds: float

    def __str__(self) -> str:
        return f"child did not answer {self.doing} within {self.seconds:g} s"


@dataclass
class ChildBrokeProtocol(ChildError):
    what: str

    def __str__(self) -> str:
        return f"child broke the protocol: {self.what}"


def describe_exit(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
