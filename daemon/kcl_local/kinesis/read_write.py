"""A subscription never waits: a bell says when to ask for the next event."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable
from typing import Final

from kcl_local.kinesis.account import Account, Answer, ShardIterator
from kcl_local.kinesis.arguments import (
    MIB,
    PAGE_MAX,
    Arguments,
    ServiceError,
    in_use,
    invalid_argument,
    malformed,
    not_found,
)
from kcl_local.kinesis.managing import named_consumer, require_active
from kcl_local.kinesis.stream import NewRecord, RegisteredConsumer, Shard, Stream, SubscriptionTurn

_KEY_LENGTH_MAX: Final = 256
_BATCH_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 10 * MIB


def _after_tick(
    account: Account, stream: Stream, shard: Shard, given: Arguments, names: tuple[str, str]
) -> int:
    kind, number = given.text(names[0]), given.optional_text(names[1])
    timestamp_s = given.optional_timestamp("Timestamp")
    match kind:
        case "TRIM_HORIZON":
            return 0
        case "LATEST":
            records = shard.records
            return records.tick(len(records) - 1) if len(records) else shard.opened_tick
        case "AT_TIMESTAMP":
            return _after_time(account, shard, timestamp_s)
        case "AT_SEQUENCE_NUMBER":
            return _issued_tick(stream, shard, number) - 1
        case "AFTER_SEQUENCE_NUMBER":
            return _issued_tick(stream, shard, number)
        case unknown:
            raise malformed(f"the type of position {unknown!r:.80} is unknown")


def _after_time(account: Account, shard: Shard, timestamp_s: float | None) -> int:
    if timestamp_s is None:
        raise invalid_argument("a position AT_TIMESTAMP needs Timestamp")
    if timestamp_s > account.now_s:
        raise invalid_argument(f"Timestamp {timestamp_s} is in the future: it is {account.now_s}")
    return shard.records.last_tick_before(timestamp_s)


def _issued_tick(stream: Stream, shard: Shard, number: str | None) -> int:
    if number is None:
        raise invalid_argument("positions AT_ and AFTER_SEQUENCE_NUMBER need a sequence number")
    tick = stream.numbers.tick_of(number, shard.index)
    if tick is None or not shard.has_issued(tick):
        raise invalid_argument(
            f"sequence number {number:.80} was never issued by shard {shard.shard_id} of stream {stream.name}"
        )
    return tick


def _page(
    account: Account, stream: Stream, shard: Shard, after_tick: int, *, bytes_max: int, limit: int = PAGE_MAX
) -> tuple[int, int]:
    records = shard.records
    records.trim(stream.horizon_s(account.now_s))
    start = records.first_after(after_tick)
    return start, records.end_of_page(start, limit, bytes_max)


def _read_answer(account: Account, stream: Stream, shard: Shard, start: int, end: int) -> Answer:
    """ChildShards come after the last record of a closed shard."""
    text, index, records = stream.numbers.text, shard.index, shard.records
    answer: Answer = {
        "Records": [
            {"SequenceNumber": text(tick, index), "ApproximateArrivalTimestamp": arrival_s, "Data": data}
            | ({} if partition_key is None else {"PartitionKey": partition_key})
            for tick, arrival_s, partition_key, data in records.columns(start, end)
        ],
        "MillisBehindLatest": 0,
    }
    if end < len(records):
        answer["MillisBehindLatest"] = max(1, round((account.now_s - records.arrival_s(end)) * 1000))
    elif not shard.is_open:
        answer["ChildShards"] = [
            {
                "ShardId": child.shard_id,
                "ParentShards": list(child.parent_ids),
                "HashKeyRange": child.hash_range(),
            }
            for child in shard.children
        ]
    return answer


def get_shard_iterator(account: Account, arguments: Arguments) -> Answer:
    stream = account.readable_stream(arguments)
    shard = stream.shard(arguments.text("ShardId"))
    names = ("ShardIteratorType", "StartingSequenceNumber")
    after_tick = _after_tick(account, stream, shard, arguments, names)
    return {"ShardIterator": _iterator(account, stream, shard, after_tick)}


def get_records(account: Account, arguments: Arguments) -> Answer:
    position = ShardIterator.decode(arguments, "ShardIterator")
    limit = arguments.optional_integer("Limit", 1, PAGE_MAX) or PAGE_MAX
    _require_fresh(account, position)
    stream = account.identified_stream(position.stream_arn, position.stream_identity)
    if arguments.has("StreamARN") and account.stream(arguments) is not stream:
        raise invalid_argument("StreamARN is not the stream of the ShardIterator")
    shard = stream.shard(position.shard_id)
    _require_capacity(account, stream, shard)
    bytes_max, limits = account.options.answer_bytes_max, account.options.limits
    start, end = _page(account, stream, shard, position.after_tick, bytes_max=bytes_max, limit=limit)
    if limits is not None:
        shard.traffic.count(account.now_s, shard.records.size_bytes(start, end), limits)
    answer = _read_answer(account, stream, shard, start, end)
    after_tick = shard.records.tick(end - 1) if end > start else position.after_tick
    ended = "ChildShards" in answer
    answer["NextShardIterator"] = None if ended else _iterator(account, stream, shard, after_tick)
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


class Subscription:
    def __init__(
        self,
        account: Account,
        advance_clock: Callable[[], None],
        *,
        stream: Stream,
        shard: Shard,
        consumer: RegisteredConsumer,
        after_tick: int,
    ) -> None:
        self._account = account
        self._advance_clock = advance_clock
        self._stream = stream
        self._shard = shard
        self._consumer = consumer
        self._after_tick = after_tick
        self._turn = SubscriptionTurn(stream.numbers.next_tick(), account.now_s)
        self._last_event_s = account.now_s
        self._held_until_s = 0.0
        self.ended = False
        consumer.turns[shard.shard_id] = self._turn
        shard.wake()  # the replaced subscription

    def ring(self, bell: Callable[[], None]) -> None:
        """`bell` must not call `next_event` itself."""
        self._shard.bells[self._turn.number] = bell

    def next_event(self) -> Answer | None:
        """None if no event is due; ServiceError ends the subscription."""
        if self.ended:
            return None
        self._advance_clock()
        now_s = self._account.now_s
        try:
            self._require_life()
        except BaseException:
            self.close()
            raise
        if now_s >= self._turn.started_s + self._account.options.fan_out.lasts_s:
            self.close()
            return None
        if now_s < self._held_until_s:
            return None
        event = self._read()
        if event is not None:
            self._last_event_s = now_s
        return event

    def due_in_s(self) -> float:
        options = self._account.options.fan_out
        next_s = min(self._last_event_s + options.idle_s, self._turn.started_s + options.lasts_s)
        if self._held_until_s > self._account.now_s:
            next_s = min(next_s, self._held_until_s)
        return max(0.001, next_s - self._account.now_s)

    def close(self) -> None:
        """It still protects from another subscription."""
        self.ended = True
        self._shard.bells.pop(self._turn.number, None)

    def _require_life(self) -> None:
        if self._account.streams.get(self._stream.arn) is not self._stream:
            raise not_found(f"stream {self._stream.arn} has been deleted")
        self._stream.expire(self._account.now_s)
        self._stream.shard(self._shard.shard_id)
        if self._consumer.deleted_s is not None:
            raise not_found(f"consumer {self._consumer.arn} has been deregistered")
        if self._consumer.turns[self._shard.shard_id] is not self._turn:
            raise in_use("Another active subscription exists for this consumer: it took over")

    def _read(self) -> Answer | None:
        account, stream, shard = self._account, self._stream, self._shard
        rules, limits = account.options.fan_out, account.options.limits
        start, end = _page(account, stream, shard, self._after_tick, bytes_max=rules.event_bytes_max)
        idle = start == end and shard.is_open
        if idle and account.now_s < self._last_event_s + rules.idle_s:
            return None
        if limits is not None:
            size_bytes = shard.records.size_bytes(start, end)
            self._held_until_s = account.now_s + size_bytes / limits.bytes_per_s
        if end > start:
            self._after_tick = shard.records.tick(end - 1)
        event = _read_answer(account, stream, shard, start, end)
        if "ChildShards" in event:
            self.close()
            return event
        if idle:
            self._after_tick = stream.numbers.next_tick()
            shard.continue_at(self._after_tick)
        event["ContinuationSequenceNumber"] = stream.numbers.text(self._after_tick, shard.index)
        return event


def subscribe(account: Account, advance_clock: Callable[[], None], arguments: Arguments) -> Subscription:
    """It takes over from an earlier one, unless it comes too soon."""
    position = arguments.structure("StartingPosition")
    if position is None:
        raise malformed("StartingPosition must be given")
    arguments.text("ConsumerARN")
    stream, consumer = named_consumer(account, arguments)
    require_active(account, consumer)
    shard = stream.shard(arguments.text("ShardId"))
    after_tick = _after_tick(account, stream, shard, position, ("Type", "SequenceNumber"))
    last = consumer.turns.get(shard.shard_id)
    if last is not None and account.now_s < last.started_s + account.options.fan_out.protected_s:
        raise in_use(
            f"Another active subscription exists for this consumer: {consumer.arn}, shard {shard.shard_id}, "
            f"since {account.now_s - last.started_s:.3f} s"
        )
    return Subscription(
        account, advance_clock, stream=stream, shard=shard, consumer=consumer, after_tick=after_tick
    )


def put_record(account: Account, arguments: Arguments) -> Answer:
    """SequenceNumberForOrdering has no effect: numbers always grow here."""
    stream = account.readable_stream(arguments)
    record = _read(arguments, stream)
    return _store(account, stream, record) | {"EncryptionType": "NONE"}


def put_records(account: Account, arguments: Arguments) -> Answer:
    stream = account.readable_stream(arguments)
    given = arguments.structures("Records")
    if not 1 <= len(given) <= _BATCH_MAX:
        raise malformed(f"Records must have 1 to {_BATCH_MAX} records, not {len(given)}")
    records = [_read(each, stream) for each in given]
    if sum(record.size_bytes for record in records) > _BATCH_BYTES_MAX:
        raise invalid_argument(
            f"Records must have at most {_BATCH_BYTES_MAX} bytes of data and partition keys"
        )
    code = account.refused_in_part
    answers = [
        {"ErrorCode": code, "ErrorMessage": "the record was told to fail"}
        if code and place % 2
        else _store(account, stream, record)
        for place, record in enumerate(records)
    ]
    return {
        "FailedRecordCount": len(records) // 2 if code else 0,
        "Records": answers,
        "EncryptionType": "NONE",
    }


def _read(record: Arguments, stream: Stream) -> NewRecord:
    partition_key, bytes_max = record.optional_text("PartitionKey"), stream.record_bytes_max
    if partition_key is None and not stream.is_auto:
        raise invalid_argument("PartitionKey must be given: RecordDistributionStrategy is not AUTO")
    if partition_key is not None and not 1 <= len(partition_key) <= _KEY_LENGTH_MAX:
        raise malformed(f"PartitionKey must have 1 to {_KEY_LENGTH_MAX} characters, not {len(partition_key)}")
    key_bytes = (partition_key or "").encode()
    data = record.text("Data")
    size_bytes = _decoded_length(data) + len(key_bytes)
    if size_bytes > bytes_max:
        raise malformed(f"Data and PartitionKey must have at most {bytes_max} bytes, not {size_bytes}")
    explicit = record.has("ExplicitHashKey")
    key_hash = record.hash_key("ExplicitHashKey") if explicit else _partition_hash(key_bytes)
    return NewRecord(None if partition_key is None else key_hash, partition_key, data, size_bytes)


def _store(account: Account, stream: Stream, record: NewRecord) -> Answer:
    shard, tick = stream.put(record, account.now_s)
    return {"ShardId": shard.shard_id, "SequenceNumber": stream.numbers.text(tick, shard.index)}


def _decoded_length(data: str) -> int:
    try:
        return len(binascii.a2b_base64(data, strict_mode=True))
    except ValueError as error:
        raise ServiceError("SerializationException", f"Data is not base64: {error}") from error


def _partition_hash(key_bytes: bytes) -> int:
    return int.from_bytes(hashlib.md5(key_bytes, usedforsecurity=False).digest(), "big")
