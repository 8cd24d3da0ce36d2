"""The only module with the wire's camelCase names.

The daemon reads tolerantly, as KCL does: a child may print anything. A client reads strictly, but accepts unknown and
missing fields, for other versions of the daemon.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from json import JSONDecoder
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, TypeGuard, assert_never, cast

from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    FrameHeader,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Record,
    RecordSchema,
    Reject,
    RejectAnswer,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)

_STRAY_CHARACTERS: Final = 2_000
_EXCERPT_CHARACTERS: Final = 80
_LONG_LINE_BYTES: Final = 16 * 1024
_JSON_SPACE: Final = b" \t\r\n"
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LONG_LIMIT: Final = 2**63
LEVEL_DEFAULT: Final = "info"
_START_FIELDS: Final = frozenset({"action", "shardId", "sequenceNumber", "subSequenceNumber"})
_DAEMON_ACTIONS: Final = frozenset(
    kind.action for kind in (Initialize, ProcessRecords, LeaseLost, ShardEnded, ShutdownRequested, Shutdown)
)
_Fields = Mapping[str, object]
FRAME_START: Final = b'{"action":"processRecords","frame":'
"""Only header lines begin with it."""


# Clients depend on nothing, so orjson may be absent.
def _has_orjson() -> bool:
    try:
        import_module("orjson")
    except ImportError:
        return False
    return True


HAS_ORJSON: Final = _has_orjson()
if TYPE_CHECKING or HAS_ORJSON:
    import orjson


def plain_dump_line(fields: dict[str, object]) -> bytes:
    """One ASCII line. TypeError if an integer does not fit in 64 bits."""
    _refuse_long_integers(fields)
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


def plain_load(line: bytes) -> object:
    """Lone surrogates stay. ValueError or RecursionError."""
    return json.loads(line.decode(), parse_constant=refuse_constant)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _refuse_long_integers(value: object) -> None:
    if isinstance(value, dict):
        for each in value.values():
            _refuse_long_integers(each)
    elif isinstance(value, list):
        for each in value:
            _refuse_long_integers(each)
    elif isinstance(value, int) and not -_LONG_LIMIT <= value < 2 * _LONG_LIMIT:
        raise TypeError(f"{value} exceeds 64-bit range")


def fast_dump_line(fields: dict[str, object]) -> bytes:
    """As `plain_dump_line`, by orjson. May change texts in `fields` and in its `records`."""
    try:
        line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a lone surrogate has no UTF-8 form, only an escape
        return _dump_escaped(fields)
    return line if line.isascii() else _dump_escaped(fields)


def fast_load(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        # It refuses escaped lone surrogates, which a partition key may hold.
        return plain_load(line)


def _dump_escaped(fields: dict[str, object]) -> bytes:
    _escape(fields)
    for name in ("records", "schemas"):
        for each in cast("list[dict[str, object]]", fields.get(name, [])):
            _escape(each)
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _escape(fields: dict[str, object]) -> None:
    for name, value in fields.items():
        if isinstance(value, str) and not value.isascii():
            fields[name] = orjson.Fragment(encode_basestring_ascii(value))


dump_line: Final[Callable[[dict[str, object]], bytes]] = fast_dump_line if HAS_ORJSON else plain_dump_line
load: Final[Callable[[bytes], object]] = fast_load if HAS_ORJSON else plain_load


@dataclass(frozen=True, slots=True)
class Echo:
    """A message of the daemon that the child repeats; ignored, as in KCL."""

    action: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A line that is no message: the program's own output, or a broken message.

    `text`: undecodable bytes replaced, at most 2,000 characters and an ellipsis. `blank`: only spaces, which many
    children send as separators.
    """

    reason: str
    text: str
    blank: bool = False


class _NumberText(str):
    __slots__ = ()


class _Unusable(Exception): ...


# Unlike orjson it keeps a number's digits and stops after the first value.
_DECODER: Final = JSONDecoder(parse_int=_NumberText, parse_float=_NumberText, parse_constant=refuse_constant)
# Ten times as fast with many numbers; those of a message are whole, so none loses a digit.
_QUICK_DECODER: Final = JSONDecoder(parse_constant=refuse_constant)


