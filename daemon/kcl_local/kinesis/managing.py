"""The operations on whole streams: create, delete, list, describe, retention. Knows no record."""

from __future__ import annotations

import re
from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import in_use, invalid_argument, malformed
from kcl_local.kinesis.listing import shard_entry
from kcl_local.kinesis.options import MIB
from kcl_local.kinesis.stream import ACCOUNT_ID, Stream

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_MODES: Final = ("PROVISIONED", "ON_DEMAND")
_ON_DEMAND_SHARDS: Final = 4
_SHARDS_MAX: Final = 10_000
_RETENTION_HOURS_MIN: Final = 24
_RETENTION_HOURS_MAX: Final = 8760


def create_stream(account: Account, arguments: Arguments) -> Answer:
    """CreateStream."""
    name = arguments.text("StreamName")
    if not _NAME.fullmatch(name):
        raise malformed(f"StreamName must be 1 to 128 of a-z A-Z 0-9 _ . -, not {name!r:.140}")
    details = arguments.structure("StreamModeDetails")
    mode = details.text("StreamMode") if details else _MODES[0]
    if mode not in _MODES:
        raise malformed(f"StreamMode must be one of {', '.join(_MODES)}, not {mode!r:.80}")
    if mode == "PROVISIONED":
        shard_count = arguments.integer("ShardCount", 1, _SHARDS_MAX)
    else:
        shard_count = _ON_DEMAND_SHARDS
    if name in account.streams:
        raise in_use(f"stream {name} under account {ACCOUNT_ID} already exists")
    account.streams[name] = Stream(
        name,
        shard_count,
        numbers=account.numbers,
        created_s=account.now_s,
        mode=mode,
        retention_hours=account.options.retention_hours,
    )
    return {}


def delete_stream(account: Account, arguments: Arguments) -> Answer:
    """DeleteStream; the stream is gone at once."""
    del account.streams[account.stream(arguments).name]
    return {}


def list_streams(account: Account, arguments: Arguments) -> Answer:
    """ListStreams; the page token is the last name given."""
    limit = arguments.optional_integer("Limit", 1, 10_000) or 100
    after = arguments.optional_text("NextToken") or arguments.optional_text("ExclusiveStartStreamName") or ""
    names = sorted(name for name in account.streams if name > after)
    page = names[:limit]
    answer: Answer = {
        "StreamNames": page,
        "HasMoreStreams": len(names) > limit,
        "StreamSummaries": [_common(account, account.streams[name]) for name in page],
    }
    if len(names) > limit:
        answer["NextToken"] = page[-1]
    return answer


def describe_stream_summary(account: Account, arguments: Arguments) -> Answer:
    """DescribeStreamSummary."""
    stream = account.stream(arguments)
    own: Answer = {
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": 0,
        "MaxRecordSizeInKiB": MIB // 1024,
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
