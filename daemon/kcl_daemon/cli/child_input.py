"""Records from a file, for `kcl-daemon run-child`. Pure.

Owns the two forms of such a file: a JSON object on each line, or any text whose lines are the data.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from kcl_protocol.messages import Record

FIRST_NUMBER: Final = 49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
_FIRST_ARRIVAL_MS: Final = 1_735_689_600_000
_FIELDS: Final = frozenset(
    {
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
        yield _record(number, *_fields(line, line_number))
        number += 1


def in_batches(records: Sequence[Record], most: int) -> list[list[Record]]:
    """The records in their order, at most so many in each batch."""
    return [list(records[start : start + most]) for start in range(0, len(records), most)]


def _fields(line: bytes, number: int) -> tuple[str, dict[str, Any]]:
    """The data as base64, and the other fields; Any: JSON."""
    try:
        fields: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadRecord(f"line {number}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRecord(f"line {number}: not an object")
    if unknown := fields.keys() - _FIELDS:
        raise BadRecord(
            f"line {number}: unknown field {min(unknown)!r}; known are {', '.join(sorted(_FIELDS))}"
        )
    if ("data" in fields) is ("text" in fields):
        raise BadRecord(f"line {number}: either data, in base64, or text")
    if "text" in fields:
        return b64encode(str(fields["text"]).encode()).decode("ascii"), fields
    data = fields["data"]
    try:
        b64decode(data, validate=True)
    except (NotBase64, TypeError, ValueError):
        raise BadRecord(f"line {number}: data is not base64; for plain text write text") from None
    return str(data), fields


def _record(number: int, data: str, fields: dict[str, Any]) -> Record:
    """What is not said is made up: libraries need every field."""
    arrival = fields.get("approximateArrivalTimestamp", _FIRST_ARRIVAL_MS + number)
    return Record(
        data,
        str(fields.get("partitionKey", "key")),
        str(fields.get("sequenceNumber", FIRST_NUMBER + number)),
        approximate_arrival_timestamp=arrival,
        sub_sequence_number=int(fields.get("subSequenceNumber", 0)),
    )