def decode_child_line(line: bytes) -> ChildMessage | Echo | Stray:
    """Never raises.

    As in KCL only the first object counts, undecodable bytes are replaced, and numbers and texts are converted: a
    numeric `sequenceNumber` keeps its digits, `subSequenceNumber` "3" is 3 and 4.7 is 4. Unlike KCL it accepts unknown
    fields.
    """
    trimmed = line.strip(_JSON_SPACE)
    if not trimmed:
        return Stray("blank line", "", blank=True)
    try:
        return _message(_first_object(trimmed))
    except _Unusable as error:
        return Stray(str(error), _excerpt(trimmed))


def _first_object(trimmed: bytes) -> dict[str, object]:
    if not trimmed.startswith(b"{"):
        raise _Unusable("not a JSON object")
    try:
        fields: dict[str, object]
        is_long = len(trimmed) > _LONG_LINE_BYTES
        decoder = _QUICK_DECODER if is_long else _DECODER
        fields, _end = decoder.raw_decode(trimmed.decode("utf-8", "replace"))
        if is_long:
            for key, value in fields.items():
                if type(value) in {int, float}:
                    fields[key] = _NumberText(value)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"not JSON: {error}") from error
    return fields


def _message(fields: dict[str, object]) -> ChildMessage | Echo:
    action = fields.get("action")
    if action == Status.action:
        return _status(fields)
    if action == CheckpointRequest.action:
        # Until 2016 the position was called `checkpoint`, like the action.
        key = "sequenceNumber" if "sequenceNumber" in fields else "checkpoint"
        return CheckpointRequest(_text(fields, key), _integer(fields, "subSequenceNumber"))
    if action == Reject.action:
        sub_number = _integer(fields, "subSequenceNumber")
        return Reject(_text(fields, "sequenceNumber"), sub_number, _text(fields, "reason") or "")
    if not isinstance(action, str):
        raise _Unusable('no "action" with a text')
    if action in _DAEMON_ACTIONS:
        return Echo(action)
    raise _Unusable(f"unknown action {action[:_EXCERPT_CHARACTERS]!r}")


def _status(fields: dict[str, object]) -> Status:
    return Status(
        _text(fields, "responseFor"),
        _integer(fields, "frames"),
        _integer(fields, "pauseMillis"),
        _text(fields, "sequenceNumber"),
        _integer(fields, "subSequenceNumber"),
    )


def _text(fields: dict[str, object], key: str) -> str | None:
    match fields.get(key):
        case None:
            return None
        case bool(value):
            return "true" if value else "false"
        case str(value):
            return str(value)
        case _:
            raise _Unusable(f'"{key}" is not a text')


def _integer(fields: dict[str, object], key: str) -> int | None:
    """A trimmed text "" or "null" is None (KCL: Jackson's coercions)."""
    value = fields.get(key)
    if value is None:
        return None
    number: float | None = None
    if isinstance(value, str):
        text = value.strip()
        if text in ("", "null"):
            return None
        if _WHOLE_NUMBER.fullmatch(text):
            number = int(text)
        elif isinstance(value, _NumberText):
            number = float(text)
    if number is None or not -_LONG_LIMIT <= number < _LONG_LIMIT:
        raise _Unusable(f'"{key}" is not a 64-bit integer')
    return int(number)


def _excerpt(trimmed: bytes) -> str:
    text = trimmed[: _STRAY_CHARACTERS * 4 + 4].decode("utf-8", "replace")
    return text if len(text) <= _STRAY_CHARACTERS else f"{text[:_STRAY_CHARACTERS]}…"


def decode_daemon_line(line: bytes) -> DaemonMessage:
    """All but the data and sequence numbers of records, shard and reason of an end may be missing.

    Raises:
        RemoteProtocolError: not one JSON object, not a daemon's action, or a field is missing or of the wrong type.
    """
    fields = _object(line)
    try:
        return _daemon_line_message(fields)
    except _Malformed as error:
        raise RemoteProtocolError(f"{error}, in the daemon's line {_daemon_line_excerpt(line)}") from None


def decode_frame_header(line: bytes) -> FrameHeader:
    fields = _object(line)
    try:
        size_bytes, count = (_size(fields, key) for key in ("frame", "count"))
        behind_ms, schemas = _integer_or_none(fields, "millisBehindLatest"), fields.get("schemas", [])
        if not _is_array(schemas):
            raise _wrong("schemas", schemas, "an array")
        known, keyless = tuple(map(_listed_schema, schemas)), fields.get("keyless") is True
        complete_ms = _integer_or_none(fields, "completeMillis")
        return FrameHeader(size_bytes, count, behind_ms, known, keyless, complete_ms)
    except _Malformed as error:
        raise RemoteProtocolError(f"{error}, in the daemon's line {_daemon_line_excerpt(line)}") from None


