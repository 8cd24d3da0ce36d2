"""Every error the daemon raises on purpose; adapters translate the world's errors into these at the edge."""

from __future__ import annotations

from dataclasses import dataclass


class KclError(Exception):
    """The base of all of them."""


class ConfigurationError(KclError):
    """Raised when a setting is missing, malformed or contradicts another; the message names file, key and value."""


class AwsError(KclError):
    """Raised when a call to AWS did not succeed.

    Args:
        message: what the service or the network said.
        operation: the API call, such as `GetRecords`.
    """

    def __init__(self, message: str, *, operation: str = "") -> None:
        super().__init__(f"{operation}: {message}" if operation else message)
        self.operation = operation


class Throttled(AwsError):
    """Raised when the service refused for its rate; nothing took effect, the same call may succeed later."""


class Unavailable(AwsError):
    """Raised when the service failed or did not answer in time; a write may or may not have taken effect."""


class AccessDenied(AwsError):
    """Raised when credentials are missing, expired or lack a permission; retrying does not help by itself."""


class EnvironmentLacks(KclError):
    """Mixed in where the environment of this process lacks something that only a person can add."""


class NoRegion(Unavailable, EnvironmentLacks):
    """Raised when nobody names an AWS region."""


class NoCredentials(AccessDenied, EnvironmentLacks):
    """Raised when there are no AWS credentials anywhere."""


class StreamNotFound(AwsError):
    """Raised when the stream or the shard does not exist (any more)."""


class TableNotFound(AwsError):
    """Raised when a DynamoDB table or its index does not exist."""


class SchemaNotFound(AwsError):
    """Raised when the schema registry has no such version, or none any more."""


class IteratorExpired(AwsError):
    """Raised when a shard iterator is too old; ask for a new one."""


class ConsumerLimitReached(AwsError):
    """Raised when the stream has as many fan-out consumers as it may have."""


class SubscriptionTaken(AwsError):
    """Raised when another subscription of the same consumer to the same shard stands in the way of this one."""


class InvalidRequest(AwsError):
    """Raised when the service calls a request malformed; a fault of ours or of a setting."""


class LeaseError(KclError):
    """The base of what can happen to a lease."""


class LeaseLost(LeaseError):
    """Raised when this worker no longer holds the lease it tried to write."""


class DeadLetterNotStored(KclError):
    """Raised when a dead letter could not be stored for a reason of this host; it may have been stored."""


class WorkerIdTaken(KclError):
    """Raised when another process that lives has our worker id, and began earlier."""


class CpuUnreadable(KclError):
    """Raised when this machine does not tell how busy the worker's CPU is; the message says what was read."""


class ChildError(KclError):
    """The base of what a child process can do wrong. The child is replaced; other shards do not notice."""


class ChildStartFailed(ChildError):
    """Raised when the program of `executableName` cannot be started.

    Args:
        message: for whoever wrote the properties file.
        plain: for whoever named the program on a command line.
    """

    def __init__(self, message: str, *, plain: str = "") -> None:
        super().__init__(message)
        self.plain = plain or message


@dataclass
class ChildExited(ChildError):
    """Raised when the child ended or closed its stdout while it was still needed.

    Attributes:
        doing: the action under way, or `idle`.
        status: its exit code, negative for a signal, None where it only closed stdout.
    """

    doing: str
    status: int | None

    def __str__(self) -> str:
        how = "closed its stdout" if self.status is None else f"ended with {describe_exit(self.status)}"
        return f"child {how} during {self.doing}"


@dataclass
class ChildTimedOut(ChildError):
    """Raised when the child did not answer in time.

    Attributes:
        doing: the action it was given.
        seconds: how long it had.
    """

    doing: str
    seconds: float

    def __str__(self) -> str:
        return f"child did not answer {self.doing} within {self.seconds:g} s"


@dataclass
class ChildBrokeProtocol(ChildError):
    """Raised when the child said something the conversation does not allow."""

    what: str

    def __str__(self) -> str:
        return f"child broke the protocol: {self.what}"


def describe_exit(status: int) -> str:
    """An exit status in words: `exit code 3`, `signal 9`."""
    return f"signal {-status}" if status < 0 else f"exit code {status}"
