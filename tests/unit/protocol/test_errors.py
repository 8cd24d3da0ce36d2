"""The names of failed checkpoints and rejects and the errors that stand for them."""

from __future__ import annotations

import pytest

from kcl_protocol.errors import (
    CheckpointDependencyFailed,
    CheckpointError,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointShutdown,
    CheckpointThrottled,
    DeadLetterTooLarge,
    LocalProtocolError,
    NoDeadLetterDestination,
    ProtocolError,
    RecordNotInBatch,
    RejectError,
    RemoteProtocolError,
    UnknownCheckpointError,
    checkpoint_error,
    reject_error,
)

NAMES: list[tuple[str, type[CheckpointError], bool]] = [
    ("ThrottlingException", CheckpointThrottled, True),
    ("KinesisClientLibDependencyException", CheckpointDependencyFailed, True),
    ("ShutdownException", CheckpointShutdown, False),
    ("InvalidStateException", CheckpointInvalidState, False),
    ("IllegalArgumentException", CheckpointIllegalArgument, False),
]


@pytest.mark.parametrize(("name", "kind", "retryable"), NAMES)
def test_each_wire_name_has_its_error(name: str, kind: type[CheckpointError], retryable: bool) -> None:
    error = checkpoint_error(name)
    assert type(error) is kind
    assert error.wire_name == name
    assert error.retryable is retryable


def test_the_text_is_what_happened_where_nothing_better_is_known() -> None:
    assert str(checkpoint_error("ThrottlingException")) == CheckpointThrottled.__doc__
    assert str(checkpoint_error("ThrottlingException", "slow down")) == "slow down"


def test_an_unknown_name_is_kept() -> None:
    error = checkpoint_error("ProvisionedThroughputExceededException")
    assert isinstance(error, UnknownCheckpointError)
    assert error.name == "ProvisionedThroughputExceededException"
    assert str(error) == "ProvisionedThroughputExceededException"
    assert not error.retryable


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NoDeadLetterDestination", NoDeadLetterDestination),
        ("DeadLetterTooLarge", DeadLetterTooLarge),
        ("IllegalArgumentException", RecordNotInBatch),
        ("ShutdownException", CheckpointShutdown),
        ("InvalidStateException", RejectError),
        ("Unheard", RejectError),
    ],
)
def test_each_name_of_a_refused_reject_has_its_error(name: str, kind: type[Exception]) -> None:
    error = reject_error(name, "what to do")
    assert type(error) is kind
    assert (error.wire_name, str(error)) == (name, "what to do")


def test_an_unknown_name_changes_no_other_error() -> None:
    reject_error("Unheard", "")
    assert RejectError("of our own").wire_name == "InvalidStateException"


def test_local_and_remote_protocol_errors_are_apart() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)
