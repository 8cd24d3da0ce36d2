"""The position is an item, and output and position are one TransactWriteItems."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from kcl_client.once._core import Conflict, Reader, Stored, TooMuch, refusal
from kcl_protocol.sequence import ExtendedSequenceNumber

MOST_ENTRIES: Final = 99
_CONFLICTS: Final = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
_REFUSED: Final = "ConditionalCheckFailed"
_BUSY: Final = frozenset({
    "TransactionInProgressException", "ThrottlingException", "ProvisionedThroughputExceededException",
})  # fmt: skip

Entry = dict[str, Any]
"""As boto3's client takes it: `{"Put": {"TableName": ..., "Item": {"id": {"S": "7"}}}}`."""


class DynamoDbStore:
    """The transaction is a list: append up to 99 entries of TransactWriteItems.

    If there are more, or two of the same item, `process` is called again with fewer records.

    Args:
        table: has the partition key `id`, a string; only the positions are in it.
        application: keeps the positions of several applications apart.
        stream: the same for streams, where the daemon names none: it does if it reads many.
        client: makes a DynamoDB client of boto3, in each child.
    """

    def __init__(
        self, table: str, *, application: str, stream: str = "", client: Callable[[], Any] | None = None
    ) -> None:
        self.application = application
        self.stream = stream
        self._table = table
        self._make = client or (lambda: import_module("boto3").client("dynamodb"))
        self._client: Any = None
        self._error: Any = import_module("botocore.exceptions").ClientError

    def begin(self, reader: Reader) -> ExtendedSequenceNumber | None:
        self._client = self._make()
        try:
            answer = self._client.update_item(
                **self._item(reader),
                UpdateExpression="SET fencingToken = :mine",
                ConditionExpression="attribute_not_exists(fencingToken) OR fencingToken <= :mine",
                ExpressionAttributeValues={":mine": {"N": str(reader.token)}},
                ReturnValues="ALL_NEW",
            )
        except self._error as error:
            if _code(error) != f"{_REFUSED}Exception":
                raise
            raise refusal(reader, None, self._read(reader)) from error
        return _stored(answer["Attributes"]).position

    def commit(
        self,
        reader: Reader,
        before: ExtendedSequenceNumber | None,
        after: ExtendedSequenceNumber,
        work: Callable[[list[Entry]], object],
    ) -> None:
        entries: list[Entry] = []
        work(entries)
        if len(entries) > MOST_ENTRIES:
            raise TooMuch(
                f"{len(entries)} entries for one transaction; DynamoDB takes {MOST_ENTRIES} beside the position"
            )
        try:
            self._client.transact_write_items(
                TransactItems=[*entries, {"Update": self._move(reader, before, after)}]
            )
        except self._error as error:
            raise self._judged(error, reader, before) from error

    def _judged(self, error: Any, reader: Reader, before: ExtendedSequenceNumber | None) -> BaseException:
        reasons = [reason.get("Code") for reason in error.response.get("CancellationReasons", [])]
        if reasons and reasons[-1] == _REFUSED:
            return refusal(reader, before, self._read(reader))
        if _CONFLICTS.intersection(reasons) or _code(error) in _BUSY:
            return Conflict(str(error))
        if _code(error) == "ValidationException" and "multiple operations on one item" in str(error):
            return TooMuch(str(error))
        found: BaseException = error
        return found

    def _move(
        self, reader: Reader, before: ExtendedSequenceNumber | None, after: ExtendedSequenceNumber
    ) -> dict[str, Any]:
        values = {
            ":mine": {"N": str(reader.token)},
            ":number": {"S": str(after.sequence_number)},
            ":sub": {"N": str(after.sub_sequence_number)},
        }
        is_before = "attribute_not_exists(sequenceNumber)"
        if before is not None:
            is_before = "sequenceNumber = :before AND subSequenceNumber = :subBefore"
            values[":before"] = {"S": str(before.sequence_number)}
            values[":subBefore"] = {"N": str(before.sub_sequence_number)}
        return {
            **self._item(reader),
            "UpdateExpression": "SET fencingToken = :mine, sequenceNumber = :number, subSequenceNumber = :sub",
            "ConditionExpression": f"fencingToken <= :mine AND {is_before}",
            "ExpressionAttributeValues": values,
        }

    def _read(self, reader: Reader) -> Stored | None:
        item = self._client.get_item(**self._item(reader), ConsistentRead=True).get("Item")
        return None if item is None else _stored(item)

    def _item(self, reader: Reader) -> dict[str, Any]:
        key = f"{reader.application}/{reader.stream}/{reader.shard}"
        return {"TableName": self._table, "Key": {"id": {"S": key}}}


def _stored(item: dict[str, Any]) -> Stored:
    number = item.get("sequenceNumber", {}).get("S")
    sub_number = int(item.get("subSequenceNumber", {}).get("N", 0))
    return Stored(
        int(item["fencingToken"]["N"]), None if number is None else ExtendedSequenceNumber(number, sub_number)
    )


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))
