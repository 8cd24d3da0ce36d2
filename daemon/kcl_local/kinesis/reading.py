"""GetShardIterator and GetRecords. Knows nothing of how records are stored or shards are made."""

from __future__ import annotations

from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import ServiceError, invalid_argument, malformed
from kcl_local.kinesis.shard import Shard
from kcl_local.kinesis.stream import Stream
from kcl_local.kinesis.tokens import ShardIterator

_RECORDS_MAX: Final = 10_000


def get_shard_iterator(account: Account, arguments: Arguments) -> Answer:
    """GetShardIterator."""
    stream = account.readable_stream(arguments)
    shard = stream.shard(arguments.text("ShardId"))
    after_tick = _position(account, stream, shard, arguments)
    return {"ShardIterator": _iterator(account, stream, shard, after_tick)}


def get_records(account: Account, arguments: Arguments) -> Answer:
    """GetRecords. The answer that has a closed shard's last record ends it: null iterator and ChildShards."""
    position = ShardIterator.decode(arguments.text("ShardIterator"))
    limit = arguments.optional_integer("Limit", 1, _RECORDS_MAX) or _RECORDS_MAX
    _require_fresh(account, position)
    stream = account.identified_stream(position.stream_name, position.stream_identity)
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
        "Records": _entries(stream, shard, start, end),
        "MillisBehindLatest": _millis_behind(account, shard, end),
    }
    if end == len(records) and not shard.is_open:
        answer["NextShardIterator"] = None
        answer["ChildShards"] = [child_entry(child) for child in shard.children]
    else:
        after_tick = records.tick(end - 1) if end > start else position.after_tick
        answer["NextShardIterator"] = _iterator(account, stream, shard, after_tick)
    return answer


def child_entry(child: Shard) -> Answer:
    """`ChildShard` on the wire."""
    return {
        "ShardId": child.shard_id,
        "ParentShards": list(child.parent_ids),
        "HashKeyRange": child.hash_range(),
    }


def _position(account: Account, stream: Stream, shard: Shard, start: Arguments) -> int:
    """The tick above which everything is still to be read."""
    match start.text("ShardIteratorType"):
        case "TRIM_HORIZON":
            return 0
        case "LATEST":
            records = shard.records
            return records.tick(len(records) - 1) if len(records) else shard.opened_tick
        case "AT_TIMESTAMP":
            return _position_at_time(account, shard, start)
        case "AT_SEQUENCE_NUMBER":
            return _issued_tick(stream, shard, start) - 1
        case "AFTER_SEQUENCE_NUMBER":
            return _issued_tick(stream, shard, start)
        case unknown:
            raise malformed(f"ShardIteratorType {unknown!r:.80} is unknown")


def _position_at_time(account: Account, shard: Shard, start: Arguments) -> int:
    timestamp_s = start.optional_timestamp("Timestamp")
    if timestamp_s is None:
        raise invalid_argument("ShardIteratorType AT_TIMESTAMP needs Timestamp")
    if timestamp_s > account.now_s:
        raise invalid_argument(f"Timestamp {timestamp_s} is in the future: it is {account.now_s}")
    return shard.records.last_tick_before(timestamp_s)


def _issued_tick(stream: Stream, shard: Shard, start: Arguments) -> int:
    number = start.optional_text("StartingSequenceNumber")
    if number is None:
        raise invalid_argument("ShardIteratorTypes AT_ and AFTER_SEQUENCE_NUMBER need StartingSequenceNumber")
    tick = stream.numbers.tick_of(number, shard.index)
    if tick is None or not shard.has_issued(tick):
        raise invalid_argument(
            f"StartingSequenceNumber {number:.80} was never issued by shard {shard.shard_id} of stream {stream.name}"
        )
    return tick


def _iterator(account: Account, stream: Stream, shard: Shard, after_tick: int) -> str:
    return ShardIterator(stream.name, stream.identity, shard.shard_id, after_tick, account.now_s).encode()


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


def _entries(stream: Stream, shard: Shard, start: int, end: int) -> list[Answer]:
    if start == end:
        return []
    text, index = stream.numbers.text, shard.index
    return [
        {
            "SequenceNumber": text(tick, index),
            "ApproximateArrivalTimestamp": arrival_s,
            "PartitionKey": partition_key,
            "Data": data,
        }
        for tick, arrival_s, partition_key, data in shard.records.columns(start, end)
    ]


def _millis_behind(account: Account, shard: Shard, end: int) -> int:
    """How old the first record is that this answer did not reach; at least 1, as 0 says that there is none."""
    if end == len(shard.records):
        return 0
    return max(1, round((account.now_s - shard.records.arrival_s(end)) * 1000))
