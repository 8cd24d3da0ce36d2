"""`Kinesis` and the consumer calls of enhanced fan-out, by botocore's client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar, cast

from botocore.exceptions import ClientError

from kcl_daemon.aws.calls import CallLimiter
from kcl_daemon.errors import ConsumerLimitReached, StreamNotFound, Throttled
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import (
    ConsumerName,
    ConsumerStatus,
    FetchedRecords,
    ReadFrom,
    StreamConsumer,
    StreamRef,
    StreamSummary,
)
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.transport import service_answers
from kcl_daemon.transport.service_answers import parsing_answer

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_kinesis.type_defs import (
        DescribeStreamSummaryInputTypeDef,
        GetRecordsInputTypeDef,
        GetShardIteratorInputTypeDef,
        ListShardsInputTypeDef,
        ListStreamsInputTypeDef,
        ShardFilterTypeDef,
    )

    Request = TypeVar(
        "Request", DescribeStreamSummaryInputTypeDef, ListShardsInputTypeDef, GetShardIteratorInputTypeDef
    )
    from mypy_boto3_kinesis.type_defs import DescribeStreamConsumerInputTypeDef


Answer = TypeVar("Answer")
Read = TypeVar("Read")


class AwsKinesis:
    def __init__(self, client: KinesisClient, limiter: CallLimiter) -> None:
        self._client = client
        self._limiter = limiter

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        request: DescribeStreamSummaryInputTypeDef = {}
        _name(request, stream)
        call = partial(self._client.describe_stream_summary, **request)
        return await self._call("DescribeStreamSummary", call, service_answers.summary)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        found: list[StreamSummary] = []
        request: ListStreamsInputTypeDef = {}
        while True:
            call = partial(self._client.list_streams, **request)
            page, token = await self._call("ListStreams", call, _page_of_streams)
            found.extend(page)
            if token is None:
                return tuple(found)
            request = {"NextToken": token}

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """Requests for further pages must have the token alone."""
        request: ListShardsInputTypeDef = {}
        _name(request, stream)
        if start is not None:
            request["ShardFilter"] = _filter(start)
        found: list[Shard] = []
        while True:
            page, token = await self._call("ListShards", partial(self._client.list_shards, **request), _page)
            found.extend(page)
            if token is None:
                return tuple(found)
            request = {"NextToken": token}

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        request: GetShardIteratorInputTypeDef = {
            "ShardId": shard_id,
            "ShardIteratorType": read_from.kind.value,
        }
        _name(request, stream)
        if read_from.sequence_number is not None:
            request["StartingSequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            request["Timestamp"] = _timestamp(read_from.timestamp_s)
        call = partial(self._client.get_shard_iterator, **request)
        return await self._call("GetShardIterator", call, service_answers.iterator)

    async def get_records(
        self,
        stream: StreamRef,
        shard_id: ShardId,  # noqa: ARG002 - the iterator says which shard
        iterator: str,
        limit: int,
    ) -> FetchedRecords:
        request: GetRecordsInputTypeDef = {"ShardIterator": iterator, "Limit": limit}
        if stream.arn is not None:
            request["StreamARN"] = stream.arn
        return await self._call(
            "GetRecords", partial(self._client.get_records, **request), service_answers.fetched
        )

    async def _call(self, operation: str, call: Callable[[], object], read: Callable[[Answer], Read]) -> Read:
        """Parse in the thread: ten thousand records would block the loop."""
        return await self._limiter.run(operation, lambda: read(cast("Answer", call())))


def _name(request: Request, stream: StreamRef) -> None:
    if stream.arn is None:
        request["StreamName"] = stream.name
    else:
        request["StreamARN"] = stream.arn


def _page(answer: service_answers.ShardsShape) -> tuple[tuple[Shard, ...], str | None]:
    return service_answers.shards(answer), answer.get("NextToken") or None


def _page_of_streams(answer: service_answers.StreamsShape) -> tuple[tuple[StreamSummary, ...], str | None]:
    return service_answers.summaries(answer), answer.get("NextToken") or None


def _filter(start: InitialPosition) -> ShardFilterTypeDef:
    chosen: ShardFilterTypeDef = {"Type": service_answers.filter_type(start.at)}
    if start.timestamp_s is not None:
        chosen["Timestamp"] = _timestamp(start.timestamp_s)
    return chosen


def _timestamp(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, tz=UTC)


_LIMIT: Final = "LimitExceededException"


class ConsumerShape(TypedDict):
    ConsumerARN: str
    ConsumerStatus: str


class AwsConsumers:
    """`client` must give plain JSON answers (`Clients.kinesis`)."""

    def __init__(self, client: KinesisClient, limiter: CallLimiter) -> None:
        self._client = client
        self._limiter = limiter

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        request: DescribeStreamConsumerInputTypeDef = (
            {"ConsumerARN": consumer}
            if isinstance(consumer, str)
            else {"StreamARN": consumer.stream_arn, "ConsumerName": consumer.name}
        )
        call = partial(self._client.describe_stream_consumer, **request)
        try:
            answer = await self._limiter.run("DescribeStreamConsumer", call)
        except StreamNotFound:
            return None
        return consumer_of(answer.get("ConsumerDescription"), "DescribeStreamConsumer")

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        call = partial(
            self._client.register_stream_consumer, StreamARN=consumer.stream_arn, ConsumerName=consumer.name
        )
        try:
            answer = await self._limiter.run("RegisterStreamConsumer", call)
        except Throttled as refused:
            if _code(refused) == _LIMIT:
                raise ConsumerLimitReached(str(refused)) from refused
            raise
        return consumer_of(answer.get("Consumer"), "RegisterStreamConsumer")


def consumer_of(entry: object, operation: str) -> StreamConsumer:
    with parsing_answer(operation):
        shape = cast("ConsumerShape", entry)
        return StreamConsumer(shape["ConsumerARN"], ConsumerStatus(shape["ConsumerStatus"]))


def _code(error: Throttled) -> str:
    cause = error.__cause__
    return cause.response.get("Error", {}).get("Code", "") if isinstance(cause, ClientError) else ""