class _Malformed(Exception): ...


def _daemon_line_message(fields: _Fields) -> DaemonMessage:
    action = fields.get("action")
    read = _READERS.get(action) if isinstance(action, str) else None
    if read is None:
        raise _wrong("action", action, "one of a daemon's")
    return read(fields)


def _initialize(fields: _Fields) -> Initialize:
    return Initialize(
        shard_id=_daemon_line_text(fields, "shardId"),
        sequence_number=_text_or_none(fields, "sequenceNumber"),
        sub_sequence_number=_integer_or_none(fields, "subSequenceNumber"),
        stream_name=_text_or_none(fields, "streamName"),
        stream_arn=_text_or_none(fields, "streamArn"),
        extra={
            name: value
            for name, value in fields.items()
            if name not in _START_FIELDS and (value is None or isinstance(value, str | int | float))
        },
    )


def _checkpoint_answer(fields: _Fields) -> CheckpointAnswer:
    key = "sequenceNumber" if "sequenceNumber" in fields else "checkpoint"
    return CheckpointAnswer(
        sequence_number=_text_or_none(fields, key),
        sub_sequence_number=_integer_or_none(fields, "subSequenceNumber"),
        error=_text_or_none(fields, "error"),
    )


def _reject_answer(fields: _Fields) -> RejectAnswer:
    return RejectAnswer(
        sequence_number=_text_or_none(fields, "sequenceNumber"),
        sub_sequence_number=_integer_or_none(fields, "subSequenceNumber"),
        error=_text_or_none(fields, "error"),
        message=_text_or_none(fields, "message"),
    )


def _object(line: bytes) -> _Fields:
    try:
        value = load(line)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(
            f"the daemon's line is not JSON ({error}): {_daemon_line_excerpt(line)}"
        ) from error
    if not _is_object(value):
        raise RemoteProtocolError(f"the daemon's line is not a JSON object: {_daemon_line_excerpt(line)}")
    return value


def _process_records(fields: _Fields) -> ProcessRecords:
    records = fields.get("records")
    if not _is_array(records):
        raise _wrong("records", records, "an array")
    return ProcessRecords(
        records=[_record(record, index) for index, record in enumerate(records)],
        millis_behind_latest=_integer_or_none(fields, "millisBehindLatest"),
        complete_ms=_integer_or_none(fields, "completeMillis"),
    )


def _record(value: object, index: int) -> Record:
    if not _is_object(value):
        raise _wrong(f"records[{index}]", value, "an object")
    try:
        return Record(
            data=_daemon_line_text(value, "data"),
            partition_key=_text_or_none(value, "partitionKey"),
            sequence_number=_daemon_line_text(value, "sequenceNumber"),
            approximate_arrival_timestamp=_integer_or_none(value, "approximateArrivalTimestamp"),
            sub_sequence_number=_integer_or_none(value, "subSequenceNumber") or 0,
            schema=_schema(value) if "schemaVersionId" in value else None,
        )
    except _Malformed as error:
        raise _Malformed(f"records[{index}]: {error}") from None


def _schema(fields: _Fields) -> RecordSchema | None:
    if fields.get("schemaVersionId") is None:
        return None
    return _listed_schema(fields)


def _listed_schema(fields: object) -> RecordSchema:
    if not _is_object(fields):
        raise _wrong("schemas", fields, "an array of objects")
    return RecordSchema(
        name=_daemon_line_text(fields, "schemaName"),
        version_id=_daemon_line_text(fields, "schemaVersionId"),
        data_format=_daemon_line_text(fields, "schemaDataFormat"),
        definition=_daemon_line_text(fields, "schemaDefinition"),
    )


def _daemon_line_text(fields: _Fields, key: str) -> str:
    value = fields.get(key)
    if isinstance(value, str):
        return value
    raise _wrong(key, value, "a text")


