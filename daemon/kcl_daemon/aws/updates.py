"""UpdateItem, the call of renewals and checkpoints: by the SDK, or over the daemon's own transport at a part of its CPU.

Owns the two ways, which must be equal to who asks. Knows nothing of what rows mean.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from kcl_daemon.aws.calls import ConditionFailed, Item, Lane
from kcl_daemon.errors import Unavailable
from kcl_daemon.transport.caller import Caller

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import UpdateItemInputTypeDef

    from kcl_daemon.errors import AwsError
    from kcl_daemon.transport.refusals import Refusal

_OPERATION: Final = "UpdateItem"
_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_NO_ANSWER: Final = "the answer has no Attributes"


class Updates(Protocol):
    """A way to update items."""

    async def update(self, request: UpdateItemInputTypeDef) -> Item:
        """Update an item, with ReturnValues=ALL_NEW; all its attributes as they are then.

        It is sent once. Cancelled, it may take effect all the same.

        Raises:
            ConditionFailed: its condition does not hold.
            Unavailable: nobody knows whether it took effect.
            AwsError: it was refused otherwise.
        """
        ...


class SdkUpdates:
    """By the SDK, in threads.

    Args:
        client: of DynamoDB.
        lane: for the calls.
    """

    def __init__(self, client: DynamoDBClient, lane: Lane) -> None:
        self._client = client
        self._lane = lane

    async def update(self, request: UpdateItemInputTypeDef) -> Item:
        """As the protocol says."""
        answer = await self._lane.run(_OPERATION, partial(self._client.update_item, **request))
        if "Attributes" not in answer:
            raise Unavailable(_NO_ANSWER, operation=_OPERATION)
        return answer["Attributes"]


class _Answer(msgspec.Struct, gc=False):
    """What an update or its refusal tells of the item."""

    Attributes: dict[str, object] | None = None
    Item: dict[str, object] | None = None


_answers: Final = msgspec.json.Decoder(_Answer)


class FastUpdates:
    """Over the daemon's own transport, on connections of their own.

    Args:
        caller: of DynamoDB, made with `refused_condition`.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def update(self, request: UpdateItemInputTypeDef) -> Item:
        """As the protocol says."""
        return await self._caller.call(_OPERATION, cast("Mapping[str, object]", request), _updated, once=True)


def refused_condition(refusal: Refusal, operation: str) -> AwsError | None:
    """A refusal for its condition, with the item that was in the way where the service tells it."""
    if refusal.code != _CONDITION_FAILED:
        return None
    try:
        told = _answers.decode(refusal.body).Item
        return ConditionFailed(operation, None if told is None else _item(told))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return ConditionFailed(operation, None)


def _updated(body: bytearray) -> Item:
    try:
        told = _answers.decode(body).Attributes
        if told is not None:
            return _item(told)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Unavailable(f"the answer cannot be read: {error}", operation=_OPERATION) from error
    raise Unavailable(_NO_ANSWER, operation=_OPERATION)


def _item(told: Mapping[str, object]) -> Item:
    """An item as the SDK would give it: in JSON bytes are base64."""
    return cast("Item", {name: _attribute(value) for name, value in told.items()})


def _attribute(told: object) -> object:
    match told:
        case {"B": str(text)}:
            return {"B": b64decode(text, validate=True)}
        case {"L": list(values)}:
            return {"L": [_attribute(each) for each in cast("list[object]", values)]}
        case {"M": dict(item)}:
            return {"M": _item(cast("dict[str, object]", item))}
        case _:
            return told
