"""`recordFilter`: which records are for the child.

AWS Lambda: FilterCriteria of an event source mapping of Kinesis or of DynamoDB.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, repeat
from operator import contains, or_
from typing import Final, cast

import orjson
from msgspec import DecodeError

from kcl_daemon.records.base64_text import BASE64
from kcl_daemon.records.event_pattern import (
    ABSENT,
    PatternError,
    Steps,
    Whole,
    Work,
    alternatives,
    any_of,
    compiled,
    inner,
    parsed_json,
    refuse,
)
from kcl_daemon.records.payload import AnyRecord, Payload, UserRecord, UserRecords, key_text

ONLY_CHANGES: Final = (
    "only records of a DynamoDB stream have these fields; those of your JSON stand inside data"
)
_DATA: Final = "data"
# They stand in the data of such a record.
_OF_CHANGES: Final = frozenset({
    "awsRegion", "dynamodb", "eventID", "eventName", "eventSource", "eventSourceARN", "eventVersion", "userIdentity",
})  # fmt: skip
_BACKSLASH: Final = b"\\"
# They stay in the cache of the processor meanwhile.
_DECODED_AT_ONCE: Final = 64
_LARGE: Final = 64 * 1024
_PARSED_SHIFT: Final = 6
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


class _Event(Whole):
    __slots__ = ("body", "record")

    def __init__(self, record: AnyRecord, body: bytes, work: Work) -> None:
        self.value = _Event
        self.work = work
        self.has_value = None
        self.record = record
        self.body = body

    @property
    def data(self) -> object:
        """An object or an array if it is JSON, else the text; ABSENT if it is none."""
        if self.value is _Event:
            self.value = _parsed(self.body)
        return self.value


def _parsed(body: bytes) -> object:
    collects = len(body) > _LARGE and gc.isenabled()
    if collects:
        gc.disable()  # nothing in it is garbage yet, and looking for some takes longer than parsing
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    finally:
        if collects:
            gc.enable()
    if type(value) in {dict, list}:
        return value
    try:
        return body.decode()
    except UnicodeDecodeError:
        return ABSENT


@dataclass(frozen=True, slots=True)
class _Pattern:
    """As in `Condition`. `of_changes`: only a change of a table has such fields."""

    matches: Callable[[_Event], Steps]
    needs_data: bool
    needles: frozenset[bytes] | None = None
    of_changes: bool = False
    weight: int = 1


def _pattern(value: object, place: str) -> _Pattern:
    """Fields in the data are looked at last."""
    if not isinstance(value, dict) or not value:
        refuse(place, 'a pattern is an object with fields, as {"data": {"order": {"type": ["new"]}}}')
    fields = cast("dict[str, object]", value)
    parts = [_field(key, each, inner(place, key)) for key, each in fields.items() if key not in _OF_CHANGES]
    change = {key: each for key, each in fields.items() if key in _OF_CHANGES}
    if change:
        parts.append(replace(_of_data(change, place), of_changes=True))
    tests = tuple(part.matches for part in sorted(parts, key=lambda part: part.needs_data))
    needles = [part.needles for part in parts if part.needles is not None]

    def all_match(event: _Event) -> Steps:
        for each in tests:
            if not (yield from each(event)):
                return False
        return True

    return _Pattern(
        tests[0] if len(tests) == 1 else all_match,
        any(part.needs_data for part in parts),
        min(needles, key=len, default=None),
        any(part.of_changes for part in parts),
        sum(part.weight for part in parts),
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
    condition = compiled(value, place, ())
    matches = condition.matches

    return _Pattern(
        lambda event: matches(read(event.record), event), needs_data=False, weight=condition.weight
    )


def _either(value: object, place: str) -> _Pattern:
    parts = [_pattern(each, at) for each, at in alternatives(value, place)]
    return _Pattern(
        _any_matches(parts),
        any(part.needs_data for part in parts),
        any_of(part.needles for part in parts),
        any(part.of_changes for part in parts),
        sum(part.weight for part in parts),
    )


def _any_matches(patterns: Sequence[_Pattern]) -> Callable[[_Event], Steps]:
    tests = tuple(pattern.matches for pattern in patterns)

    def any_matches(event: _Event) -> Steps:
        for each in tests:
            if (yield from each(event)):
                return True
        return False

    return tests[0] if len(tests) == 1 else any_matches


def _of_data(value: object, place: str) -> _Pattern:
    condition = compiled(value, place, ())
    matches = condition.matches
    if isinstance(value, list):
        return _Pattern(lambda event: matches(event.data, event), True, weight=condition.weight)

    def test(event: _Event) -> Steps:
        data = event.data
        return type(data) in {dict, list} and (yield from matches(data, event))

    return _Pattern(test, True, condition.needles, weight=condition.weight)


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Two of the same text are equal."""

    text: str
    _patterns: tuple[_Pattern, ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, text: str) -> RecordFilter:
        """One pattern, an array of them, or Lambda's FilterCriteria; else PatternError."""
        return cls(text, tuple(_pattern(value, place) for value, place in _patterns_in(parsed_json(text))))

    @property
    def of_changes(self) -> bool:
        return any(pattern.of_changes for pattern in self._patterns)

    def kept(self, payload: Payload) -> Payload:
        return next(each for each in self.kept_in_steps(payload) if each is not None)

    def kept_in_steps(self, payload: Payload) -> Iterator[Payload | None]:
        """As `kept`, with None for a pause after each few milliseconds."""
        kept: list[AnyRecord] = []
        work = Work()
        for run in payload.runs:
            yield from self._keep(run, kept, work)
        yield payload.only(kept)

    def _keep(
        self, records: Sequence[AnyRecord], kept: list[AnyRecord], work: Work
    ) -> Generator[None, None, None]:
        patterns = self._patterns
        matches = _any_matches(patterns)
        weight = sum(pattern.weight for pattern in patterns)
        if not any(pattern.needs_data for pattern in patterns):
            for record in records:
                work.left -= weight
                if work.left < 0:
                    yield from work.pause()
                if (yield from matches(_Event(record, b"", work))):
                    kept.append(record)
            return
        needles = any_of(pattern.needles for pattern in patterns)
        step = len(records) if isinstance(records, UserRecords) else _DECODED_AT_ONCE
        for begin in range(0, len(records), step):
            some = records if step == len(records) else records[begin : begin + step]
            bodies = _bodies(some)
            for at in _likely(bodies, needles):
                work.left -= weight + (len(bodies[at]) >> _PARSED_SHIFT)
                if work.left < 0:
                    yield from work.pause()
                if (yield from matches(_Event(record := some[at], bodies[at], work))):
                    kept.append(record)


def _likely(bodies: Sequence[bytes], needles: frozenset[bytes] | None) -> Iterable[int]:
    """In C: without a backslash, texts stand in JSON as they are. Most records end here."""
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
    """Nothing where it is not base64."""
    try:
        return BASE64.decoded(record.data)
    except ValueError:
        return b""
