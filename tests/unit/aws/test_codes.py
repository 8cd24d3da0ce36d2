"""What error codes mean: `kcl_daemon.transport.service_answers`."""

from __future__ import annotations

import pytest

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    IteratorExpired,
    StreamNotFound,
    TableNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.transport.service_answers import service_error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ProvisionedThroughputExceededException", Throttled),
        ("ThrottlingException", Throttled),
        ("LimitExceededException", Throttled),
        ("ExpiredIteratorException", IteratorExpired),
        ("ResourceInUseException", Unavailable),
        ("InternalServerError", Unavailable),
        ("ExpiredNextTokenException", Unavailable),
        ("UnrecognizedClientException", AccessDenied),
        ("KMSDisabledException", AccessDenied),
        ("InvalidArgumentException", InvalidRequest),
        ("NeverHeardOfException", InvalidRequest),
    ],
)
def test_known_codes_have_their_kind(code: str, kind: type[AwsError]) -> None:
    error = service_error(code, "why", operation="GetRecords", not_found=StreamNotFound, status=400)
    assert type(error) is kind
    assert str(error) == f"GetRecords: {code}: why"
    assert error.operation == "GetRecords"


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "EntityNotFoundException"])
@pytest.mark.parametrize("kind", [StreamNotFound, TableNotFound])
def test_a_missing_resource_is_what_the_caller_asks_for(kind: type[AwsError], code: str) -> None:
    error = service_error(code, "", operation="X", not_found=kind)
    assert type(error) is kind
    assert str(error) == f"X: {code}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (None, InvalidRequest),
        (400, InvalidRequest),
        (413, InvalidRequest),
        (401, AccessDenied),
        (403, AccessDenied),
        (408, Unavailable),
        (429, Throttled),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_unknown_codes_are_judged_by_their_status(status: int | None, kind: type[AwsError]) -> None:
    error = service_error("???", "", operation="X", not_found=StreamNotFound, status=status)
    assert type(error) is kind


def test_a_known_code_goes_before_its_status() -> None:
    error = service_error("ThrottlingException", "", operation="X", not_found=StreamNotFound, status=500)
    assert type(error) is Throttled


def test_only_the_first_line_of_a_message_is_shown() -> None:
    message = "does not match\nThe Canonical String was\nx-amz-security-token:secret"
    error = service_error("InvalidSignatureException", message, operation="X", not_found=StreamNotFound)
    assert str(error) == "X: InvalidSignatureException: does not match"


def test_a_long_message_is_cut() -> None:
    error = service_error("ValidationException", "x" * 10_000, operation="X", not_found=StreamNotFound)
    assert len(str(error)) < 600