def _child_shards(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if _is_array(value) and all(isinstance(each, str) for each in value):
        return tuple(map(str, value))
    raise _wrong("childShards", value, "an array of texts or null")


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


def _size(fields: _Fields, key: str) -> int:
    value = _integer_or_none(fields, key)
    if value is None or value < 0:
        raise _wrong(key, value, "a whole number from 0")
    return value


def _wrong(key: str, value: object, wanted: str) -> _Malformed:
    return _Malformed(f'"{key}" must be {wanted}, but is {_found(value)}')


def _found(value: object) -> str:
    if value is None:
        return "null or missing"
    if isinstance(value, str | int | float):
        return f"{value!r:.{_EXCERPT_CHARACTERS}}"
    return "an array" if isinstance(value, list) else "an object"


def _is_object(value: object) -> TypeGuard[_Fields]:
    return isinstance(value, dict)


def _is_array(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _daemon_line_excerpt(line: bytes) -> str:
    return repr(line[:_EXCERPT_CHARACTERS].decode("utf-8", "replace"))


_READERS: Final[Mapping[str, Callable[[_Fields], DaemonMessage]]] = {
    ProcessRecords.action: _process_records,
    CheckpointAnswer.action: _checkpoint_answer,
    RejectAnswer.action: _reject_answer,
    Initialize.action: _initialize,
    LeaseLost.action: lambda _fields: LeaseLost(),
    ShardEnded.action: lambda fields: ShardEnded(_child_shards(fields.get("childShards"))),
    ShutdownRequested.action: lambda _fields: ShutdownRequested(),
    Shutdown.action: lambda fields: Shutdown(_daemon_line_text(fields, "reason")),
}


def encode(message: Message) -> bytes:
    """One line of compact ASCII JSON, ended by one LF; TypeError if an integer does not fit in 64 bits.

    Every field is present, None as null. As in KCL, `action` is the first key of a message and the last of a record,
    before the schema extension. Text is escaped: children read stdin in the encoding of their locale.
    """
    return dump_line(_fields(message))


def _fields(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {"action": message.action}
    match message:
        case ProcessRecords():
            fields["records"] = [_record_fields(record) for record in message.records]
            fields["millisBehindLatest"] = message.millis_behind_latest
            fields |= _given(completeMillis=message.complete_ms)
        case Initialize():
            fields["shardId"] = message.shard_id
            fields["sequenceNumber"] = message.sequence_number
            fields["subSequenceNumber"] = message.sub_sequence_number
            if message.stream_name is not None:
                fields["streamName"] = message.stream_name
            if message.stream_arn is not None:
                fields["streamArn"] = message.stream_arn
            fields |= {name: value for name, value in message.extra.items() if name not in fields}
        case CheckpointAnswer() | RejectAnswer() | CheckpointRequest() | Reject():
            fields |= _asked(message)
        case Status():
            fields |= {"responseFor": message.response_for} | _given(
                frames=message.frames,
                pauseMillis=message.pause_ms,
                sequenceNumber=message.sequence_number,
                subSequenceNumber=message.sub_sequence_number,
            )
        case Shutdown():
            fields["reason"] = message.reason
        case ShardEnded(child_shards=None) | LeaseLost() | ShutdownRequested():
            pass
        case ShardEnded():
            fields["childShards"] = list(message.child_shards or ())
        case _:
            assert_never(message)
    return fields


def _asked(message: CheckpointRequest | CheckpointAnswer | Reject | RejectAnswer) -> dict[str, object]:
    fields: dict[str, object] = {
        "sequenceNumber": message.sequence_number,
        "subSequenceNumber": message.sub_sequence_number,
    }
    if isinstance(message, CheckpointAnswer | RejectAnswer):
        fields["error"] = message.error
    if isinstance(message, Reject):
        fields["reason"] = message.reason
    if isinstance(message, RejectAnswer):
        fields["message"] = message.message
    return fields


def _given(**extensions: object) -> dict[str, object]:
    """Who does not know an extension may refuse it."""
    return {name: value for name, value in extensions.items() if value is not None}


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
        fields |= schema_fields(record.schema)
    return fields


def schema_fields(schema: RecordSchema) -> dict[str, object]:
    return {
        "schemaName": schema.name,
        "schemaVersionId": schema.version_id,
        "schemaDataFormat": schema.data_format,
        "schemaDefinition": schema.definition,
    }


@dataclass(frozen=True, slots=True)
class LogLine:
    """An extension. It may come at any time and gets no answer.

    A daemon that does not allow it, such as Java's, takes it for stray output.
    """

    action: ClassVar[str] = "log"
    level: str
    message: str


def decode_log_line(line: bytes) -> LogLine | None:
    """None if the line is not exactly one JSON object in UTF-8 with that action. Never raises."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("action") != LogLine.action:
        return None
    message, level = fields.get("message"), fields.get("level", LEVEL_DEFAULT)
    if not isinstance(message, str) or not isinstance(level, str):
        return None
    return LogLine(level, message)


def encode_log_line(line: LogLine) -> bytes:
    fields = {"action": line.action, "level": line.level, "message": line.message}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
