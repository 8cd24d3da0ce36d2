from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kcl_local.faults import FaultyService
from kcl_local.kinesis import managing, read_write
from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import DEFAULTS, Arguments, KinesisOptions, ServiceError
from kcl_local.kinesis.read_write import Subscription

_OPERATIONS: Final[Mapping[str, Callable[[Account, Arguments], Answer]]] = {
    "CreateStream": managing.create_stream,
    "DecreaseStreamRetentionPeriod": partial(managing.change_retention, -1),
    "DeleteStream": managing.delete_stream,
    "DeregisterStreamConsumer": managing.deregister_consumer,
    "DescribeStream": managing.describe_stream,
    "DescribeStreamConsumer": managing.describe_consumer,
    "DescribeStreamSummary": managing.describe_stream_summary,
    "GetRecords": read_write.get_records,
    "GetShardIterator": read_write.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": partial(managing.change_retention, 1),
    "ListShards": managing.list_shards,
    "ListStreamConsumers": managing.list_consumers,
    "ListStreams": managing.list_streams,
    "MergeShards": managing.merge_shards,
    "PutRecord": read_write.put_record,
    "PutRecords": read_write.put_records,
    "RegisterStreamConsumer": managing.register_consumer,
    "SplitShard": managing.split_shard,
    "UpdateMaxRecordSize": managing.update_max_record_size,
    "UpdateShardCount": managing.update_shard_count,
    "UpdateStreamMode": managing.update_stream_mode,
    "UpdateStreamRecordDistributionStrategy": managing.update_record_distribution,
}
SUBSCRIBE: Final = "SubscribeToShard"


class KinesisModel(FaultyService):
    """Account 123456789012 in us-east-1, empty at first. `now` gives epoch seconds."""

    def __init__(self, now: Callable[[], float], options: KinesisOptions = DEFAULTS) -> None:
        super().__init__()
        self._now = now
        self._account = Account(options, now())
        self.options = options

    def handle(self, operation: str, arguments: Mapping[str, object]) -> dict[str, object]:
        """Data is base64 text and timestamps are epoch seconds, as in the service's JSON.

        ServiceError: the call is refused or fails, and nothing has changed. Its code may be `DROP`.
        """
        self._begin(operation)
        perform = _OPERATIONS.get(operation)
        if perform is None:
            raise ServiceError("UnknownOperationException", f"{operation:.80} is not known here")
        self._advance_clock()
        part = self.parts.take(operation)
        self._account.refused_in_part = "" if part is None else part.code
        return perform(self._account, Arguments(arguments))

    def subscribe(self, arguments: Mapping[str, object]) -> Subscription:
        self._begin(SUBSCRIBE)
        self._advance_clock()
        return read_write.subscribe(self._account, self._advance_clock, Arguments(arguments))

    def wake(self) -> None:
        for stream in self._account.streams.values():
            for shard in stream.shards:
                shard.wake()

    def trim(self, stream_name: str, before_s: float) -> None:
        """Drops what is older than `before_s` (epoch seconds); the name may be an ARN."""
        self._advance_clock()
        naming = "StreamARN" if stream_name.startswith("arn:") else "StreamName"
        stream = self._account.stream(Arguments({naming: stream_name}))
        stream.trimmed_before_s = max(stream.trimmed_before_s, before_s)
        stream.expire(self._account.now_s)

    @property
    def operations(self) -> frozenset[str]:
        return frozenset((*_OPERATIONS, SUBSCRIBE))

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        """ValueError for an unknown operation."""
        if operation not in self.operations:
            raise ValueError(f"no such operation: {operation!r}")
        super().fail_next(operation, code, times)

    def _begin(self, operation: str) -> None:
        self.calls[operation] += 1
        fault = self.faults.take(operation)
        if fault is not None:
            raise ServiceError(fault.code, f"{operation} was told to fail")

    def _advance_clock(self) -> None:
        self._account.advance(self._now())
