from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from http.client import HTTPConnection
from random import Random  # noqa: TID251 - seeded
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio
import orjson
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer

from kcl_local.demo.check import monotonic_s
from kcl_local.demo.stage import TICK_S, WriteRate
from kcl_local.demo.stream import call
from kcl_local.demo.tablecopy import KEY, item_text

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import WriteRequestTypeDef

TABLE: Final = "demo-orders"
RATE_MOST: Final = 250.0
_KEYS: Final = 600
_BATCH: Final = 25
_WITHIN_S: Final = 10
_CITIES: Final = ("Köln", "Łódź", "Oslo", "東京")
_TAGS: Final = ("new", "gift", "express", "b2b")
_to_dynamodb: Final = TypeSerializer()
_from_dynamodb: Final = TypeDeserializer()


class DemoTable:
    """Every method may raise DemoError. `writes` are by kind."""

    def __init__(self, client: DynamoDBClient, url: str, seed: int = 21) -> None:
        self.writes: Counter[str] = Counter()
        self._client = client
        self._url = url
        self._random = Random(seed)  # noqa: S311 # nosec B311

    async def create(self) -> None:
        await call(
            "CreateTable",
            self._client.create_table,
            TableName=TABLE,
            KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )

    async def fill(self) -> None:
        names = [self._name(number) for number in range(0, _KEYS, 2)]
        for first in range(0, len(names), _BATCH):
            await self._write([self._put(name) for name in names[first : first + _BATCH]])

    async def write(self, pace: WriteRate) -> None:
        started_s, sent = monotonic_s(), 0
        while not pace.is_done(sent):
            due = min(_BATCH, pace.due(monotonic_s() - started_s, sent))
            if due == 0:
                await anyio.sleep(TICK_S)
                continue
            names = {self._name(self._random.randrange(_KEYS)) for _ in range(due)}
            await self._write([self._any(name) for name in sorted(names)])
            await self._update(self._name(self._random.randrange(_KEYS)))
            sent += len(names) + 1

    async def order(self, action: str) -> int:
        body = orjson.dumps({"table": TABLE, "action": action})

        def send() -> bytes:
            connection = HTTPConnection(urlsplit(self._url).netloc, timeout=_WITHIN_S)
            with closing(connection):
                connection.request("POST", "/_local/changes", body, {"Content-Type": "application/json"})
                return connection.getresponse().read()

        return len(orjson.loads(await call(f"order to {action}", send))["shards"])

    async def items(self) -> dict[str, str]:
        found: dict[str, str] = {}
        begin: dict[str, Any] = {}
        while True:
            page = await call("Scan", self._client.scan, TableName=TABLE, ConsistentRead=True, **begin)
            for typed in page["Items"]:
                item = {name: _from_dynamodb.deserialize(value) for name, value in typed.items()}
                found[item[KEY]] = item_text(item)
            if not (last := page.get("LastEvaluatedKey")):
                return found
            begin = {"ExclusiveStartKey": last}

    def _name(self, number: int) -> str:
        return f"order-{number:04}-of-a-customer-with-a-long-name"

    def _any(self, name: str) -> WriteRequestTypeDef:
        return self._put(name) if self._random.random() < 0.7 else self._delete(name)

    def _put(self, name: str) -> WriteRequestTypeDef:
        self.writes["put"] += 1
        return {"PutRequest": {"Item": _typed(dict(self._item(name)))}}

    def _delete(self, name: str) -> WriteRequestTypeDef:
        self.writes["delete"] += 1
        return {"DeleteRequest": {"Key": _typed({KEY: name})}}

    def _item(self, name: str) -> Iterator[tuple[str, object]]:
        chance = self._random
        yield KEY, name
        yield "customer", f"customer-{chance.randrange(50)}"
        yield "amount", Decimal(chance.randrange(10**34)) / 100
        yield "pieces", chance.randrange(1, 20)
        yield "paid", chance.random() < 0.5
        yield "address", {"city": chance.choice(_CITIES), "zip": f"{chance.randrange(10**5):05}"}
        if chance.random() < 0.8:
            yield "tags", set(chance.sample(_TAGS, chance.randint(1, 3)))
        yield "note", chance.choice((None, "", 'said "}}" and {"S":"x"}', "line\nline"))

    async def _update(self, name: str) -> None:
        self.writes["update"] += 1
        await call(
            "UpdateItem",
            self._client.update_item,
            TableName=TABLE,
            Key=_typed({KEY: name}),
            UpdateExpression="SET pieces = :pieces",
            ExpressionAttributeValues=_typed({":pieces": self._random.randrange(10**6)}),
        )

    async def _write(self, requests: list[WriteRequestTypeDef]) -> None:
        await call("BatchWriteItem", self._client.batch_write_item, RequestItems={TABLE: requests})


def _typed(item: Mapping[str, object]) -> dict[str, Any]:
    return {name: _to_dynamodb.serialize(value) for name, value in item.items()}
