"""Records from a file, for `kcl-daemon run-child`. Pure.

Owns the two forms of such a file: a JSON object on each line, or any text whose lines are the data.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from kcl_protocol.messages import Record, RecordSchema

FIRST_NUMBER: Final = 49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
_FIRST_ARRIVAL_MS: Final = 1_735_689_600_000
_WHOLE_MOST: Final = 2**63 - 1
_SHOWN: Final = 40
_WHOLE: Final = "a whole number from 0"
_SEQUENCE_NUMBER: Final = re.compile(r"[0-9]{1,129}")
_SCHEMA_FIELDS: Final = ("schemaName", "schemaVersionId", "schemaDataFormat", "schemaDefinition")
_FIELDS: Final = frozenset(
    {
        *_SCHEMA_FIELDS,
        "data",
        "text",
        "partitionKey",
        "sequenceNumber",
        "subSequenceNumber",
        "approximateArrivalTimestamp",
        "action",
    }
)


class BadRecord(ValueError):
    """Raised where a line is no record; the message has its number and what is wrong."""


def records_of_lines(data: bytes) -> Iterator[Record]:
    """Each line is the data of a record."""
    for number, line in enumerate(data.splitlines()):
        yield _record(number, b64encode(line).decode("ascii"), {})


def records_of_json(data: bytes) -> Iterator[Record]:
    """Each line is an object with `data` (base64) or `text`, and what else is to be said; blank lines do not count.

    Raises:
        BadRecord: a line is no such object.
    """
    number = 0
    for line_number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _record(number, *_fields(line))
        except BadRecord as error:
            raise BadRecord(f"line {line_number}: {error}") from None
        number += 1


def in_batches(records: Sequence[Record], most: int) -> list[list[Record]]:
    """The records in their order, at most so many in each batch."""
    return [list(records[start : start + most]) for start in range(0, len(records), most)]


def _fields(line: bytes) -> tuple[str, dict[str, Any]]:
    """The data as base64, and the other fields; Any: JSON."""
    try:
        fields: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRecord("not an object")
    if unknown := fields.keys() - _FIELDS:
        raise BadRecord(f"unknown field {min(unknown)!r}; known fields: {', '.join(sorted(_FIELDS))}")
    if ("data" in fields) is ("text" in fields):
        raise BadRecord("needs either data (base64) or text")
    if "text" in fields:
        return b64encode(_text(fields, "text", "").encode()).decode("ascii"), fields
    data = fields["data"]
    try:
        b64decode(data, validate=True)
    except (NotBase64, TypeError, ValueError):
        raise BadRecord("data is not base64; use text for plain text") from None
    return str(data), fields


def _record(number: int, data: str, fields: dict[str, Any]) -> Record:
    """What is not said is made up: libraries need every field."""
    return Record(
        data,
        _text(fields, "partitionKey", "key"),
        _sequence_number(fields, FIRST_NUMBER + number),
        approximate_arrival_timestamp=_arrival(fields, _FIRST_ARRIVAL_MS + number),
        sub_sequence_number=_whole(fields, "subSequenceNumber", 0),
        schema=_schema(fields),
    )


def _text(fields: dict[str, Any], name: str, default: str) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise _wrong(name, value, "a string")
    return value


def _whole(fields: dict[str, Any], name: str, default: int, allowed: str = _WHOLE) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _WHOLE_MOST:
        raise _wrong(name, value, allowed)
    return value


def _arrival(fields: dict[str, Any], default: int) -> int | None:
    """The service may give none, which is null."""
    name = "approximateArrivalTimestamp"
    return None if fields.get(name, default) is None else _whole(fields, name, default, f"{_WHOLE}, or null")


def _sequence_number(fields: dict[str, Any], default: int) -> str:
    """Digits in quotes, as the service gives them: as a number JSON would round them."""
    value = fields.get("sequenceNumber", str(default))
    digits = str(value) if isinstance(value, str | int) else ""
    if not _SEQUENCE_NUMBER.fullmatch(digits):
        raise _wrong("sequenceNumber", value, "digits in quotes")
    return digits


def _wrong(name: str, value: object, allowed: str) -> BadRecord:
    written = orjson.dumps(value).decode()
    return BadRecord(
        f"{name} is {written if len(written) <= _SHOWN else written[:_SHOWN] + '...'}, not {allowed}"
    )


def _schema(fields: dict[str, Any]) -> RecordSchema | None:
    """None where nothing is said of one; what is not said of one is empty."""
    if not any(name in fields for name in _SCHEMA_FIELDS):
        return None
    return RecordSchema(*(_text(fields, name, "") for name in _SCHEMA_FIELDS))
