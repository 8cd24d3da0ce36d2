"""The port `Table` over botocore's DynamoDB client.

Owns the requests and what comes back. Threads and errors are the lanes', values and expressions have their own
modules; knows nothing of what rows mean.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from kcl_daemon.aws.calls import ConditionFailed, Item
from kcl_daemon.aws.definitions import TableSpec
from kcl_daemon.aws.expressions import (
    Placeholders,
    check_key,
    condition_expression,
    update_expression,
)
from kcl_daemon.aws.lanes import TableLanes
from kcl_daemon.aws.tables import READY_WITHIN_S, TableMaker
from kcl_daemon.aws.updates import SdkUpdates, Updates
from kcl_daemon.aws.values import decode_row, encode_row
from kcl_daemon.errors import InvalidRequest, TableNotFound, Unavailable
from kcl_daemon.leases.row import OWNER, OWNER_INDEX
from kcl_daemon.leases.table import Conditions, Row, RowUpdate, Written
from kcl_daemon.ports import Clock, TableState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import (
        AttributeValueTypeDef,
        DeleteItemInputTypeDef,
        PutItemInputTypeDef,
        QueryInputTypeDef,
        ScanInputTypeDef,
        UpdateItemInputTypeDef,
    )

    Write = TypeVar("Write", PutItemInputTypeDef, UpdateItemInputTypeDef, DeleteItemInputTypeDef)

# How DynamoDB says that an index is missing or not ready yet: a ValidationException like any other, but for its words.
_INDEX_WORDS: Final = ("specified index", "global secondary index")


class DynamoTable:
    """A table of DynamoDB.

    Args:
        spec: its name and key, and whether it has the owner index.
        client: may be shared by all tables.
        lanes: for its reads and its writes.
        clock: for the time that a new table takes.
        ready_within_s: how long `ensure` waits.
        updates: how items are updated; None: as everything else.
    """

    def __init__(
        self,
        spec: TableSpec,
        client: DynamoDBClient,
        lanes: TableLanes,
        *,
        clock: Clock,
        ready_within_s: float = READY_WITHIN_S,
        updates: Updates | None = None,
    ) -> None:
        self._spec = spec
        self._client = client
        self._lanes = lanes
        self._updates = updates or SdkUpdates(client, lanes.writes)
        self._maker = TableMaker(spec, client, lanes, clock=clock, ready_within_s=ready_within_s)

    @property
    def name(self) -> str:
        """As the port says."""
        return self._spec.name

    @property
    def key_attribute(self) -> str:
        """As the port says."""
        return self._spec.key_attribute

    async def describe(self) -> TableState | None:
        """As the port says."""
        return await self._maker.describe()

    async def ensure(self) -> bool:
        """As the port says; errors as `TableMaker.ensure`."""
        return await self._maker.ensure()

    async def add_owner_index(self) -> None:
        """As the port says; errors as `TableMaker.add_index`."""
        await self._maker.add_index()

    async def remove_owner_index(self) -> None:
        """As the port says; errors as `TableMaker.remove_index`."""
        await self._maker.remove_index()

    async def enable_recovery(self) -> None:
        """As the port says."""
        await self._maker.enable_recovery()

    async def get(self, key: str) -> Row | None:
        """As the port says."""
        call = partial(self._client.get_item, TableName=self.name, Key=self._key(key), ConsistentRead=True)
        answer = await self._lanes.reads.run("GetItem", call)
        item = answer.get("Item")
        return None if item is None else decode_row(item)

    async def scan(self) -> list[Row]:
        """As the port says; a call for each page, so that a long scan lets others in between."""
        rows: list[Row] = []
        request: ScanInputTypeDef = {"TableName": self.name}
        while True:
            answer = await self._lanes.reads.run("Scan", partial(self._client.scan, **request))
            if "Items" not in answer:
                raise Unavailable("the answer has no Items", operation="Scan")
            rows.extend(map(decode_row, answer["Items"]))
            last_key = answer.get("LastEvaluatedKey")
            if not last_key:
                return rows
            request["ExclusiveStartKey"] = last_key

    async def owned_keys(self, owner: str) -> list[str]:
        """As the port says; TableNotFound where the index does not exist or is still being built."""
        if not self._spec.has_owner_index:
            raise TableNotFound(f"table {self.name} has no index by owner", operation="Query")
        keys: list[str] = []
        request: QueryInputTypeDef = {
            "TableName": self.name,
            "IndexName": OWNER_INDEX,
            "KeyConditionExpression": "#owner = :owner",
            "ExpressionAttributeNames": {"#owner": OWNER},
            "ExpressionAttributeValues": {":owner": {"S": owner}},
        }
        while True:
            items, last_key = await self._query(request)
            keys.extend(str(row[self.key_attribute]) for row in map(decode_row, items))
            if not last_key:
                return keys
            request["ExclusiveStartKey"] = last_key

    async def put(self, row: Row, require: Conditions = ()) -> Written:
        """As the port says."""
        key = check_key(row.get(self.key_attribute), key_attribute=self.key_attribute)
        item, placeholders = encode_row(row), Placeholders()
        request: PutItemInputTypeDef = {"TableName": self.name, "Item": item}
        _complete(request, condition_expression(require, placeholders), placeholders)
        try:
            await self._lanes.writes.run("PutItem", partial(self._client.put_item, **request))
        except ConditionFailed as refused:
            return await self._refused(key, refused)
        return Written(applied=True, row=decode_row(item))

    async def update(self, update: RowUpdate) -> Written:
        """As the port says."""
        placeholders = Placeholders()
        request: UpdateItemInputTypeDef = {
            "TableName": self.name,
            "Key": self._key(update.key),
            "ReturnValues": "ALL_NEW",
        }
        changes = update_expression(update, placeholders, key_attribute=self.key_attribute)
        if changes:
            request["UpdateExpression"] = changes
        _complete(request, condition_expression(update.require, placeholders), placeholders)
        try:
            item = await self._updates.update(request)
        except ConditionFailed as refused:
            return await self._refused(update.key, refused)
        return Written(applied=True, row=decode_row(item))

    async def delete(self, key: str, require: Conditions = ()) -> Written:
        """As the port says."""
        placeholders = Placeholders()
        request: DeleteItemInputTypeDef = {"TableName": self.name, "Key": self._key(key)}
        _complete(request, condition_expression(require, placeholders), placeholders)
        try:
            await self._lanes.writes.run("DeleteItem", partial(self._client.delete_item, **request))
        except ConditionFailed as refused:
            return await self._refused(key, refused)
        return Written(applied=True, row=None)

    def _key(self, key: str) -> dict[str, AttributeValueTypeDef]:
        return {self.key_attribute: {"S": check_key(key, key_attribute=self.key_attribute)}}

    async def _refused(self, key: str, refused: ConditionFailed) -> Written:
        """The row that refused a write comes with the refusal; from a store that leaves it out it is read."""
        row = await self.get(key) if refused.item is None else decode_row(refused.item)
        return Written(applied=False, row=row)

    async def _query(self, request: QueryInputTypeDef) -> tuple[list[Item], Item | None]:
        try:
            answer = await self._lanes.reads.run("Query", partial(self._client.query, **request))
        except InvalidRequest as error:
            if any(words in str(error) for words in _INDEX_WORDS):
                raise TableNotFound(str(error)) from error
            raise
        if "Items" not in answer:
            raise Unavailable("the answer has no Items", operation="Query")
        return list[Item](answer["Items"]), answer.get("LastEvaluatedKey")


def _complete(request: Write, condition: str, placeholders: Placeholders) -> None:
    """Add the condition, and what the expressions of the request stand for; DynamoDB refuses empty ones."""
    if condition:
        request["ConditionExpression"] = condition
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    if placeholders.names:
        request["ExpressionAttributeNames"] = placeholders.names
    if placeholders.values:
        request["ExpressionAttributeValues"] = placeholders.values
