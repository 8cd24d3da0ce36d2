"""Making sure that a table is there, against a scripted DynamoDB: `kcl_daemon.aws.tables` and `dynamodb`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

import pytest
from botocore.stub import Stubber

from kcl_daemon.aws.access import CallLimiters
from kcl_daemon.aws.build import build_tables
from kcl_daemon.aws.dynamodb import DynamoTable
from kcl_daemon.aws.session import Clients
from kcl_daemon.aws.tables import TableSpec, creation_request, index_request
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.tables import TableOptions, TablesSettings
from kcl_daemon.errors import AccessDenied, AwsError, InvalidRequest, TableNotFound, Throttled, Unavailable
from kcl_daemon.leases.row import Equals, RowUpdate
from tests.contract.aws_access import QuickClock, local_clients

pytestmark = pytest.mark.anyio

SPEC = TableSpec("app", "leaseKey", has_owner_index=True)
ITEM: dict[str, Any] = {"leaseKey": {"S": "k"}, "n": {"N": "1"}}


READY: dict[str, Any] = {
    "TableStatus": "ACTIVE",
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
}


class Script:
    """DynamoDB that answers as it was told, in that order, and a table over it."""

    def __init__(self, clients: Clients) -> None:
        self.clock = QuickClock()
        self._stubber = Stubber(clients.dynamodb)
        self.table = DynamoTable(
            SPEC, clients.dynamodb, CallLimiters().leases, clock=self.clock, ready_within_s=10
        )
        self._stubber.activate()

    def answer(self, operation: str, answer: dict[str, Any], **expected: Any) -> None:
        self._stubber.add_response(operation, answer, expected or None)

    def refuse(self, operation: str, code: str, message: str = "") -> None:
        self._stubber.add_client_error(operation, code, message)

    def status(self, status: str) -> None:
        self.answer(
            "describe_table",
            {
                "Table": {**READY, "TableStatus": status},
            },
            TableName="app",
        )

    def absent(self) -> None:
        self.refuse("describe_table", "ResourceNotFoundException")

    def finish(self) -> None:
        self._stubber.assert_no_pending_responses()


@pytest.fixture
def script() -> Generator[Script, None, None]:
    with local_clients() as clients:
        made = Script(clients)
        yield made
        made.finish()


@pytest.mark.parametrize("status", ["ACTIVE", "UPDATING"])
async def test_a_table_that_can_be_used_is_taken(script: Script, status: str) -> None:
    script.status(status)
    assert not await script.table.ensure()
    assert script.clock.sleeps == []


async def test_an_absent_table_is_created_and_waited_for(script: Script) -> None:
    script.absent()
    script.answer("create_table", {}, **creation_request(SPEC))
    script.absent()  # right after its creation it may not be seen yet
    script.answer("create_table", {}, **creation_request(SPEC))
    script.status("CREATING")
    script.status("ACTIVE")
    assert await script.table.ensure()
    assert script.clock.sleeps == pytest.approx([0.2, 0.3, 0.45])


async def test_a_table_that_somebody_else_creates_is_waited_for(script: Script) -> None:
    script.absent()
    script.refuse("create_table", "ResourceInUseException")
    for _ in range(4):
        script.status("CREATING")
    script.status("ACTIVE")
    assert not await script.table.ensure()
    assert script.clock.sleeps == pytest.approx([0.2, 0.3, 0.45, 0.675, 1.0125])


async def test_a_table_that_is_ready_at_once_is_not_waited_for(script: Script) -> None:
    script.absent()
    script.answer("create_table", {"TableDescription": READY}, **creation_request(SPEC))
    assert await script.table.ensure()
    assert script.clock.sleeps == []


async def test_an_added_index_is_asked_for_and_not_waited_for(script: Script) -> None:
    script.status("ACTIVE")
    script.answer("update_table", {}, **index_request(SPEC, {"BillingModeSummary": {}}))
    await script.table.add_owner_index()
    assert script.clock.sleeps == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ResourceInUseException", Unavailable),
        ("LimitExceededException", Throttled),
        ("AccessDeniedException", AccessDenied),
        ("ValidationException", InvalidRequest),
    ],
)
async def test_a_refused_index_is_reported_in_our_words(
    script: Script, code: str, kind: type[AwsError]
) -> None:
    script.status("ACTIVE")
    script.refuse("update_table", code)
    with pytest.raises(AwsError, match="UpdateTable") as raised:
        await script.table.add_owner_index()
    assert type(raised.value) is kind


async def test_an_index_that_is_there_can_be_removed(script: Script) -> None:
    index = {"IndexName": "LeaseOwnerToLeaseKeyIndex", "IndexStatus": "ACTIVE"}
    script.answer("describe_table", {"Table": {**READY, "GlobalSecondaryIndexes": [index]}}, TableName="app")
    asked = [{"Delete": {"IndexName": "LeaseOwnerToLeaseKeyIndex"}}]
    script.answer("update_table", {}, TableName="app", GlobalSecondaryIndexUpdates=asked)
    await script.table.remove_owner_index()


async def test_an_index_that_is_not_there_cannot_be_removed(script: Script) -> None:
    script.answer("describe_table", {"Table": {"TableStatus": "ACTIVE"}}, TableName="app")
    with pytest.raises(InvalidRequest):
        await script.table.remove_owner_index()


async def test_recovery_is_one_call(script: Script) -> None:
    asked = {"PointInTimeRecoveryEnabled": True}
    script.answer("update_continuous_backups", {}, TableName="app", PointInTimeRecoverySpecification=asked)
    await script.table.enable_recovery()


async def test_a_table_that_is_too_new_for_recovery_is_asked_again(script: Script) -> None:
    script.refuse("update_continuous_backups", "ContinuousBackupsUnavailableException")
    with pytest.raises(Unavailable, match="UpdateContinuousBackups"):
        await script.table.enable_recovery()


async def test_pauses_do_not_grow_beyond_two_seconds(script: Script) -> None:
    for _ in range(9):
        script.status("CREATING")
    script.status("ACTIVE")
    await script.table.ensure()
    assert script.clock.sleeps[-1] == 2.0


async def test_a_table_that_is_being_deleted_is_created_anew(script: Script) -> None:
    script.status("DELETING")
    script.absent()
    script.answer("create_table", {})
    script.status("ACTIVE")
    assert await script.table.ensure()


async def test_waiting_has_an_end(script: Script) -> None:
    for _ in range(10):
        script.status("CREATING")
    with pytest.raises(Unavailable, match="app is still CREATING after 10 s"):
        await script.table.ensure()
    assert script.clock.now_s >= 10


async def test_a_state_that_does_not_pass_is_reported_at_once(script: Script) -> None:
    script.status("INACCESSIBLE_ENCRYPTION_CREDENTIALS")
    with pytest.raises(Unavailable, match="app cannot be used: it is INACCESSIBLE_ENCRYPTION_CREDENTIALS"):
        await script.table.ensure()


async def test_a_refused_creation_is_reported(script: Script) -> None:
    script.absent()
    script.refuse("create_table", "LimitExceededException")
    with pytest.raises(Throttled, match="CreateTable"):
        await script.table.ensure()


async def test_a_refusal_without_the_item_is_followed_by_a_read(script: Script) -> None:
    script.refuse("update_item", "ConditionalCheckFailedException")
    script.answer(
        "get_item", {"Item": ITEM}, TableName="app", Key={"leaseKey": {"S": "k"}}, ConsistentRead=True
    )
    written = await script.table.update(RowUpdate("k", put={"a": 1}, require=(Equals("n", 2),)))
    assert (written.applied, written.row) == (False, {"leaseKey": "k", "n": 1})


async def test_an_update_without_changes_sends_none(script: Script) -> None:
    # DynamoDB creates the row then.
    script.answer(
        "update_item",
        {"Attributes": {"leaseKey": {"S": "k"}}},
        TableName="app",
        Key={"leaseKey": {"S": "k"}},
        ReturnValues="ALL_NEW",
    )
    written = await script.table.update(RowUpdate("k"))
    assert (written.applied, written.row) == (True, {"leaseKey": "k"})


async def test_a_conditional_write_asks_for_the_row_that_refuses_it(script: Script) -> None:
    script.answer(
        "put_item",
        {},
        TableName="app",
        Item=ITEM,
        ConditionExpression="#0 = :0",
        ExpressionAttributeNames={"#0": "n"},
        ExpressionAttributeValues={":0": {"N": "2"}},
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )
    assert (await script.table.put({"leaseKey": "k", "n": 1}, (Equals("n", 2),))).applied


async def test_owned_keys_are_read_over_all_pages(script: Script) -> None:
    query: dict[str, Any] = {
        "TableName": "app",
        "IndexName": "LeaseOwnerToLeaseKeyIndex",
        "KeyConditionExpression": "#owner = :owner",
        "ExpressionAttributeNames": {"#owner": "leaseOwner"},
        "ExpressionAttributeValues": {":owner": {"S": "w-1"}},
    }
    last = {"leaseKey": {"S": "b"}, "leaseOwner": {"S": "w-1"}}
    page = [{"leaseKey": {"S": "a"}, "leaseOwner": {"S": "w-1"}}, last]
    script.answer("query", {"Items": page, "LastEvaluatedKey": last}, **query)
    script.answer("query", {"Items": [{"leaseKey": {"S": "c"}}]}, **query, ExclusiveStartKey=last)
    assert await script.table.owned_keys("w-1") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (
            "ValidationException",
            "The table does not have the specified index: LeaseOwnerTo...",
            TableNotFound,
        ),
        ("ValidationException", "Cannot read from backfilling global secondary index: L...", TableNotFound),
        ("ResourceNotFoundException", "Requested resource not found", TableNotFound),
        ("ValidationException", "ExpressionAttributeValues must not be empty", InvalidRequest),
    ],
)
async def test_a_missing_or_unfinished_index_is_not_found(
    script: Script, code: str, message: str, kind: type[AwsError]
) -> None:
    script.refuse("query", code, message)
    with pytest.raises(AwsError) as raised:
        await script.table.owned_keys("w-1")
    assert type(raised.value) is kind
    assert str(raised.value) == f"Query: {code}: {message}"


async def test_answers_that_are_none_are_unavailable(script: Script) -> None:
    for operation in ("scan", "query", "update_item", "describe_table"):
        script.answer(operation, {})
    with pytest.raises(Unavailable, match="Scan: the answer has no Items"):
        await script.table.scan()
    with pytest.raises(Unavailable, match="Query: the answer has no Items"):
        await script.table.owned_keys("w-1")
    with pytest.raises(Unavailable, match="UpdateItem: the answer has no Attributes"):
        await script.table.update(RowUpdate("k", put={"a": 1}))
    with pytest.raises(Unavailable, match="DescribeTable: the answer has no Table"):
        await script.table.ensure()


def test_an_application_has_its_three_tables() -> None:
    settings = Settings(
        "app",
        "orders",
        ChildSettings(("true",)),
        "w-1",
        tables=TablesSettings(leases=TableOptions(name="leases")),
    )
    with local_clients() as clients:
        tables = build_tables(settings, clients, QuickClock())
    made = [cast("DynamoTable", each) for each in (tables.leases, tables.worker_metrics, tables.coordinator)]
    assert [(table.name, table.key_attribute) for table in made] == [
        ("leases", "leaseKey"),
        ("app-WorkerMetricStats", "wid"),
        ("app-CoordinatorState", "key"),
    ]


def test_only_the_lease_table_has_the_index() -> None:
    assert "GlobalSecondaryIndexes" in creation_request(SPEC)
    request = creation_request(TableSpec("app-CoordinatorState", "key"))
    assert "GlobalSecondaryIndexes" not in request
    assert request.get("AttributeDefinitions") == [{"AttributeName": "key", "AttributeType": "S"}]
