"""GetShardIterator and GetRecords. Knows nothing of how records are stored or shards are made, nor of fan-out."""

from __future__ import annotations

from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import ServiceError, invalid_argument
from kcl_local.kinesis.pages import child_entry, millis_behind, record_entries
from kcl_local.kinesis.positions import Start, position_after
from kcl_local.kinesis.shard import Shard
from kcl_local.kinesis.stream import Stream
from kcl_local.kinesis.tokens import ShardIterator

_RECORDS_MAX: Final = 10_000


def get_shard_iterator(account: Account, arguments: Arguments) -> Answer:
    """GetShardIterator."""
    stream = account.readable_stream(arguments)
    shard = stream.shard(arguments.text("ShardId"))
    after_tick = position_after(account, stream, shard, Start.of_iterator(arguments))
    return {"ShardIterator": _iterator(account, stream, shard, after_tick)}


def get_records(account: Account, arguments: Arguments) -> Answer:
    """GetRecords. The answer that has a closed shard's last record ends it: null iterator and ChildShards."""
    position = ShardIterator.decode(arguments.text("ShardIterator"))
    limit = arguments.optional_integer("Limit", 1, _RECORDS_MAX) or _RECORDS_MAX
    _require_fresh(account, position)
    stream = account.identified_stream(position.stream_arn, position.stream_identity)
    if arguments.has("StreamARN") and account.stream(arguments) is not stream:
        raise invalid_argument("StreamARN is not the stream of the ShardIterator")
    shard = stream.shard(position.shard_id)
    _require_capacity(account, stream, shard)
    records = shard.records
    records.trim(stream.horizon_s(account.now_s))
    start = records.first_after(position.after_tick)
    end = records.end_of_page(start, limit, account.options.answer_bytes_max)
    if account.options.limits is not None:
        shard.traffic.count(account.now_s, records.size_bytes(start, end), account.options.limits)
    answer: Answer = {
        "Records": record_entries(stream, shard, start, end),
        "MillisBehindLatest": millis_behind(account, shard, end),
    }
    if end == len(records) and not shard.is_open:
        answer["NextShardIterator"] = None
        answer["ChildShards"] = [child_entry(child) for child in shard.children]
    else:
        after_tick = records.tick(end - 1) if end > start else position.after_tick
        answer["NextShardIterator"] = _iterator(account, stream, shard, after_tick)
    return answer


def _iterator(account: Account, stream: Stream, shard: Shard, after_tick: int) -> str:
    return ShardIterator(stream.arn, stream.identity, shard.shard_id, after_tick, account.now_s).encode()


def _require_fresh(account: Account, position: ShardIterator) -> None:
    age_s = account.now_s - position.issued_s
    if age_s >= account.options.iterator_ttl_s:
        raise ServiceError(
            "ExpiredIteratorException",
            f"ShardIterator is {age_s:g} s old; they are good for {account.options.iterator_ttl_s:g} s",
        )


def _require_capacity(account: Account, stream: Stream, shard: Shard) -> None:
    limits = account.options.limits
    if limits is not None and not shard.traffic.allows(account.now_s, limits):
        raise ServiceError(
            "ProvisionedThroughputExceededException",
            f"rate exceeded for shard {shard.shard_id} in stream {stream.name}",
        )
