"""The port `Kinesis` over the model of `kcl_local`, without HTTP.

Owns the arguments of the calls. Every call does all of its work at once and waits for nothing; answers and errors are
read by the same code as the service's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from kcl_daemon.errors import StreamNotFound, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.transport import service_answers
from kcl_daemon.transport.service_answers import service_error
from kcl_local.faults import DROP, http_status
from kcl_local.kinesis.arguments import ServiceError
from kcl_local.kinesis.model import KinesisModel


class MemoryKinesis:
    """Kinesis of one account, shared by all who hold the model."""

    def __init__(self, model: KinesisModel) -> None:
        self.model = model

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        """As the port says."""
        return service_answers.summary(
            cast("service_answers.SummaryShape", self._call("DescribeStreamSummary", _naming(stream)))
        )

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """As the port says."""
        found: list[StreamSummary] = []
        arguments: dict[str, object] = {}
        while True:
            answer = cast("service_answers.StreamsShape", self._call("ListStreams", arguments))
            found.extend(service_answers.summaries(answer))
            token = answer.get("NextToken")
            if token is None:
                return tuple(found)
            arguments = {"NextToken": token}

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """As the port says."""
        arguments = _naming(stream)
        if start is not None:
            arguments["ShardFilter"] = service_answers.shard_filter(start)
        found: list[Shard] = []
        while True:
            answer = cast("service_answers.ShardsShape", self._call("ListShards", arguments))
            found.extend(service_answers.shards(answer))
            token = answer.get("NextToken")
            if token is None:
                return tuple(found)
            arguments = {"NextToken": token}

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        """As the port says."""
        arguments = _naming(stream)
        arguments.update(ShardId=shard_id, ShardIteratorType=read_from.kind.value)
        if read_from.sequence_number is not None:
            arguments["StartingSequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            arguments["Timestamp"] = read_from.timestamp_s
        return service_answers.iterator(
            cast("service_answers.IteratorShape", self._call("GetShardIterator", arguments))
        )

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """As the port says."""
        arguments: dict[str, object] = {"ShardIterator": iterator, "Limit": limit}
        if stream.arn is not None:
            arguments["StreamARN"] = stream.arn
        return service_answers.fetched(
            cast("service_answers.RecordsShape", self._call("GetRecords", arguments))
        )

    def _call(self, operation: str, arguments: Mapping[str, object]) -> dict[str, object]:
        try:
            return self.model.handle(operation, arguments)
        except ServiceError as error:
            if error.code == DROP:
                raise Unavailable("the connection was cut", operation=operation) from error
            raise service_error(
                error.code,
                error.message,
                operation=operation,
                not_found=StreamNotFound,
                status=http_status(error.code),
            ) from error


def _naming(stream: StreamRef) -> dict[str, object]:
    return {"StreamName": stream.name} if stream.arn is None else {"StreamARN": stream.arn}
