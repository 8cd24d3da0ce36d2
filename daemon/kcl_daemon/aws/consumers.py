"""Consumers of enhanced fan-out over botocore's client: found and registered. Subscriptions are the transport's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict, cast

from botocore.exceptions import ClientError

from kcl_daemon.aws.calls import Lane
from kcl_daemon.aws.shapes import understanding
from kcl_daemon.errors import ConsumerLimitReached, StreamNotFound, Throttled
from kcl_daemon.ports_fan_out import Consumer, ConsumerName, ConsumerStatus

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_kinesis.type_defs import DescribeStreamConsumerInputTypeDef

_LIMIT: Final = "LimitExceededException"


class ConsumerShape(TypedDict):
    """`ConsumerDescription` and `Consumer`."""

    ConsumerARN: str
    ConsumerStatus: str


class AwsConsumers:
    """The calls on consumers.

    Args:
        client: one whose answers are plain JSON (`session.Clients.kinesis`).
        lane: for all calls.
    """

    def __init__(self, client: KinesisClient, lane: Lane) -> None:
        self._client = client
        self._lane = lane

    async def describe_consumer(self, consumer: ConsumerName | str) -> Consumer | None:
        """As the port FanOut says."""
        request: DescribeStreamConsumerInputTypeDef = (
            {"ConsumerARN": consumer}
            if isinstance(consumer, str)
            else {"StreamARN": consumer.stream_arn, "ConsumerName": consumer.name}
        )
        call = partial(self._client.describe_stream_consumer, **request)
        try:
            answer = await self._lane.run("DescribeStreamConsumer", call)
        except StreamNotFound:
            return None
        return consumer_of(answer.get("ConsumerDescription"), "DescribeStreamConsumer")

    async def register_consumer(self, consumer: ConsumerName) -> Consumer:
        """As the port FanOut says."""
        call = partial(
            self._client.register_stream_consumer, StreamARN=consumer.stream_arn, ConsumerName=consumer.name
        )
        try:
            answer = await self._lane.run("RegisterStreamConsumer", call)
        except Throttled as refused:
            if _code(refused) == _LIMIT:
                raise ConsumerLimitReached(str(refused)) from refused
            raise
        return consumer_of(answer.get("Consumer"), "RegisterStreamConsumer")


def consumer_of(told: object, operation: str) -> Consumer:
    """A consumer as the service tells of it; Unavailable where it is none."""
    with understanding(operation):
        shape = cast("ConsumerShape", told)
        return Consumer(shape["ConsumerARN"], ConsumerStatus(shape["ConsumerStatus"]))


def _code(error: Throttled) -> str:
    """The service's own code for a refusal."""
    cause = error.__cause__
    return cause.response.get("Error", {}).get("Code", "") if isinstance(cause, ClientError) else ""
