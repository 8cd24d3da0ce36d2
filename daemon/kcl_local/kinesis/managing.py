"""The operations on whole streams: create, delete, list, describe, retention. Knows no record."""

from __future__ import annotations

import re
from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import in_use, invalid_argument, malformed
from kcl_local.kinesis.listing import shard_entry
from kcl_local.kinesis.stream import Stream, stream_arn

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_MODES: Final = ("PROVISIONED", "ON_DEMAND")
_ON_DEMAND_SHARDS: Final = 4
_SHARDS_MAX: Final = 10_000
_RECORD_KIB_MIN: Final = 1024
_RECORD_KIB_MAX: Final = 10_240
_RETENTION_HOURS_MIN: Final = 24
_RETENTION_HOURS_MAX: Final = 8760


def create_stream(account: Account, arguments: Arguments) -> Answer:
    """CreateStream. Other than the service it takes StreamARN too, for a stream of another account."""
    arn = arguments.optional_text("StreamARN") or stream_arn(arguments.text("StreamName"))
    name = arn.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise malformed(f"StreamName must be 1 to 128 of a-z A-Z 0-9 _ . -, not {name!r:.140}")
    details = arguments.structure("StreamModeDetails")
    mode = _mode(details) if details else _MODES[0]
    if mode == "PROVISIONED":
        shard_count = arguments.integer("ShardCount", 1, _SHARDS_MAX)
    else:
        shard_count = _ON_DEMAND_SHARDS
    record_kib = arguments.optional_integer("MaxRecordSizeInKiB", _RECORD_KIB_MIN, _RECORD_KIB_MAX)
    if arn in account.streams:
        raise in_use(f"stream {arn} already exists")
    account.streams[arn] = Stream(
        arn,
        shard_count,
        numbers=account.numbers,
        created_s=account.now_s,
        mode=mode,
        record_bytes_max=account.options.record_bytes_max if record_kib is None else record_kib * 1024,
        retention_hours=account.options.retention_hours,
    )
    return {}


def delete_stream(account: Account, arguments: Arguments) -> Answer:
    """DeleteStream; the stream is gone at once. One with consumers needs EnforceConsumerDeletion."""
    stream = account.stream(arguments)
    if account.consumers(stream) and not arguments.flag("EnforceConsumerDeletion"):
        raise in_use(f"stream {stream.name} has registered consumers; EnforceConsumerDeletion is not true")
    del account.streams[stream.arn]
    for shard in stream.shards:
        shard.wake()
    return {}


def list_streams(account: Account, arguments: Arguments) -> Answer:
    """ListStreams, of the caller's account; the page token is the last name given."""
    limit = arguments.optional_integer("Limit", 1, 10_000) or 100
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
    """DescribeStreamSummary."""
    stream = account.stream(arguments)
    own: Answer = {
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": len(account.consumers(stream)),
        "MaxRecordSizeInKiB": stream.record_bytes_max // 1024,
    }
    return {"StreamDescriptionSummary": _common(account, stream) | _settings(stream) | own}


def describe_stream(account: Account, arguments: Arguments) -> Answer:
    """DescribeStream."""
    stream = account.stream(arguments)
    limit = arguments.optional_integer("Limit", 1, 10_000) or 100
    after = arguments.optional_text("ExclusiveStartShardId") or ""
    shards = [shard for shard in stream.shards if shard.shard_id > after] if account.is_active(stream) else []
    own: Answer = {
        "Shards": [shard_entry(stream, shard) for shard in shards[:limit]],
        "HasMoreShards": len(shards) > limit,
    }
    return {"StreamDescription": _common(account, stream) | _settings(stream) | own}


def increase_retention(account: Account, arguments: Arguments) -> Answer:
    """IncreaseStreamRetentionPeriod."""
    stream, hours = _retention(account, arguments)
    if hours < stream.retention_hours:
        raise invalid_argument(
            f"{hours} hours are less than the retention of {stream.name}, {stream.retention_hours}"
        )
    stream.retention_hours = hours
    return {}


def decrease_retention(account: Account, arguments: Arguments) -> Answer:
    """DecreaseStreamRetentionPeriod; what is older than the new retention is gone at once."""
    stream, hours = _retention(account, arguments)
    if hours > stream.retention_hours:
        raise invalid_argument(
            f"{hours} hours are more than the retention of {stream.name}, {stream.retention_hours}"
        )
    stream.retention_hours = hours
    return {}


def update_max_record_size(account: Account, arguments: Arguments) -> Answer:
    """UpdateMaxRecordSize, at once."""
    record_kib = arguments.integer("MaxRecordSizeInKiB", _RECORD_KIB_MIN, _RECORD_KIB_MAX)
    account.active_stream(arguments).record_bytes_max = record_kib * 1024
    return {}


def update_stream_mode(account: Account, arguments: Arguments) -> Answer:
    """UpdateStreamMode, at once."""
    stream = account.active_stream(arguments)
    details = arguments.structure("StreamModeDetails")
    if details is None:
        raise malformed("StreamModeDetails must be given")
    stream.mode = _mode(details)
    return {}


def _mode(details: Arguments) -> str:
    mode = details.text("StreamMode")
    if mode not in _MODES:
        raise malformed(f"StreamMode must be one of {', '.join(_MODES)}, not {mode!r:.80}")
    return mode


def _retention(account: Account, arguments: Arguments) -> tuple[Stream, int]:
    hours = arguments.integer("RetentionPeriodHours", _RETENTION_HOURS_MIN, _RETENTION_HOURS_MAX)
    return account.active_stream(arguments), hours


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
