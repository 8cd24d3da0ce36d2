"""What only the real adapter of the port `Table` can meet: a service that fails, and tables that others made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from kcl_daemon.aws.access import CallLimiters
from kcl_daemon.aws.dynamodb import DynamoTable
from kcl_daemon.aws.session import Clients
from kcl_daemon.aws.tables import TableSpec
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ConfigurationError,
    InvalidRequest,
    TableNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.leases.row import OWNER_INDEX, Equals, Row, RowUpdate
from kcl_local.dynamodb import DynamoDbServer
from kcl_local.faults import DROP
from tests.contract.aws_access import QuickClock, local_clients

pytestmark = pytest.mark.anyio

KEY = "leaseKey"
LEASE: Row = {KEY: "k", "leaseCounter": 3, "leaseOwner": "w-1"}
RENEWAL = RowUpdate("k", put={"leaseCounter": 4}, require=(Equals("leaseCounter", 3),))
_numbers = count(1)


@dataclass(frozen=True)
class Service:
    """DynamoDB on loopback, and clients of it."""

    server: DynamoDbServer
    clients: Clients

    def table(self, name: str | None = None) -> DynamoTable:
        spec = TableSpec(name or f"table-{next(_numbers)}", KEY, has_owner_index=True)
        return DynamoTable(spec, self.clients.dynamodb, CallLimiters().leases, clock=QuickClock())

    def create(self, **changed: Any) -> str:
        """A table as somebody else would create it; gives its name."""
        name = f"foreign-{next(_numbers)}"
        request: Any = {
            "TableName": name,
            "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
            **changed,
        }
        self.clients.dynamodb.create_table(**request)
        return name


@pytest.fixture(scope="module")
def service() -> Generator[Service, None, None]:
    with DynamoDbServer() as server, local_clients(dynamodb=server.url) as clients:
        yield Service(server, clients)


@pytest.fixture
async def table(service: Service) -> DynamoTable:
    made = service.table()
    await made.ensure()
    await made.put(LEASE)
    service.server.calls.clear()
    return made


FAILURES = [
    ("ProvisionedThroughputExceededException", Throttled),
    ("ThrottlingException", Throttled),
    ("RequestLimitExceeded", Throttled),
    ("InternalServerError", Unavailable),
    ("ServiceUnavailable", Unavailable),
    ("TransactionConflictException", Unavailable),
    (DROP, Unavailable),
    ("AccessDeniedException", AccessDenied),
    ("UnrecognizedClientException", AccessDenied),
    ("ExpiredTokenException", AccessDenied),
    ("ValidationException", InvalidRequest),
    ("ItemCollectionSizeLimitExceededException", InvalidRequest),
    ("ResourceNotFoundException", TableNotFound),
]


@pytest.mark.parametrize(("code", "kind"), FAILURES)
async def test_a_failure_is_reported_in_our_words_and_not_tried_again(
    service: Service, table: DynamoTable, code: str, kind: type[AwsError]
) -> None:
    service.server.fail_next("UpdateItem", code)
    with pytest.raises(AwsError) as raised:
        await table.update(RENEWAL)
    assert type(raised.value) is kind
    assert raised.value.operation == "UpdateItem"
    assert service.server.calls["UpdateItem"] == 1
    assert await table.get("k") == LEASE


@pytest.mark.parametrize("operation", ["GetItem", "Scan", "Query", "PutItem", "UpdateItem", "DeleteItem"])
async def test_every_call_can_be_throttled_and_names_itself(
    service: Service, table: DynamoTable, operation: str
) -> None:
    service.server.fail_next(operation, "ThrottlingException")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "GetItem": lambda: table.get("k"),
        "Scan": table.scan,
        "Query": lambda: table.owned_keys("w-1"),
        "PutItem": lambda: table.put({KEY: "other"}),
        "UpdateItem": lambda: table.update(RENEWAL),
        "DeleteItem": lambda: table.delete("k"),
    }
    with pytest.raises(Throttled) as raised:
        await calls[operation]()
    assert raised.value.operation == operation
    assert await table.scan() == [LEASE]


@pytest.mark.parametrize("code", ["InternalServerError", DROP])
async def test_an_update_whose_answer_is_lost_has_taken_effect_all_the_same(
    service: Service, table: DynamoTable, code: str
) -> None:
    service.server.fail_next("UpdateItem", code, after=True)
    with pytest.raises(Unavailable):
        await table.update(RENEWAL)
    assert await table.get("k") == {**LEASE, "leaseCounter": 4}
    assert service.server.calls["UpdateItem"] == 1


@pytest.mark.parametrize("code", ["InternalServerError", DROP])
async def test_a_put_or_delete_whose_answer_is_lost_has_taken_effect_all_the_same(
    service: Service, table: DynamoTable, code: str
) -> None:
    service.server.fail_next("PutItem", code, after=True)
    with pytest.raises(Unavailable):
        await table.put({KEY: "other"})
    service.server.fail_next("DeleteItem", code, after=True)
    with pytest.raises(Unavailable):
        await table.delete("k")
    assert await table.scan() == [{KEY: "other"}]


async def test_a_refused_write_brings_its_row_without_a_further_call(
    service: Service, table: DynamoTable
) -> None:
    refused = await table.update(RowUpdate("k", put={"a": 1}, require=(Equals("leaseCounter", 9),)))
    assert (refused.applied, refused.row) == (False, LEASE)
    assert service.server.calls["GetItem"] == 0


async def test_a_long_scan_takes_several_calls(service: Service, table: DynamoTable) -> None:
    for number in range(20):
        await table.put({KEY: f"key-{number}", "filling": "x" * 60_000})
    assert len(await table.scan()) == 21
    assert service.server.calls["Scan"] == 2


async def test_nobody_there_is_unavailable() -> None:
    with local_clients() as clients:
        spec = TableSpec("table", KEY)
        table = DynamoTable(spec, clients.dynamodb, CallLimiters().leases, clock=QuickClock())
        with pytest.raises(Unavailable, match="GetItem: EndpointConnectionError"):
            await table.get("k")


async def test_a_created_table_is_what_java_workers_expect(service: Service, table: DynamoTable) -> None:
    described = service.clients.dynamodb.describe_table(TableName=table.name)["Table"]
    assert described.get("KeySchema") == [{"AttributeName": KEY, "KeyType": "HASH"}]
    assert described.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST"
    (index,) = described.get("GlobalSecondaryIndexes", [])
    assert index.get("IndexName") == "LeaseOwnerToLeaseKeyIndex"
    assert index.get("KeySchema") == [
        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
        {"AttributeName": KEY, "KeyType": "RANGE"},
    ]
    assert index.get("Projection") == {"ProjectionType": "KEYS_ONLY"}


async def test_an_existing_table_without_the_index_is_taken_as_it_is(service: Service) -> None:
    table = service.table(service.create())
    assert not await table.ensure()
    await table.put(LEASE)
    with pytest.raises(TableNotFound, match=OWNER_INDEX):
        await table.owned_keys("w-1")
    described = service.clients.dynamodb.describe_table(TableName=table.name)["Table"]
    assert not described.get("GlobalSecondaryIndexes")


async def test_a_table_with_another_key_is_refused_by_name(service: Service) -> None:
    name = service.create(
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "id", "AttributeType": "S"},
            {"AttributeName": "at", "AttributeType": "N"},
        ],
    )
    for poll in (service.table(name).ensure, service.table(name).describe):
        with pytest.raises(ConfigurationError) as raised:
            await poll()
        assert str(raised.value).startswith(
            f"DynamoDB table {name} is no lease table: its key is id (S, HASH) + at (N, RANGE), "
            "not leaseKey (S, HASH); "
        )


async def test_a_table_whose_key_has_another_type_is_refused(service: Service) -> None:
    name = service.create(AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "B"}])
    with pytest.raises(ConfigurationError, match=r"leaseKey \(B, HASH\)"):
        await service.table(name).ensure()


async def test_attributes_of_foreign_types_are_left_out_and_left_alone(
    service: Service, table: DynamoTable
) -> None:
    item: Any = {
        KEY: {"S": "foreign"},
        "leaseCounter": {"N": "3"},
        "nothing": {"NULL": True},
        "flag": {"BOOL": False},
        "numbers": {"NS": ["1", "2"]},
        "blobs": {"BS": [b"a"]},
        "mixed": {"M": {"flag": {"BOOL": True}, "text": {"S": "t"}}},
    }
    service.clients.dynamodb.put_item(TableName=table.name, Item=item)
    known: Row = {KEY: "foreign", "leaseCounter": 3, "mixed": {"text": "t"}}
    assert await table.get("foreign") == known
    written = await table.update(RowUpdate("foreign", add={"leaseCounter": 1}))
    assert written.row == {**known, "leaseCounter": 4}
    kept = service.clients.dynamodb.get_item(TableName=table.name, Key={KEY: {"S": "foreign"}}).get("Item")
    assert kept == {**item, "leaseCounter": {"N": "4"}}
