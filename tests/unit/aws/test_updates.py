"""UpdateItem over the daemon's own transport: what the service says is what the SDK would make of it, and it is sent once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from kcl_daemon.aws.access import AwsAccess, CallLimiters, ConditionFailed, Item
from kcl_daemon.aws.build import open_update_item
from kcl_daemon.aws.dynamodb import UpdateItem
from kcl_daemon.errors import AccessDenied, AwsError, InvalidRequest, TableNotFound, Throttled, Unavailable
from kcl_daemon.transport.pool import ServiceEndpoint
from tests.contract.aws_access import local_clients
from tests.unit.fakes import LoopClock
from tests.unit.transport.scripted import Exchange, Script, Server, serving

pytestmark = pytest.mark.anyio
ROW = b'{"leaseKey":{"S":"k"},"n":{"N":"1"},"b":{"B":"AAE="},"l":{"L":[{"B":"/w=="},{"M":{"x":{"NULL":true}}}]}}'
ITEM: Item = {
    "leaseKey": {"S": "k"},
    "n": {"N": "1"},
    "b": {"B": b"\x00\x01"},
    "l": {"L": [{"B": b"\xff"}, {"M": {"x": {"NULL": True}}}]},
}


class Ahead(LoopClock):
    """Can be put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@asynccontextmanager
async def updating(
    script: Script, clock: LoopClock | None = None
) -> AsyncGenerator[tuple[Server, UpdateItem]]:
    async with serving(script) as server:
        with local_clients(dynamodb=f"http://127.0.0.1:{server.port}") as clients:
            async with open_update_item(clients, clock or LoopClock()) as updates:
                assert updates is not None
                yield server, updates


async def update(updates: UpdateItem) -> Item:
    return await updates({"TableName": "t", "Key": {"leaseKey": {"S": "k"}}, "ReturnValues": "ALL_NEW"})


async def test_an_update_is_the_request_that_the_sdk_would_send() -> None:
    heads: list[bytes] = []

    async def script(exchange: Exchange) -> None:
        heads.append(exchange.head)
        await exchange.answer(b'{"Attributes":%b}' % ROW)

    async with updating(script) as (server, updates):
        assert await update(updates) == ITEM
    assert server.requests == [b'{"TableName":"t","Key":{"leaseKey":{"S":"k"}},"ReturnValues":"ALL_NEW"}']
    assert b"X-Amz-Target: DynamoDB_20120810.UpdateItem\r\n" in heads[0]
    assert b"Content-Type: application/x-amz-json-1.0\r\n" in heads[0]
    assert b"/us-east-1/dynamodb/aws4_request" in heads[0]


@pytest.mark.parametrize("name", ["Message", "message"])
@pytest.mark.parametrize(
    ("reported", "item"), [(b',"Item":%b' % ROW, ITEM), (b"", None), (b',"Item":7', None)]
)
async def test_a_condition_that_does_not_hold_tells_the_item_in_the_way(
    reported: bytes, item: Item | None, name: str
) -> None:
    code = b"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"
    body = b'{"__type":"%b","%b":"The conditional request failed"%b}' % (code, name.encode(), reported)
    async with updating(lambda exchange: exchange.answer(body, "400 Bad Request")) as (_, updates):
        with pytest.raises(ConditionFailed) as raised:
            await update(updates)
    assert raised.value.item == item


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        ("400 Bad Request", b'{"__type":"x#ProvisionedThroughputExceededException"}', Throttled),
        ("400 Bad Request", b'{"__type":"x#ResourceNotFoundException"}', TableNotFound),
        ("400 Bad Request", b'{"__type":"x#ValidationException"}', InvalidRequest),
        ("400 Bad Request", b'{"__type":"x#AccessDeniedException"}', AccessDenied),
        ("500 Oops", b'{"__type":"x#InternalServerError"}', Unavailable),
        ("200 OK", b"{}", Unavailable),
        ("200 OK", b"no JSON", Unavailable),
        ("200 OK", b'{"Attributes":{"b":{"B":"?"}}}', Unavailable),
    ],
)
async def test_other_answers_are_reported_in_our_words(
    status: str, body: bytes, kind: type[AwsError]
) -> None:
    async with updating(lambda exchange: exchange.answer(body, status)) as (_, updates):
        with pytest.raises(kind) as raised:
            await update(updates)
    assert type(raised.value) is kind


async def test_an_update_without_an_answer_is_not_sent_again() -> None:
    """On a connection that had rested: a read would be sent once more."""
    clock = Ahead()

    async def script(exchange: Exchange) -> None:
        await exchange.answer(b'{"Attributes":%b}' % ROW)
        await exchange.connection.receive()
        raise anyio.EndOfStream

    async with updating(script, clock) as (server, updates):
        await update(updates)
        clock.ahead_s += 10.0
        with pytest.raises(Unavailable):
            await update(updates)
        assert server.connections == 1
        assert await update(updates) == ITEM


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({"AWS_ACCOUNT_ID": "123456789012"}, "https://123456789012.ddb.us-east-1.amazonaws.com/"),
        ({}, "https://dynamodb.us-east-1.amazonaws.com/"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "https://dynamodb-fips.us-east-1.amazonaws.com/"),
    ],
)
async def test_an_update_goes_where_the_sdk_would_send_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with local_clients(real_dynamodb=True) as clients:
        access = AwsAccess(clients.of_dynamodb, CallLimiters().leases.reads)
        found = await access.target("UpdateItem", {"TableName": "t", "Key": {"leaseKey": {"S": "k"}}})
    assert found == ServiceEndpoint(url, "us-east-1", "dynamodb")


async def test_where_endpoints_are_discovered_the_sdk_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_DISCOVERY_ENABLED", "true")
    with local_clients(real_dynamodb=True) as clients:
        async with open_update_item(clients, LoopClock()) as updates:
            assert updates is None
    with local_clients(dynamodb="http://127.0.0.1:1") as clients:
        async with open_update_item(clients, LoopClock()) as updates:
            assert updates is not None, "an endpoint that is given is not discovered"
