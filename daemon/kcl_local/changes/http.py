"""`POST /_local/changes` does to a table's stream what time would do."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Final, Literal

import msgspec
import orjson
from aiohttp import web

from kcl_local.changes.model import StreamsModel
from kcl_local.changes.tables import TableChanges
from kcl_local.faults import DROP, http_status
from kcl_local.kinesis.arguments import ServiceError
from kcl_local.serving import drop, refused_as

TARGET: Final = "DynamoDBStreams_20120810."
CHANGES: Final = "/_local/changes"
ERROR_PREFIX: Final = "com.amazonaws.dynamodb.v20120810#"
_OTHER_PREFIXES: Final = {
    "ValidationException": "com.amazon.coral.validate#",
    "SerializationException": "com.amazon.coral.service#",
    "UnknownOperationException": "com.amazon.coral.service#",
}
_JSON: Final = "application/x-amz-json-1.0"


class Order(msgspec.Struct):
    """`shard` None: all that are open. `before`: epoch seconds. `key`: as in DynamoDB's JSON."""

    table: str
    action: Literal["roll", "split", "end", "trim", "enable", "disable", "fill", "expire"]
    shard: str | None = None
    before: float = 0.0
    view: str = "NEW_AND_OLD_IMAGES"
    count: int = 1
    size: int = 1024
    prefix: str = "item-"
    key: dict[str, dict[str, str]] = {}


class StreamsAnswers:
    def __init__(self, model: StreamsModel) -> None:
        self.model = model
        self.tables = TableChanges(model)
        self._request_numbers = count(1)

    def answer(self, request: web.Request, operation: str, body: bytes) -> web.Response:
        try:
            text = self.model.answer(operation, _arguments(body))
        except ServiceError as error:
            if error.code == DROP:
                return drop(request)
            prefix = _OTHER_PREFIXES.get(error.code, ERROR_PREFIX)
            explained = orjson.dumps({"__type": prefix + error.code, "message": error.message})
            return self._response(http_status(error.code), explained)
        return self._response(200, text)

    async def obey(self, request: web.Request) -> web.Response:
        with refused_as("nothing is done", ServiceError, KeyError):
            made = self._obeyed(msgspec.json.decode(await request.read(), type=Order))
        return web.Response(body=orjson.dumps({"shards": made}) + b"\n", content_type="application/json")

    def _obeyed(self, order: Order) -> list[str]:
        match order.action:
            case "roll":
                return self.model.roll(order.table, order.shard)
            case "split":
                return self.model.split(order.table, order.shard)
            case "end":
                return self.model.end(order.table, order.shard)
            case "trim":
                self.model.trim(order.table, order.before)
            case "enable":
                self.tables.switch(order.table, order.view)
            case "disable":
                self.tables.switch(order.table, None)
            case "fill":
                self.model.fill(order.table, order.count, order.size, order.prefix)
            case "expire":
                self.tables.expire(order.table, order.key)
        return []

    def _response(self, status: int, body: bytes) -> web.Response:
        request_id = f"00000000-0000-4000-8000-{next(self._request_numbers):012x}"
        return web.Response(
            status=status, body=body, headers={"Content-Type": _JSON, "x-amzn-RequestId": request_id}
        )


def _arguments(body: bytes) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ServiceError("SerializationException", f"the body is not a JSON object: {error}") from error
