"""Messages to lines and lines to messages: the only place where the wire's camelCase names and JSON exist.

Owns writing, for both sides, and gives the two readers, which differ on purpose: the daemon reads what any program
may print (`_child_lines`), a client reads what a daemon says (`_daemon_lines`). Knows nothing of how lines are cut
(`framing`) or of who may speak when (`conversation`).
"""

from __future__ import annotations

from typing import assert_never

from kcl_protocol._child_lines import Echo, Stray, decode_child_line
from kcl_protocol._daemon_lines import decode_daemon_line
from kcl_protocol._json import dump_line
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Record,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)

__all__ = ["Echo", "Stray", "decode_child_line", "decode_daemon_line", "encode"]


def encode(message: Message) -> bytes:
    r"""The message as one line of compact JSON with one LF at its end, in ASCII only.

    Every declared field is there, None as null; `action` is the first key of a message and the last of a record, as
    KCL writes them (a record's schema, which KCL does not know, comes behind it). Text outside ASCII becomes `\uXXXX`, because children read stdin in the encoding of their locale;
    lone surrogates are kept as such.

    Raises:
        TypeError: an integer does not fit in 64 bits.
    """
    return dump_line(_fields(message))


def _fields(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {"action": message.action}
    match message:
        case ProcessRecords():
            fields["records"] = [_record_fields(record) for record in message.records]
            fields["millisBehindLatest"] = message.millis_behind_latest
        case Initialize():
            fields["shardId"] = message.shard_id
            fields["sequenceNumber"] = message.sequence_number
            fields["subSequenceNumber"] = message.sub_sequence_number
            if message.stream_name is not None:
                fields["streamName"] = message.stream_name
            if message.stream_arn is not None:
                fields["streamArn"] = message.stream_arn
        case CheckpointAnswer():
            fields["sequenceNumber"] = message.sequence_number
            fields["subSequenceNumber"] = message.sub_sequence_number
            fields["error"] = message.error
        case CheckpointRequest():
            fields["sequenceNumber"] = message.sequence_number
            fields["subSequenceNumber"] = message.sub_sequence_number
        case Status():
            fields["responseFor"] = message.response_for
        case Shutdown():
            fields["reason"] = message.reason
        case LeaseLost() | ShardEnded() | ShutdownRequested():
            pass
        case _:
            assert_never(message)
    return fields


def _record_fields(record: Record) -> dict[str, object]:
    fields: dict[str, object] = {
        "data": record.data,
        "partitionKey": record.partition_key,
        "sequenceNumber": record.sequence_number,
        "approximateArrivalTimestamp": record.approximate_arrival_timestamp,
        "subSequenceNumber": record.sub_sequence_number,
        "action": "record",
    }
    if record.schema is not None:
        fields["schemaName"] = record.schema.name
        fields["schemaVersionId"] = record.schema.version_id
        fields["schemaDataFormat"] = record.schema.data_format
        fields["schemaDefinition"] = record.schema.definition
    return fields
