"""Errors of a conversation, and the wire names of failed checkpoints and rejects."""

from __future__ import annotations

from typing import ClassVar


class ProtocolError(Exception):
    """One side of a conversation broke its rules."""


class LocalProtocolError(ProtocolError):
    """Our own side tried to send what the conversation does not allow now."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what the conversation does not allow now."""


class CheckpointError(Exception):
    """A checkpoint was not stored; each subclass is one wire name, KCL's Java class name.

    `retryable`: the same request may succeed later.
    """

    wire_name: ClassVar[str] = "RuntimeException"
    retryable: ClassVar[bool] = False


class CheckpointThrottled(CheckpointError):
    """Raised when DynamoDB throttled the write; back off and ask again."""

    wire_name = "ThrottlingException"
    retryable = True


class CheckpointDependencyFailed(CheckpointError):
    """Raised when DynamoDB failed or did not answer; back off and ask again."""

    wire_name = "KinesisClientLibDependencyException"
    retryable = True


class CheckpointShutdown(CheckpointError):
    """Raised when the lease is no longer held: another worker has the shard, stop working on it."""

    wire_name = "ShutdownException"


class CheckpointInvalidState(CheckpointError):
    """Raised when no checkpoint is possible now: during initialize or leaseLost, or with the lease table gone."""

    wire_name = "InvalidStateException"


class CheckpointIllegalArgument(CheckpointError):
    """Raised when the position is malformed, before the last checkpoint or beyond what was delivered."""

    wire_name = "IllegalArgumentException"


class UnknownCheckpointError(CheckpointError):
    """An unknown wire name, in a client."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


_BY_WIRE_NAME: dict[str, type[CheckpointError]] = {
    kind.wire_name: kind
    for kind in (
        CheckpointThrottled,
        CheckpointDependencyFailed,
        CheckpointShutdown,
        CheckpointInvalidState,
        CheckpointIllegalArgument,
    )
}


def checkpoint_error(wire_name: str, detail: str = "") -> CheckpointError:
    """`UnknownCheckpointError` for a name that is none of KCL's five."""
    kind = _BY_WIRE_NAME.get(wire_name)
    return UnknownCheckpointError(wire_name) if kind is None else kind(detail or kind.__doc__ or wire_name)


class RejectError(Exception):
    """A rejected record is not stored as a dead letter, and so not done.

    `wire_name` is the daemon's; there may be others than those of the subclasses.
    """

    wire_name: str = CheckpointInvalidState.wire_name


class NoDeadLetterDestination(RejectError):
    """The daemon has nowhere to store the record: set `deadLetterDestination`."""

    wire_name = "NoDeadLetterDestination"


class DeadLetterTooLarge(RejectError):
    """The destination never takes a letter of this size."""

    wire_name = "DeadLetterTooLarge"


class RecordNotInBatch(RejectError):
    """The record is not one of the batch that is being processed."""

    wire_name = CheckpointIllegalArgument.wire_name


_REJECTS_BY_WIRE_NAME: dict[str, type[RejectError]] = {
    kind.wire_name: kind for kind in (NoDeadLetterDestination, DeadLetterTooLarge, RecordNotInBatch)
}


def reject_error(wire_name: str, detail: str) -> RejectError | CheckpointShutdown:
    """A plain `RejectError` for a name that is none of ours."""
    if wire_name == CheckpointShutdown.wire_name:
        return CheckpointShutdown(detail)
    error = _REJECTS_BY_WIRE_NAME.get(wire_name, RejectError)(detail)
    error.wire_name = wire_name
    return error
