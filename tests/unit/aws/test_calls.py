"""Blocking calls in threads and their errors: `kcl_daemon.aws.access`."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest
from anyio import create_task_group, fail_after, to_thread, wait_all_tasks_blocked
from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError
from urllib3.exceptions import ProtocolError

from kcl_daemon.aws.access import CallLimiter, ConditionFailed, TransactionCancelled, translated
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    StreamNotFound,
    TableNotFound,
    Throttled,
    Unavailable,
)

pytestmark = pytest.mark.anyio


def refusal(code: str, status: int = 400, operation: str = "UpdateItem", **more: object) -> sdk.ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": "why"},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **more,
    }
    return sdk.ClientError(answer, operation)


class Gate:
    """A blocking call that waits until the test lets it go, or for a minute."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go = threading.Event()
        self.ended = threading.Event()

    def __call__(self) -> str:
        self.began.set()
        self.go.wait(60)
        self.ended.set()
        return "done"


@pytest.fixture
def gate() -> Generator[Gate, None, None]:
    made = Gate()
    yield made
    made.go.set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refusal("ThrottlingException"), Throttled),
        (refusal("ResourceNotFoundException"), StreamNotFound),
        (refusal("AccessDeniedException"), AccessDenied),
        (refusal("ValidationException"), InvalidRequest),
        (refusal("InternalServerError", 500), Unavailable),
        (refusal("", 502), Unavailable),
        (sdk.NoCredentialsError(), AccessDenied),
        (sdk.PartialCredentialsError(provider="env", cred_var="secret"), AccessDenied),
        (sdk.CredentialRetrievalError(provider="sso", error_msg="expired"), AccessDenied),
        (sdk.UnauthorizedSSOTokenError(), AccessDenied),
        (sdk.ParamValidationError(report="Limit"), InvalidRequest),
        (sdk.ConnectTimeoutError(endpoint_url="http://x"), Unavailable),
        (sdk.ReadTimeoutError(endpoint_url="http://x"), Unavailable),
        (sdk.EndpointConnectionError(endpoint_url="http://x"), Unavailable),
        (sdk.ConnectionClosedError(endpoint_url="http://x"), Unavailable),
        (sdk.SSLError(endpoint_url="http://x", error=OSError("certificate")), Unavailable),
        (sdk.ProxyConnectionError(proxy_url="http://x", error="refused"), Unavailable),
        (sdk.HTTPClientError(error="broken"), Unavailable),
        (ResponseParserError("no JSON"), Unavailable),
        (ProtocolError("cut"), Unavailable),
        (ConnectionResetError("cut"), Unavailable),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_errors_of_the_sdk_are_reported_in_our_words(error: Exception, kind: type[AwsError]) -> None:
    limiter = CallLimiter(1, not_found=StreamNotFound)

    def call() -> None:
        raise error

    with pytest.raises(AwsError) as raised:
        await limiter.run("UpdateItem", call)
    assert type(raised.value) is kind
    assert raised.value.operation == "UpdateItem"
    assert raised.value.__cause__ is error


async def test_our_own_mistakes_are_not_taken_for_the_services() -> None:
    limiter = CallLimiter(1, not_found=StreamNotFound)
    with pytest.raises(ZeroDivisionError):
        await limiter.run("UpdateItem", lambda: 1 // 0)


def test_a_refused_condition_brings_the_item() -> None:
    item = {"leaseKey": {"S": "k"}}
    error = translated(
        refusal("ConditionalCheckFailedException", Item=item), operation="PutItem", not_found=TableNotFound
    )
    assert isinstance(error, ConditionFailed)
    assert error.item == item


def test_a_refused_condition_may_bring_no_item() -> None:
    refused = refusal("ConditionalCheckFailedException")
    error = translated(refused, operation="PutItem", not_found=TableNotFound)
    assert isinstance(error, ConditionFailed)
    assert error.item is None


def cancelled(*codes: str) -> AwsError:
    reasons = [{"Code": code} if code == "None" else {"Code": code, "Message": "why"} for code in codes]
    error = refusal("TransactionCanceledException", CancellationReasons=reasons)
    return translated(error, operation="TransactWriteItems", not_found=TableNotFound)


def test_a_cancelled_transaction_tells_which_parts_were_refused() -> None:
    error = cancelled("None", "ConditionalCheckFailed", "TransactionConflict", "ConditionalCheckFailed")
    assert isinstance(error, TransactionCancelled)
    assert error.refused == (1, 3)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("TransactionConflict", Unavailable),
        ("ThrottlingError", Throttled),
        ("ProvisionedThroughputExceeded", Throttled),
        ("ValidationError", InvalidRequest),
        ("ItemCollectionSizeLimitExceeded", InvalidRequest),
    ],
)
def test_a_transaction_cancelled_for_another_reason_is_an_error(code: str, kind: type[AwsError]) -> None:
    error = cancelled("None", code)
    assert type(error) is kind
    assert str(error) == f"TransactWriteItems: {code}: why"


def test_a_transaction_cancelled_for_no_reason_may_be_tried_again() -> None:
    assert type(cancelled()) is Unavailable
    assert type(cancelled("None")) is Unavailable


def test_a_call_that_the_sdk_made_on_the_way_is_named() -> None:
    refused = refusal("AccessDenied", 403, operation="AssumeRole")
    error = translated(refused, operation="GetRecords", not_found=StreamNotFound)
    assert (type(error), error.operation) == (AccessDenied, "AssumeRole")


async def test_a_cancelled_call_is_left_at_once(gate: Gate) -> None:
    limiter = CallLimiter(1, not_found=TableNotFound)
    with fail_after(30):
        async with create_task_group() as tasks:
            tasks.start_soon(limiter.run, "UpdateItem", gate)
            await to_thread.run_sync(gate.began.wait)
            tasks.cancel_scope.cancel()
        assert not gate.ended.is_set()
        # And its slot is free for others.
        assert await limiter.run("UpdateItem", lambda: "next") == "next"


async def test_a_lane_runs_no_more_calls_than_it_has_slots(gate: Gate) -> None:
    limiter = CallLimiter(2, not_found=TableNotFound)
    running: list[int] = []
    most: list[int] = []

    def call() -> None:
        running.append(1)
        most.append(len(running))
        gate.go.wait(60)
        running.pop()

    async with create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(limiter.run, "UpdateItem", call)
        await wait_all_tasks_blocked()
        gate.go.set()
    assert len(most) == 6
    assert max(most) <= 2


async def test_a_full_lane_does_not_hold_up_another(gate: Gate) -> None:
    slow, quick = CallLimiter(1, not_found=TableNotFound), CallLimiter(1, not_found=TableNotFound)
    async with create_task_group() as tasks:
        tasks.start_soon(slow.run, "Scan", gate)
        await to_thread.run_sync(gate.began.wait)
        with fail_after(30):
            assert await quick.run("UpdateItem", lambda: "renewed") == "renewed"
        assert not gate.ended.is_set()
        gate.go.set()


async def test_threads_whose_callers_have_gone_are_bounded(gate: Gate) -> None:
    limiter = CallLimiter(1, not_found=TableNotFound)
    for _ in range(3):
        began = threading.Event()

        def call(began: threading.Event = began) -> None:
            began.set()
            gate.go.wait(60)

        async with create_task_group() as tasks:
            tasks.start_soon(limiter.run, "UpdateItem", call)
            await to_thread.run_sync(began.wait)
            tasks.cancel_scope.cancel()
    with pytest.raises(Unavailable, match="earlier calls"):
        await limiter.run("UpdateItem", lambda: "never")
