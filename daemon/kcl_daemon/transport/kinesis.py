"""The port `Kinesis` with the record path over this transport; all other calls go the SDK's way.

Owns the requests. Knows nothing of pacing, and nothing of leases.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Fetched, Kinesis, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.shards.shard import InitialPosition, Shard
from kcl_daemon.transport import answers
from kcl_daemon.transport.caller import Caller

TARGET_PREFIX: Final = "Kinesis_20131202."


class FastKinesis:
    """Kinesis Data Streams.

    Args:
        caller: for GetRecords and GetShardIterator.
        control: for the rest.
    """

    def __init__(self, caller: Caller, control: Kinesis) -> None:
        self._caller = caller
        self._control = control

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        """As the port says."""
        return await self._control.describe_stream(stream)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """As the port says."""
        return await self._control.list_streams()

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """As the port says."""
        return await self._control.list_shards(stream, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        """As the port says."""
        request: dict[str, object] = {"ShardId": shard_id, "ShardIteratorType": read_from.kind.value}
        if stream.arn is None:
            request["StreamName"] = stream.name
        else:
            request["StreamARN"] = stream.arn
        if read_from.sequence_number is not None:
            request["StartingSequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            request["Timestamp"] = read_from.timestamp_s
        return await self._caller.call("GetShardIterator", request, answers.iterator)

    async def get_records(self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int) -> Fetched:  # noqa: ARG002 - the iterator says which shard
        """As the port says."""
        request: dict[str, object] = {"ShardIterator": iterator, "Limit": limit}
        if stream.arn is not None:
            request["StreamARN"] = stream.arn
        return await self._caller.call("GetRecords", request, answers.fetched)
