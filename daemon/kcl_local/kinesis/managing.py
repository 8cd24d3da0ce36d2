"""Reshards take effect at once."""

from __future__ import annotations

from typing import Final

from kcl_local.kinesis.account import Account, Answer, ConsumerPage, ShardPage
from kcl_local.kinesis.arguments import (
    PAGE_MAX,
    SHARDS_MAX,
    Arguments,
    ServiceError,
    checked_name,
    in_use,
    invalid_argument,
    malformed,
    not_found,
)
from kcl_local.kinesis.stream import RegisteredConsumer, Shard, Stream, stream_arn

_SHARDS_PAGE: Final = 1000
_PAGE: Final = 100
_TOKEN_TTL_S: Final = 300.0
_NOT_WITH_TOKEN: Final = (
    "StreamName",
    "StreamARN",
    "StreamCreationTimestamp",
    "ExclusiveStartShardId",
    "ShardFilter",
)
_MODES: Final = ("PROVISIONED", "ON_DEMAND")
_STRATEGY: Final = "RecordDistributionStrategy"
_STRATEGIES: Final = ("USER_PARTITION_KEY", "AUTO")
_ON_DEMAND_SHARDS: Final = 4
_RECORD_KIB_MIN: Final = 1024
_RECORD_KIB_MAX: Final = 10_240
_RETENTION_HOURS_MIN: Final = 24
_RETENTION_HOURS_MAX: Final = 8760
_CREATING_MAX: Final = 5


def list_shards(account: Account, arguments: Arguments) -> Answer:
    """A page token must come without the stream, start and filter of the first call."""
    page_size = arguments.optional_integer("MaxResults", 1, PAGE_MAX) or _SHARDS_PAGE
    if arguments.has("NextToken"):
        stream, after, shard_filter = _resume(account, arguments)
    else:
        stream = account.active_stream(arguments)
        after = arguments.optional_text("ExclusiveStartShardId") or ""
        shard_filter = _read_filter(arguments.structure("ShardFilter"))
    shards = [shard for shard in _filtered(account, stream, shard_filter) if shard.shard_id > after]
    page = shards[:page_size]
    answer: Answer = {"Shards": [shard_entry(stream, shard) for shard in page]}
    if len(shards) > page_size:
        token = ShardPage(stream.arn, stream.identity, page[-1].shard_id, account.now_s, shard_filter)
        answer["NextToken"] = token.encode()
    return answer


def shard_entry(stream: Stream, shard: Shard) -> Answer:
    numbers: Answer = {"StartingSequenceNumber": stream.numbers.text(shard.opened_tick, shard.index)}
    if shard.closed_tick is not None:
        numbers["EndingSequenceNumber"] = stream.numbers.text(shard.closed_tick, shard.index)
    entry: Answer = {
        "ShardId": shard.shard_id,
        "HashKeyRange": shard.hash_range(),
        "SequenceNumberRange": numbers,
    }
    for name, parent_id in zip(("ParentShardId", "AdjacentParentShardId"), shard.parent_ids, strict=False):
        entry[name] = parent_id
    return entry


def _resume(account: Account, arguments: Arguments) -> tuple[Stream, str, Answer | None]:
    for name in _NOT_WITH_TOKEN:
        if arguments.has(name):
            raise invalid_argument(f"NextToken and {name} cannot be provided together.")
    token = ShardPage.decode(arguments, "NextToken")
    if account.now_s - token.issued_s >= _TOKEN_TTL_S:
        raise ServiceError("ExpiredNextTokenException", f"NextToken is older than {_TOKEN_TTL_S:g} s")
    stream = account.identified_stream(token.stream_arn, token.stream_identity)
    return stream, token.after_shard_id, token.shard_filter


def _read_filter(given: Arguments | None) -> Answer | None:
    if given is None:
        return None
    kind = given.text("Type")
    checked: Answer = {"Type": kind}
    if kind == "AFTER_SHARD_ID":
        checked["ShardId"] = given.optional_text("ShardId")
    elif kind in {"AT_TIMESTAMP", "FROM_TIMESTAMP"}:
        checked["Timestamp"] = given.optional_timestamp("Timestamp")
    elif kind not in {"AT_TRIM_HORIZON", "FROM_TRIM_HORIZON", "AT_LATEST"}:
        raise malformed(f"ShardFilter.Type {kind!r:.80} is unknown")
    for name, value in checked.items():
        if value is None:
            raise invalid_argument(f"ShardFilter of type {kind} needs {name}")
    return checked


