"""What a daemon's line means to a client, read strictly: between the two nothing but messages may pass.

Fields that are unknown are ignored and optional ones may be missing, so that a client works with older and newer
daemons. Knows nothing of what may be said when (`conversation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeGuard

from kcl_protocol._json import load
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    RecordSchema,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
)

# The most of a foreign value or line that an error message repeats.
_EXCERPT_CHARACTERS: Final = 80

_Fields = Mapping[str, object]


def decode_daemon_line(line: bytes) -> DaemonMessage:
    """The message of one line, with or without its terminator.

    Optional, None where missing: every sequence number but a record's, sub-sequence numbers (0 in a record),
    timestamps, `millisBehindLatest`, `error`. The pre-2017 key `checkpoint` of a checkpoint answer is understood.

    Raises:
        RemoteProtocolError: the line is not exactly one JSON object, its action is not one of a daemon's, or a field
            is missing or of the wrong type; says which.
    """
    fields = _object(line)
    try:
        return _message(fields)
    except _Malformed as error:
        raise RemoteProtocolError(f"{error}, in the daemon's line {_excerpt(line)}") from None


class _Malformed(Exception):
    """Raised when a field is not as it must be; says which."""


def _message(fields: _Fields) -> DaemonMessage:
    action = fields.get("action")
    read = _READERS.get(action) if isinstance(action, str) else None
    if read is None:
        raise _wrong("action", action, "one of a daemon's")
    return read(fields)


def _initialize(fields: _Fields) -> Initialize:
    return Initialize(
        shard_id=_text(fields, "shardId"),
        sequence_number=_text_or_none(fields, "sequenceNumber"),
        sub_sequence_number=_integer_or_none(fields, "subSequenceNumber"),
        stream_name=_text_or_none(fields, "streamName"),
        stream_arn=_text_or_none(fields, "streamArn"),
    )


def _checkpoint_answer(fields: _Fields) -> CheckpointAnswer:
    # Until 2016 the position was called `checkpoint`, like the action.
    key = "sequenceNumber" if "sequenceNumber" in fields else "checkpoint"
    return CheckpointAnswer(
        sequence_number=_text_or_none(fields, key),
        sub_sequence_number=_integer_or_none(fields, "subSequenceNumber"),
        error=_text_or_none(fields, "error"),
    )


def _object(line: bytes) -> _Fields:
    try:
        value = load(line)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"the daemon's line is not JSON ({error}): {_excerpt(line)}") from error
    if not _is_object(value):
        raise RemoteProtocolError(f"the daemon's line is not a JSON object: {_excerpt(line)}")
    return value


def _process_records(fields: _Fields) -> ProcessRecords:
    records = fields.get("records")
    if not _is_array(records):
        raise _wrong("records", records, "an array")
    return ProcessRecords(
        records=[_record(record, index) for index, record in enumerate(records)],
        millis_behind_latest=_integer_or_none(fields, "millisBehindLatest"),
    )


def _record(value: object, index: int) -> Record:
    if not _is_object(value):
        raise _wrong(f"records[{index}]", value, "an object")
    try:
        return Record(
            data=_text(value, "data"),
            partition_key=_text(value, "partitionKey"),
            sequence_number=_text(value, "sequenceNumber"),
            approximate_arrival_timestamp=_integer_or_none(value, "approximateArrivalTimestamp"),
            sub_sequence_number=_integer_or_none(value, "subSequenceNumber") or 0,
            schema=_schema(value) if "schemaVersionId" in value else None,
        )
    except _Malformed as error:
        raise _Malformed(f"records[{index}]: {error}") from None


def _schema(fields: _Fields) -> RecordSchema | None:
    """All four fields, or none."""
    if fields.get("schemaVersionId") is None:
        return None
    return RecordSchema(
        name=_text(fields, "schemaName"),
        version_id=_text(fields, "schemaVersionId"),
        data_format=_text(fields, "schemaDataFormat"),
        definition=_text(fields, "schemaDefinition"),
    )


def _text(fields: _Fields, key: str) -> str:
    value = fields.get(key)
    if isinstance(value, str):
        return value
    raise _wrong(key, value, "a text")


def _text_or_none(fields: _Fields, key: str) -> str | None:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(key, value, "a text or null")


def _integer_or_none(fields: _Fields, key: str) -> int | None:
    value = fields.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _wrong(key, value, "an integer of 64 bits or null")


def _wrong(key: str, value: object, wanted: str) -> _Malformed:
    return _Malformed(f'"{key}" must be {wanted}, but is {_found(value)}')


def _found(value: object) -> str:
    """What a value is, for an error message; large and nested ones by their kind only."""
    if value is None:
        return "null or missing"
    if isinstance(value, str | int | float):
        return f"{value!r:.{_EXCERPT_CHARACTERS}}"
    return "an array" if isinstance(value, list) else "an object"


def _is_object(value: object) -> TypeGuard[_Fields]:
    return isinstance(value, dict)


def _is_array(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _excerpt(line: bytes) -> str:
    return repr(line[:_EXCERPT_CHARACTERS].decode("utf-8", "replace"))


_READERS: Final[Mapping[str, Callable[[_Fields], DaemonMessage]]] = {
    ProcessRecords.action: _process_records,
    CheckpointAnswer.action: _checkpoint_answer,
    Initialize.action: _initialize,
    LeaseLost.action: lambda _fields: LeaseLost(),
    ShardEnded.action: lambda _fields: ShardEnded(),
    ShutdownRequested.action: lambda _fields: ShutdownRequested(),
    Shutdown.action: lambda fields: Shutdown(_text(fields, "reason")),
}
