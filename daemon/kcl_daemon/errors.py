"""Every error the daemon raises on purpose; adapters translate all others into these."""

from __future__ import annotations

from dataclasses import dataclass


class KclError(Exception):
    pass


class ConfigurationError(KclError):
    """Raised for a bad setting; the message names file, key and value."""


class AwsError(KclError):
    """Raised when an AWS call failed; `operation` is the API call, such as `GetRecords`."""

    def __init__(self, message: str, *, operation: str = "") -> None:
        super().__init__(f"{operation}: {message}" if operation else message)
        self.operation = operation


class Throttled(AwsError):
    """Raised when the service limited the rate; nothing took effect, try again later."""


class Unavailable(AwsError):
    """Raised when the service failed or did not answer; a write may have taken effect."""


class AccessDenied(AwsError):
    """Raised when credentials are missing, expired or lack a permission; a retry alone does not help."""


class EnvironmentLacks(KclError):
    """Marks errors that only a person can fix: something is missing in the process environment."""


class NoRegion(Unavailable, EnvironmentLacks):
    pass


class NoCredentials(AccessDenied, EnvironmentLacks):
    pass


class StreamNotFound(AwsError):
    """Raised when the stream or shard does not exist, or no longer."""


class TableNotFound(AwsError):
    pass


class SchemaNotFound(AwsError):
    pass


class IteratorExpired(AwsError):
    """Raised when a shard iterator is too old; get a new one."""


class ConsumerLimitReached(AwsError):
    pass


class SubscriptionTaken(AwsError):
    """Raised when another subscription of the same consumer to the same shard is in the way."""


class InvalidRequest(AwsError):
    """Raised when the service rejects a request as malformed: our bug, or a bad setting."""


class LeaseError(KclError):
    pass


class LeaseLost(LeaseError):
    """Raised when this worker no longer holds the lease it writes."""


class DeadLetterNotStored(KclError):
    """Raised when this host could not store a dead letter; it may still have been stored."""


class WorkerIdTaken(KclError):
    """Raised when an older live process has our worker id."""


class CpuUnreadable(KclError):
    """Raised when this machine gives no CPU figure; the message says what was read."""


class ChildError(KclError):
    """A child's failure. The child is replaced; other shards do not notice."""


class ChildStartFailed(ChildError):
    """Raised when the program of `executableName` cannot be started.

    `message` is for the author of the properties file, `plain` for one who named the program on a command
    line.
    """

    def __init__(self, message: str, *, plain: str = "") -> None:
        super().__init__(message)
        self.plain = plain or message


@dataclass
class ChildExited(ChildError):
    """Raised when the child ended or closed its stdout while still needed.

    `doing` is the current action or `idle`; `status` the exit code, negative for a signal, None if only
    stdout was closed.
    """

    doing: str
    status: int | None

    def __str__(self) -> str:
        how = "closed its stdout" if self.status is None else f"ended with {describe_exit(self.status)}"
        return f"child {how} during {self.doing}"


@dataclass
class ChildTimedOut(ChildError):
    """Raised when the child did not answer in time."""

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
    """`exit code 3`, `signal 9`."""
    return f"signal {-status}" if status < 0 else f"exit code {status}"