def _filtered(account: Account, stream: Stream, shard_filter: Answer | None) -> list[Shard]:
    match shard_filter:
        case {"Type": "AT_LATEST"}:
            return [shard for shard in stream.shards if shard.is_open]
        case {"Type": "AFTER_SHARD_ID", "ShardId": str(shard_id)}:
            return [shard for shard in stream.shards if shard.shard_id > shard_id]
        case {"Type": "AT_TRIM_HORIZON"}:
            return _oldest(stream)
        case {"Type": "AT_TIMESTAMP", "Timestamp": float(at_s)}:
            return _open_at(account, stream, at_s)
        case {"Type": "FROM_TIMESTAMP", "Timestamp": float(from_s)}:
            return [shard for shard in stream.shards if shard.closed_s is None or shard.closed_s >= from_s]
        case _:  # FROM_TRIM_HORIZON or no filter: all that has not expired
            return stream.shards


def _oldest(stream: Stream) -> list[Shard]:
    """Those with no known parent: by time, a split in the millisecond of the horizon would count twice."""
    return [shard for shard in stream.shards if not any(map(stream.knows, shard.parent_ids))]


def _open_at(account: Account, stream: Stream, at_s: float) -> list[Shard]:
    if at_s <= max(stream.horizon_s(account.now_s), stream.created_s):
        return _oldest(stream)
    return [
        shard
        for shard in stream.shards
        if shard.opened_s <= at_s and (shard.closed_s is None or shard.closed_s >= at_s)
    ]


def create_stream(account: Account, arguments: Arguments) -> Answer:
    """Unlike the service it also takes StreamARN, for a stream of another account."""
    arn = arguments.optional_text("StreamARN") or stream_arn(arguments.text("StreamName"))
    checked_name("StreamName", arn.rpartition("/")[2])
    details = arguments.structure("StreamModeDetails")
    mode = _mode(details) if details else "PROVISIONED"
    provisioned = mode == "PROVISIONED"
    shard_count = arguments.integer("ShardCount", 1, SHARDS_MAX) if provisioned else _ON_DEMAND_SHARDS
    record_kib = arguments.optional_integer("MaxRecordSizeInKiB", _RECORD_KIB_MIN, _RECORD_KIB_MAX)
    is_auto = arguments.has(_STRATEGY) and _is_auto(arguments, mode)
    if arn in account.streams:
        raise in_use(f"stream {arn} already exists")
    stream = account.streams[arn] = Stream(
        arn,
        shard_count,
        numbers=account.numbers,
        created_s=account.now_s,
        mode=mode,
        record_bytes_max=account.options.record_bytes_max if record_kib is None else record_kib * 1024,
        retention_hours=account.options.retention_hours,
    )
    stream.is_auto = is_auto
    return {}


def delete_stream(account: Account, arguments: Arguments) -> Answer:
    stream = account.stream(arguments)
    if account.consumers(stream) and not arguments.flag("EnforceConsumerDeletion"):
        raise in_use(f"stream {stream.name} has registered consumers; EnforceConsumerDeletion is not true")
    del account.streams[stream.arn]
    for shard in stream.shards:
        shard.wake()
    return {}


def list_streams(account: Account, arguments: Arguments) -> Answer:
    limit = arguments.optional_integer("Limit", 1, PAGE_MAX) or _PAGE
    after = arguments.optional_text("NextToken") or arguments.optional_text("ExclusiveStartStreamName") or ""
    own = {
        stream.name: stream for stream in account.streams.values() if stream.arn == stream_arn(stream.name)
    }
    names = sorted(name for name in own if name > after)
    page = names[:limit]
    answer: Answer = {
        "StreamNames": page,
        "HasMoreStreams": len(names) > limit,
        "StreamSummaries": [_common(account, own[name]) for name in page],
    }
    if len(names) > limit:
        answer["NextToken"] = page[-1]
    return answer


def describe_stream_summary(account: Account, arguments: Arguments) -> Answer:
    stream = account.stream(arguments)
    own: Answer = {
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": len(account.consumers(stream)),
        "MaxRecordSizeInKiB": stream.record_bytes_max // 1024,
    }
    if stream.mode == _MODES[1]:
        own[_STRATEGY] = _STRATEGIES[stream.is_auto]
    return {"StreamDescriptionSummary": _common(account, stream) | _settings(stream) | own}


