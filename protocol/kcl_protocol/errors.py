"""Errors of a conversation, and the wire names of failed checkpoints."""

from __future__ import annotations

from typing import ClassVar


class ProtocolError(Exception):
    """Raised when one side of a conversation breaks its rules."""


class LocalProtocolError(ProtocolError):
    """Raised when our own side tries to send what the conversation does not allow now."""


class RemoteProtocolError(ProtocolError):
    """Raised when the other side sends what the conversation does not allow now."""


class CheckpointError(Exception):
    """Raised when a checkpoint was not stored; each subclass is one wire name, KCL's Java class name.

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
    """Raised in a client for an unknown wire name."""

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
    """`UnknownCheckpointError` if the wire name is not one of KCL's five."""
    kind = _BY_WIRE_NAME.get(wire_name)
    return UnknownCheckpointError(wire_name) if kind is None else kind(detail or kind.__doc__ or wire_name)
