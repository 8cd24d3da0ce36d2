from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Final, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    LoginError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    SchemaNotFound,
    StreamNotFound,
    TableNotFound,
    Unavailable,
)
from kcl_daemon.transport.service_answers import cancelled_part, service_error

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef


T = TypeVar("T")
Item = Mapping[str, "AttributeValueTypeDef"]

# Includes threads of cancelled callers.
_THREADS_PER_SLOT: Final = 3
_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_TRANSACTION_CANCELLED: Final = "TransactionCanceledException"
_PART_REFUSED: Final = "ConditionalCheckFailed"
_PART_UNTOUCHED: Final = "None"
_CREDENTIALS: Final = (
    CredentialRetrievalError,
    LoginError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)
SDK_ERRORS: Final = (BotoCoreError, ClientError, ResponseParserError, HTTPError, OSError)
# A renewal takes 10 ms: 8 threads renew 2,400 leases in the 3 s between renewals.
_LEASE_WRITES: Final = 8
_OTHER_WRITES: Final = 2
_READS: Final = 4
# The SDK only finds endpoints and credentials of Kinesis.
_KINESIS_CALLS: Final = 4
_SCHEMA_CALLS: Final = 2
DYNAMODB_CONNECTIONS: Final = _LEASE_WRITES + _OTHER_WRITES + _READS
GLUE_CONNECTIONS: Final = _SCHEMA_CALLS


class ConditionFailed(AwsError):
    """`item` refused the write."""

    def __init__(self, operation: str, item: Item | None) -> None:
        super().__init__("the condition does not hold", operation=operation)
        self.item = item


class TransactionCancelled(AwsError):
    """Indexes of the parts whose conditions do not hold."""

    def __init__(self, operation: str, refused: tuple[int, ...]) -> None:
        super().__init__("conditions do not hold", operation=operation)
        self.refused = refused


class CallLimiter:
    def __init__(self, slots: int, *, not_found: type[AwsError]) -> None:
        self._not_found = not_found
        self._limiter = CapacityLimiter(slots)
        self._threads = BoundedSemaphore(slots * _THREADS_PER_SLOT)

    async def run(self, operation: str, call: Callable[[], T]) -> T:
        """Also Unavailable if too many threads of cancelled callers go on."""
        return await to_thread.run_sync(
            self._work, operation, call, abandon_on_cancel=True, limiter=self._limiter
        )

    def _work(self, operation: str, call: Callable[[], T]) -> T:
        if not self._threads.acquire(blocking=False):
            raise Unavailable("too many earlier calls have not been answered yet", operation=operation)
        try:
            return call()
        except SDK_ERRORS as error:
            raise translated(error, operation=operation, not_found=self._not_found) from error
        finally:
            self._threads.release()


def translated(error: Exception, *, operation: str, not_found: type[AwsError]) -> AwsError:
    """If the SDK failed on the way (AssumeRole), the error names that operation."""
    if isinstance(error, ClientError):
        return _error_for(error, operation, not_found)
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(str(error), operation=operation)
    if isinstance(error, ParamValidationError):
        return InvalidRequest(str(error), operation=operation)
    return Unavailable(f"{type(error).__name__}: {error}", operation=operation)


def _error_for(error: ClientError, operation: str, not_found: type[AwsError]) -> AwsError:
    answer = cast("Mapping[str, object]", error.response)
    details = cast("Mapping[str, str]", answer.get("Error", {}))
    code = details.get("Code", "")
    if code == _CONDITION_FAILED:
        return ConditionFailed(operation, cast("Item | None", answer.get("Item")))
    if code == _TRANSACTION_CANCELLED:
        return _cancellation(answer, operation, not_found)
    metadata = cast("Mapping[str, int]", answer.get("ResponseMetadata", {}))
    return service_error(
        code,
        details.get("Message", ""),
        operation=error.operation_name or operation,
        not_found=not_found,
        status=metadata.get("HTTPStatusCode"),
    )


def _cancellation(answer: Mapping[str, object], operation: str, not_found: type[AwsError]) -> AwsError:
    reasons = cast("list[Mapping[str, str]]", answer.get("CancellationReasons", []))
    codes = [reason.get("Code", _PART_UNTOUCHED) for reason in reasons]
    refused = tuple(number for number, code in enumerate(codes) if code == _PART_REFUSED)
    if refused:
        return TransactionCancelled(operation, refused)
    for code, reason in zip(codes, reasons, strict=True):
        if code != _PART_UNTOUCHED:
            return cancelled_part(code, reason.get("Message", ""), operation=operation, not_found=not_found)
    return Unavailable("the transaction was cancelled without a reason", operation=operation)


@dataclass(frozen=True, slots=True)
class TableLimiters:
    reads: CallLimiter
    writes: CallLimiter


class CallLimiters:
    def __init__(self) -> None:
        reads = CallLimiter(_READS, not_found=TableNotFound)
        self.leases = TableLimiters(reads, CallLimiter(_LEASE_WRITES, not_found=TableNotFound))
        self.others = TableLimiters(reads, CallLimiter(_OTHER_WRITES, not_found=TableNotFound))
        self.kinesis = CallLimiter(_KINESIS_CALLS, not_found=StreamNotFound)
        self.schemas = CallLimiter(_SCHEMA_CALLS, not_found=SchemaNotFound)
