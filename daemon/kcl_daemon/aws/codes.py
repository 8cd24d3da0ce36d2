"""What a service's error codes mean to the daemon.

Owns the one table from codes to `kcl_daemon.errors`. Pure: knows no SDK, so that an in-memory service can use it too.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    IteratorExpired,
    Throttled,
    Unavailable,
)

_NOT_FOUND: Final = frozenset(
    {"EntityNotFoundException", "ResourceNotFoundException", "TableNotFoundException"}
)
_THROTTLED: Final = frozenset({
    "BandwidthLimitExceeded", "KMSThrottlingException", "LimitExceededException",
    "ProvisionedThroughputExceededException", "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException",
    "SlowDown", "ThrottledException", "Throttling", "ThrottlingException", "TooManyRequestsException",
})  # fmt: skip
_DENIED: Final = frozenset({
    "AccessDenied", "AccessDeniedException", "AuthFailure", "ExpiredToken", "ExpiredTokenException",
    "IncompleteSignature", "IncompleteSignatureException", "InvalidClientTokenId", "InvalidIdentityToken",
    "InvalidSignatureException", "KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException",
    "KMSNotFoundException", "KMSOptInRequired", "MissingAuthenticationToken", "MissingAuthenticationTokenException",
    "NotAuthorized", "OptInRequired", "RequestExpired", "SignatureDoesNotMatch", "UnrecognizedClientException",
})  # fmt: skip
# A stream or table that exists but is in no state for the call; a token of ours that took too long; a write that ran
# into another region's or a transaction: all pass by themselves.
_PASSING: Final = frozenset({
    "ContinuousBackupsUnavailableException", "ExpiredNextTokenException", "InternalFailure", "InternalFailureException", "InternalServerError", "ReplicatedWriteConflictException",
    "RequestTimeout", "RequestTimeoutException", "ResourceInUseException", "ServiceUnavailable",
    "ServiceUnavailableException", "TransactionConflictException", "TransactionInProgressException",
})  # fmt: skip
_EXPIRED_ITERATOR: Final = "ExpiredIteratorException"
_MESSAGE_CHARACTERS: Final = 500


def service_error(
    code: str, message: str, *, operation: str, not_found: type[AwsError], status: int | None = None
) -> AwsError:
    """The daemon's error for a service's refusal.

    Args:
        code: the service's error code, such as `ThrottlingException`.
        message: the service's words; only the first line is shown, as signatures are explained in the others.
        operation: the API call.
        not_found: what a missing resource is called here: StreamNotFound, TableNotFound or SchemaNotFound.
        status: HTTP status, for codes that are not known here.
    """
    return _kind(code, status, not_found)(_shown(code, message), operation=operation)


def cancelled_part(code: str, message: str, *, operation: str, not_found: type[AwsError]) -> AwsError:
    """The daemon's error for the code of one part of a cancelled transaction, such as `TransactionConflict`."""
    for spelling in (code, f"{code}Exception", code.removesuffix("Error")):
        kind = _kind(spelling, None, not_found)
        if kind is not InvalidRequest:
            return kind(_shown(code, message), operation=operation)
    return InvalidRequest(_shown(code, message), operation=operation)


def _kind(code: str, status: int | None, not_found: type[AwsError]) -> type[AwsError]:
    if code in _NOT_FOUND:
        return not_found
    if code == _EXPIRED_ITERATOR:
        return IteratorExpired
    for codes, kind in ((_THROTTLED, Throttled), (_DENIED, AccessDenied), (_PASSING, Unavailable)):
        if code in codes:
            return kind
    return _kind_by_status(status)


def _kind_by_status(status: int | None) -> type[AwsError]:
    match status:
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Throttled
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return AccessDenied
        case HTTPStatus.REQUEST_TIMEOUT:
            return Unavailable
        case int() if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Unavailable
        case _:
            return InvalidRequest


def _shown(code: str, message: str) -> str:
    first_line = message.strip().partition("\n")[0][:_MESSAGE_CHARACTERS]
    return f"{code}: {first_line}" if first_line else code