def describe_stream(account: Account, arguments: Arguments) -> Answer:
    stream = account.stream(arguments)
    limit = arguments.optional_integer("Limit", 1, PAGE_MAX) or _PAGE
    after = arguments.optional_text("ExclusiveStartShardId") or ""
    shards = [shard for shard in stream.shards if shard.shard_id > after] if account.is_active(stream) else []
    own: Answer = {
        "Shards": [shard_entry(stream, shard) for shard in shards[:limit]],
        "HasMoreShards": len(shards) > limit,
    }
    return {"StreamDescription": _common(account, stream) | _settings(stream) | own}


def change_retention(direction: int, account: Account, arguments: Arguments) -> Answer:
    """`direction`: 1 increases, -1 decreases."""
    hours = arguments.integer("RetentionPeriodHours", _RETENTION_HOURS_MIN, _RETENTION_HOURS_MAX)
    stream = account.active_stream(arguments)
    if (hours - stream.retention_hours) * direction < 0:
        wrong = "less" if direction > 0 else "more"
        raise invalid_argument(
            f"{hours} hours are {wrong} than the retention of {stream.name}, {stream.retention_hours}"
        )
    stream.retention_hours = hours
    return {}


def update_max_record_size(account: Account, arguments: Arguments) -> Answer:
    record_kib = arguments.integer("MaxRecordSizeInKiB", _RECORD_KIB_MIN, _RECORD_KIB_MAX)
    account.active_stream(arguments).record_bytes_max = record_kib * 1024
    return {}


def update_stream_mode(account: Account, arguments: Arguments) -> Answer:
    stream = account.active_stream(arguments)
    details = arguments.structure("StreamModeDetails")
    if details is None:
        raise malformed("StreamModeDetails must be given")
    stream.mode = _mode(details)
    stream.is_auto &= stream.mode == _MODES[1]
    return {}


def update_record_distribution(account: Account, arguments: Arguments) -> Answer:
    arguments.text("StreamARN")  # StreamName is not enough here
    stream = account.active_stream(arguments)
    stream.is_auto = _is_auto(arguments, stream.mode)
    return {}


def _is_auto(arguments: Arguments, mode: str) -> bool:
    strategy = arguments.text(_STRATEGY)
    if strategy not in _STRATEGIES:
        raise malformed(f"{_STRATEGY} must be one of {', '.join(_STRATEGIES)}, not {strategy!r:.80}")
    if mode != _MODES[1]:
        raise invalid_argument(f"{_STRATEGY} is only for streams whose StreamMode is ON_DEMAND, not {mode}")
    return strategy == "AUTO"


def _mode(details: Arguments) -> str:
    mode = details.text("StreamMode")
    if mode not in _MODES:
        raise malformed(f"StreamMode must be one of {', '.join(_MODES)}, not {mode!r:.80}")
    return mode


def _common(account: Account, stream: Stream) -> Answer:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": "ACTIVE" if account.is_active(stream) else "CREATING",
        "StreamModeDetails": {"StreamMode": stream.mode},
        "StreamCreationTimestamp": stream.created_s,
    }


def _settings(stream: Stream) -> Answer:
    return {
        "RetentionPeriodHours": stream.retention_hours,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }


def split_shard(account: Account, arguments: Arguments) -> Answer:
    stream = account.active_stream(arguments)
    shard = stream.shard(arguments.text("ShardToSplit"))
    stream.split(shard, arguments.hash_key("NewStartingHashKey"), account.now_s)
    return {}


def merge_shards(account: Account, arguments: Arguments) -> Answer:
    stream = account.active_stream(arguments)
    shard = stream.shard(arguments.text("ShardToMerge"))
    adjacent = stream.shard(arguments.text("AdjacentShardToMerge"))
    stream.merge(shard, adjacent, account.now_s)
    return {}


def update_shard_count(account: Account, arguments: Arguments) -> Answer:
    """At most double, at least half of the open shards, as in the service."""
    stream = account.active_stream(arguments)
    target = arguments.integer("TargetShardCount", 1, SHARDS_MAX)
    if arguments.text("ScalingType") != "UNIFORM_SCALING":
        raise malformed("ScalingType must be UNIFORM_SCALING")
    current = len(stream.open_shards)
    if not current <= target * 2 <= current * 4:
        raise ServiceError(
            "LimitExceededException",
            f"TargetShardCount {target} is more than double or less than half of the {current} open shards",
        )
    stream.scale(target, account.now_s)
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }


