"""The model as its users see it: calls by name, JSON shapes in and out, failures on demand.

Sans-IO and single-threaded: no clock but the one given, no chance, equal answers for equal calls, so that a simulator
can run on it. Knows no HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from kcl_local.faults import Fault, Faults
from kcl_local.kinesis import listing, managing, reading, resharding, writing
from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import ServiceError
from kcl_local.kinesis.options import DEFAULTS, Options

_OPERATIONS: Final[Mapping[str, Callable[[Account, Arguments], Answer]]] = {
    "CreateStream": managing.create_stream,
    "DecreaseStreamRetentionPeriod": managing.decrease_retention,
    "DeleteStream": managing.delete_stream,
    "DescribeStream": managing.describe_stream,
    "DescribeStreamSummary": managing.describe_stream_summary,
    "GetRecords": reading.get_records,
    "GetShardIterator": reading.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": managing.increase_retention,
    "ListShards": listing.list_shards,
    "ListStreams": managing.list_streams,
    "MergeShards": resharding.merge_shards,
    "PutRecord": writing.put_record,
    "PutRecords": writing.put_records,
    "SplitShard": resharding.split_shard,
    "UpdateShardCount": resharding.update_shard_count,
}


class KinesisModel:
    """Kinesis Data Streams of one account and region (123456789012, us-east-1), empty at first.

    Args:
        now: epoch seconds; read once for each call. Where it goes back, the model's time stands still.
        options: settings.

    Attributes:
        calls: how often each operation was called, refused and failed calls included.
    """

    def __init__(self, now: Callable[[], float], options: Options = DEFAULTS) -> None:
        self._now = now
        self._account = Account(options, now())
        self._faults = Faults()
        self.calls: Counter[str] = Counter()

    def handle(self, operation: str, arguments: Mapping[str, object]) -> dict[str, object]:
        """One call. Data is base64 text and timestamps are epoch seconds, as in the service's JSON.

        Raises:
            ServiceError: the service refuses or fails the call; nothing has changed. Its code is
                `kcl_local.faults.DROP` where `fail_next` asked for that.
        """
        self.calls[operation] += 1
        fault = self._faults.take(operation)
        if fault is not None:
            raise ServiceError(fault.code, f"{operation} was told to fail")
        perform = _OPERATIONS.get(operation)
        if perform is None:
            raise ServiceError("UnknownOperationException", f"{operation:.80} is not known here")
        self._account.advance(self._now())
        return perform(self._account, Arguments(arguments))

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        """Let the next calls of an operation fail without effect.

        Args:
            operation: such as `GetRecords`.
            code: the service's error code, or `kcl_local.faults.DROP`: over HTTP the connection is cut.
            times: how many calls.

        Raises:
            ValueError: there is no such operation.
        """
        if operation not in _OPERATIONS:
            raise ValueError(f"no such operation: {operation!r}")
        self._faults.add(operation, Fault(code), times)
