"""The port `FanOut` over the model of `kcl_local`, without HTTP and frames.

Owns the arguments of the calls and the waiting for events; they are read by the same code as the service's own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import anyio

from kcl_daemon.errors import (
    AwsError,
    ConsumerLimitReached,
    StreamNotFound,
    SubscriptionTaken,
    Unavailable,
)
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import ConsumerName, PushedRecords, ReadFrom, StreamConsumer, StreamRef
from kcl_daemon.transport.event_stream import (
    ConsumerShape,
    described_consumer,
    event_of_shape,
    registered_consumer,
)
from kcl_daemon.transport.service_answers import service_error
from kcl_local.faults import DROP, http_status
from kcl_local.kinesis.arguments import ServiceError
from kcl_local.kinesis.model import SUBSCRIBE, KinesisModel
from kcl_local.kinesis.read_write import Subscription

T = TypeVar("T")


class MemorySubscription:
    """One subscription of the model."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def next(self) -> PushedRecords | None:
        """As the port says."""
        while True:
            bell = anyio.Event()
            self._subscription.ring(bell.set)
            event = _reported(SUBSCRIBE, self._subscription.next_event)
            if event is not None:
                return event_of_shape(event)
            if self._subscription.ended:
                return None
            with anyio.move_on_after(self._subscription.due_in_s()):
                await bell.wait()

    def close(self) -> None:
        """The reader goes."""
        self._subscription.close()


class MemoryFanOut:
    """Enhanced fan-out of one account, shared by all who hold the model."""

    def __init__(self, model: KinesisModel) -> None:
        self.model = model

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        """As the port says."""
        arguments: dict[str, object] = (
            {"ConsumerARN": consumer}
            if isinstance(consumer, str)
            else {"StreamARN": consumer.stream_arn, "ConsumerName": consumer.name}
        )
        operation = "DescribeStreamConsumer"
        try:
            answer = _reported(operation, lambda: self.model.handle(operation, arguments))
        except StreamNotFound:
            return None
        return described_consumer(cast("Mapping[str, ConsumerShape]", answer))

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        """As the port says."""
        arguments: Mapping[str, object] = {"StreamARN": consumer.stream_arn, "ConsumerName": consumer.name}
        operation = "RegisterStreamConsumer"
        answer = _reported(operation, lambda: self.model.handle(operation, arguments))
        return registered_consumer(cast("Mapping[str, ConsumerShape]", answer))

    def open(self, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom) -> MemorySubscription:
        """Subscribe, at once."""
        position: dict[str, object] = {"Type": read_from.kind.value}
        if read_from.sequence_number is not None:
            position["SequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            position["Timestamp"] = read_from.timestamp_s
        arguments = {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": position}
        return MemorySubscription(_reported(SUBSCRIBE, lambda: self.model.subscribe(arguments)))

    @asynccontextmanager
    async def subscribe(
        self,
        stream: StreamRef,
        consumer_arn: str,
        shard_id: ShardId,
        read_from: ReadFrom,
    ) -> AsyncGenerator[MemorySubscription, None]:
        """As the port says."""
        subscription = self.open(consumer_arn, shard_id, read_from)
        try:
            yield subscription
        finally:
            subscription.close()


def _reported(operation: str, call: Callable[[], T]) -> T:
    """What a call gives, or its error in the daemon's words."""
    try:
        return call()
    except ServiceError as error:
        raise _error(operation, error) from error


def _error(operation: str, error: ServiceError) -> AwsError:
    if error.code == DROP:
        return Unavailable("the connection was cut", operation=operation)
    if error.code == "LimitExceededException" and operation == "RegisterStreamConsumer":
        return ConsumerLimitReached(error.message, operation=operation)
    if error.code == "ResourceInUseException" and operation == SUBSCRIBE:
        return SubscriptionTaken(error.message, operation=operation)
    return service_error(
        error.code,
        error.message,
        operation=operation,
        not_found=StreamNotFound,
        status=http_status(error.code),
    )
