"""`recordFilter`: which records are for the child.

AWS Lambda: FilterCriteria of an event source mapping of Kinesis or of DynamoDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, repeat
from operator import contains, or_
from typing import Final, cast

import orjson
from msgspec import DecodeError

from kcl_daemon.records.event_pattern import (
    ABSENT,
    Condition,
    PatternError,
    alternatives,
    any_of,
    compiled,
    inner,
    parsed_json,
    refuse,
)
from kcl_daemon.records.payload import BASE64, AnyRecord, Payload, UserRecord, UserRecords, key_text

ONLY_CHANGES: Final = (
    "only records of a DynamoDB stream have these fields; those of your JSON stand inside data"
)
_DATA: Final = "data"
# Of a record of DynamoDB; they stand in its data.
_OF_CHANGES: Final = frozenset({
    "awsRegion", "dynamodb", "eventID", "eventName", "eventSource", "eventSourceARN", "eventVersion", "userIdentity",
})  # fmt: skip
_BACKSLASH: Final = b"\\"
# They stay in the cache of the processor meanwhile.
_DECODED_AT_ONCE: Final = 64
_SCHEMA_VERSION: Final = "1.0"


def _arrival_s(record: AnyRecord) -> object:
    arrival_ms = record.approximate_arrival_timestamp
    return ABSENT if arrival_ms is None else arrival_ms / 1000


def _key(record: AnyRecord) -> object:
    key = key_text(record)
    return ABSENT if key is None else key


_METADATA: Final[dict[str, Callable[[AnyRecord], object]]] = {
    "approximateArrivalTimestamp": _arrival_s,
    "kinesisSchemaVersion": lambda _: _SCHEMA_VERSION,
    "partitionKey": _key,
    "sequenceNumber": lambda record: record.sequence_number,
}


class _Event:
    """One record as patterns see it."""

    __slots__ = ("_body", "_data", "record")

    def __init__(self, record: AnyRecord, body: bytes) -> None:
        self.record = record
        self._body = body
        self._data: object = _Event

    @property
    def data(self) -> object:
        """An object or an array if it is JSON, else the text; ABSENT: it is no text either."""
        if self._data is _Event:
            self._data = _parsed(self._body)
        return self._data


def _parsed(body: bytes) -> object:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if type(value) in {dict, list}:
        return value
    try:
        return body.decode()
    except UnicodeDecodeError:
        return ABSENT


@dataclass(frozen=True, slots=True)
class _Pattern:
    """`needles`: as in `Condition`, in the data of a record. `of_changes`: only a change of a table has such fields."""

    matches: Callable[[_Event], bool]
    needs_data: bool
    needles: frozenset[bytes] | None = None
    of_changes: bool = False


def _pattern(value: object, place: str) -> _Pattern:
    """All its fields must match; those in the data are looked at last."""
    if not isinstance(value, dict) or not value:
        refuse(place, 'a pattern is an object with fields, as {"data": {"order": {"type": ["new"]}}}')
    fields = cast("dict[str, object]", value)
    parts = [_field(key, each, inner(place, key)) for key, each in fields.items() if key not in _OF_CHANGES]
    change = {key: each for key, each in fields.items() if key in _OF_CHANGES}
    if change:
        parts.append(replace(_of_data(change, place), of_changes=True))
    tests = tuple(part.matches for part in sorted(parts, key=lambda part: part.needs_data))
    needles = [part.needles for part in parts if part.needles is not None]
    return _Pattern(
        tests[0] if len(tests) == 1 else lambda event: all(test(event) for test in tests),
        any(part.needs_data for part in parts),
        min(needles, key=len, default=None),
        any(part.of_changes for part in parts),
    )


def _field(key: str, value: object, place: str) -> _Pattern:
    if key == "$or":
        return _either(value, place)
    if key == _DATA:
        return _of_data(value, place)
    read = _METADATA.get(key)
    if read is None:
        known = ", ".join(sorted((_DATA, *_METADATA)))
        refuse(place, f"a record has no such field; there are {known}. Fields of your JSON stand inside data")
    if not isinstance(value, list):
        refuse(place, "values go into an array")
    matches = compiled(value, place, ()).matches

    def test(event: _Event) -> bool:
        found = read(event.record)
        return matches(found, [] if found is ABSENT else found)

    return _Pattern(test, needs_data=False)


def _either(value: object, place: str) -> _Pattern:
    parts: list[_Pattern] = []

    def compile_one(each: object, at: str) -> Condition:
        part = _pattern(each, at)
        parts.append(part)
        return Condition(lambda _, event: part.matches(cast("_Event", event)), part.needles)

    either = alternatives(value, place, compile_one)
    return _Pattern(
        lambda event: either.matches(None, event),
        any(part.needs_data for part in parts),
        either.needles,
        any(part.of_changes for part in parts),
    )


def _of_data(value: object, place: str) -> _Pattern:
    condition = compiled(value, place, ())
    matches = condition.matches
    if isinstance(value, list):
        return _Pattern(lambda event: matches(event.data, [] if event.data is ABSENT else event.data), True)

    def test(event: _Event) -> bool:
        data = event.data
        return type(data) in {dict, list} and matches(data, data)

    return _Pattern(test, True, condition.needles)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """`text` is what the property says. Two of the same text are equal."""

    text: str
    _patterns: tuple[_Pattern, ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, text: str) -> RecordFilter:
        """One pattern, an array of them, or Lambda's FilterCriteria; PatternError if it is none of these."""
        return cls(text, tuple(_pattern(value, place) for value, place in _patterns_in(parsed_json(text))))

    @property
    def of_changes(self) -> bool:
        """Whether it names fields that only the records of a DynamoDB table have."""
        return any(pattern.of_changes for pattern in self._patterns)

    def kept(self, payload: Payload) -> Payload:
        """The records that match one of the patterns, in order."""
        kept = [record for run in payload.runs for record in self._kept(run)]
        return payload.only(kept)

    def _kept(self, records: Sequence[AnyRecord]) -> Iterable[AnyRecord]:
        patterns = self._patterns
        tests = tuple(pattern.matches for pattern in patterns)

        def any_matches(event: _Event) -> bool:
            return any(test(event) for test in tests)

        matches = tests[0] if len(tests) == 1 else any_matches
        if not any(pattern.needs_data for pattern in patterns):
            return [record for record in records if matches(_Event(record, b""))]
        needles = any_of(pattern.needles for pattern in patterns)
        step = len(records) if isinstance(records, UserRecords) else _DECODED_AT_ONCE
        kept: list[AnyRecord] = []
        for begin in range(0, len(records), step):
            some = records if step == len(records) else records[begin : begin + step]
            bodies = _bodies(some)
            kept += [
                record for at in _likely(bodies, needles) if matches(_Event(record := some[at], bodies[at]))
            ]
        return kept


