"""PutRecord and PutRecords. Knows nothing of reading."""

from __future__ import annotations

import binascii
import hashlib
from dataclasses import dataclass
from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import ServiceError, invalid_argument, malformed
from kcl_local.kinesis.options import MIB
from kcl_local.kinesis.stream import Stream

_KEY_LENGTH_MAX: Final = 256
_BATCH_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 10 * MIB


@dataclass(frozen=True, slots=True)
class _Entry:
    key_hash: int
    partition_key: str
    data: str
    size_bytes: int


def put_record(account: Account, arguments: Arguments) -> Answer:
    """PutRecord. SequenceNumberForOrdering needs no care: numbers always grow here."""
    stream = account.readable_stream(arguments)
    entry = _read(arguments, stream.record_bytes_max)
    return _store(account, stream, entry) | {"EncryptionType": "NONE"}


def put_records(account: Account, arguments: Arguments) -> Answer:
    """PutRecords. All or nothing: a malformed record refuses the call, and no record fails on its own."""
    stream = account.readable_stream(arguments)
    given = arguments.structures("Records")
    if not 1 <= len(given) <= _BATCH_MAX:
        raise malformed(f"Records must have 1 to {_BATCH_MAX} records, not {len(given)}")
    entries = [_read(record, stream.record_bytes_max) for record in given]
    if sum(entry.size_bytes for entry in entries) > _BATCH_BYTES_MAX:
        raise invalid_argument(
            f"Records must have at most {_BATCH_BYTES_MAX} bytes of data and partition keys"
        )
    return {
        "FailedRecordCount": 0,
        "Records": [_store(account, stream, entry) for entry in entries],
        "EncryptionType": "NONE",
    }


def _read(record: Arguments, bytes_max: int) -> _Entry:
    partition_key = record.text("PartitionKey")
    if not 1 <= len(partition_key) <= _KEY_LENGTH_MAX:
        raise malformed(f"PartitionKey must have 1 to {_KEY_LENGTH_MAX} characters, not {len(partition_key)}")
    key_bytes = partition_key.encode()
    data = record.text("Data")
    size_bytes = _decoded_length(data) + len(key_bytes)
    if size_bytes > bytes_max:
        raise malformed(f"Data and PartitionKey must have at most {bytes_max} bytes, not {size_bytes}")
    explicit = record.has("ExplicitHashKey")
    key_hash = record.hash_key("ExplicitHashKey") if explicit else _partition_hash(key_bytes)
    return _Entry(key_hash, partition_key, data, size_bytes)


def _store(account: Account, stream: Stream, entry: _Entry) -> Answer:
    shard, tick = stream.put(
        entry.key_hash, entry.partition_key, entry.data, size_bytes=entry.size_bytes, now_s=account.now_s
    )
    return {"ShardId": shard.shard_id, "SequenceNumber": stream.numbers.text(tick, shard.index)}


def _decoded_length(data: str) -> int:
    try:
        return len(binascii.a2b_base64(data, strict_mode=True))
    except ValueError as error:
        raise ServiceError("SerializationException", f"Data is not base64: {error}") from error


def _partition_hash(key_bytes: bytes) -> int:
    return int.from_bytes(hashlib.md5(key_bytes, usedforsecurity=False).digest(), "big")