def register_consumer(account: Account, arguments: Arguments) -> Answer:
    """As in the service, the answer always says CREATING."""
    arguments.text("StreamARN")  # StreamName is not enough here
    name = checked_name("ConsumerName", arguments.text("ConsumerName"))
    stream = account.active_stream(arguments)
    consumers = account.consumers(stream)
    if name in consumers:
        raise in_use(f"consumer {name} of stream {stream.name} already exists")
    creating = [each for each in consumers.values() if _status(account, each) == "CREATING"]
    if len(consumers) >= account.options.fan_out.consumers_max or len(creating) >= _CREATING_MAX:
        raise ServiceError(
            "LimitExceededException",
            f"stream {stream.name} has {len(consumers)} consumers, {len(creating)} of them CREATING",
        )
    consumer = RegisteredConsumer(name, stream.arn, account.now_s)
    consumers[name] = consumer
    return {"Consumer": _entry(account, consumer) | {"ConsumerStatus": "CREATING"}}


def describe_consumer(account: Account, arguments: Arguments) -> Answer:
    consumer = named_consumer(account, arguments)[1]
    return {"ConsumerDescription": _entry(account, consumer) | {"StreamARN": consumer.stream_arn}}


def list_consumers(account: Account, arguments: Arguments) -> Answer:
    page_size = arguments.optional_integer("MaxResults", 1, PAGE_MAX) or _PAGE
    arguments.text("StreamARN")
    stream = account.stream(arguments)
    after = ""
    if arguments.has("NextToken"):
        if arguments.has("StreamCreationTimestamp"):
            raise invalid_argument("NextToken and StreamCreationTimestamp cannot be provided together.")
        token = ConsumerPage.decode(arguments, "NextToken")
        if account.identified_stream(token.stream_arn, token.stream_identity) is not stream:
            raise invalid_argument("StreamARN is not the stream of the NextToken")
        after = token.after_name
    consumers = account.consumers(stream)
    names = sorted(name for name in consumers if name > after)
    page = names[:page_size]
    answer: Answer = {"Consumers": [_entry(account, consumers[name]) for name in page]}
    if len(names) > page_size:
        answer["NextToken"] = ConsumerPage(stream.arn, stream.identity, page[-1]).encode()
    return answer


def deregister_consumer(account: Account, arguments: Arguments) -> Answer:
    stream, consumer = named_consumer(account, arguments)
    if consumer.deleted_s is not None:
        raise in_use(f"consumer {consumer.name} of stream {stream.name} is DELETING")
    consumer.deleted_s = account.now_s
    account.consumers(stream)
    for shard_id in consumer.turns:
        if stream.knows(shard_id):
            stream.shard(shard_id).wake()
    return {}


def named_consumer(account: Account, arguments: Arguments) -> tuple[Stream, RegisteredConsumer]:
    arn = arguments.optional_text("ConsumerARN")
    if arn is None:
        if not (arguments.has("StreamARN") and arguments.has("ConsumerName")):
            raise invalid_argument("ConsumerARN, or StreamARN and ConsumerName, must be given")
        stream = account.stream(arguments)
        consumer = account.consumers(stream).get(arguments.text("ConsumerName"))
    else:
        stream_arn, found, rest = arn.partition("/consumer/")
        if not found:
            raise invalid_argument(f"ConsumerARN {arn:.300} is not that of a consumer")
        stream = account.stream_of(stream_arn)
        consumer = account.consumers(stream).get(rest.partition(":")[0])
        if consumer is not None and consumer.arn != arn:
            consumer = None
    if consumer is None:
        raise not_found(f"consumer {arn or arguments.text('ConsumerName')} of stream {stream.name} not found")
    return stream, consumer


def require_active(account: Account, consumer: RegisteredConsumer) -> None:
    status = _status(account, consumer)
    if status != "ACTIVE":
        raise in_use(f"consumer {consumer.arn} is not ACTIVE, but {status}")


def _status(account: Account, consumer: RegisteredConsumer) -> str:
    return consumer.status(account.now_s, account.options.fan_out.creating_s)


def _entry(account: Account, consumer: RegisteredConsumer) -> Answer:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": _status(account, consumer),
        "ConsumerCreationTimestamp": consumer.created_s,
    }