def _likely(bodies: Sequence[bytes], needles: frozenset[bytes] | None) -> Iterable[int]:
    """In C: without a backslash, texts stand in JSON as they are. Most records end here, unparsed."""
    if needles is None:
        return range(len(bodies))
    has_any = map(contains, bodies, repeat(_BACKSLASH))
    for needle in needles:
        has_any = map(or_, has_any, map(contains, bodies, repeat(needle)))
    return compress(range(len(bodies)), has_any)


def _patterns_in(value: object) -> list[tuple[object, str]]:
    if isinstance(value, dict) and "Filters" in value:
        filters = value["Filters"]
        if len(value) != 1 or not isinstance(filters, list) or not filters:
            refuse("Filters", 'it takes {"Filters": [{"Pattern": "..."}]} and nothing else')
        return [_of_lambda(each, f"Filters[{number}]") for number, each in enumerate(filters)]
    if isinstance(value, list):
        if not value:
            refuse("", "an empty array lets nothing through")
        return [(each, f"[{number}]") for number, each in enumerate(value)]
    return [(value, "")]


def _of_lambda(value: object, place: str) -> tuple[object, str]:
    if not isinstance(value, dict) or value.keys() != {"Pattern"}:
        refuse(place, 'it takes {"Pattern": "..."}')
    pattern, at = value["Pattern"], f"{place}.Pattern"
    if not isinstance(pattern, str):
        return pattern, at
    try:
        return parsed_json(pattern), at
    except PatternError as wrong:
        refuse(at, str(wrong))


def _bodies(records: Sequence[AnyRecord]) -> Sequence[bytes]:
    if isinstance(records, UserRecords):
        return records.bodies
    if UserRecord in set(map(type, records)):
        return [each.body if isinstance(each, UserRecord) else _decoded(each) for each in records]
    try:
        return BASE64.all_decoded([record.data for record in records])
    except (ValueError, DecodeError):
        return list(map(_decoded, records))


def _decoded(record: AnyRecord) -> bytes:
    """Nothing where the data is not base64, which does not come from Kinesis."""
    try:
        return BASE64.decoded(record.data)
    except ValueError:
        return b""
