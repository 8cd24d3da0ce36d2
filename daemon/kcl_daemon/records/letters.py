"""Dead letters that come back: parsed, put in the order of their records, with a receipt for each."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Protocol

import orjson

from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_daemon.records.schema_header import MAX_UNPACKED_BYTES
from kcl_protocol.messages import Record, RecordSchema
from kcl_protocol.sequence import ExtendedSequenceNumber


class BadLetter(ValueError):
    """The message says why."""


@dataclass(frozen=True, slots=True)
class BadPlace:
    place: str
    why: str


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """In a source.

    Args:
    letter: its `data` and `stderr` are empty in a `head`.
    data_at: `s3://BUCKET/KEY`, if the data is not in the line.
    place: for people.
    handle: for its source.
    """

    letter: DeadLetter
    data_bytes: int
    data_at: str | None
    place: str
    handle: object = None

    @property
    def name(self) -> str:
        """The same for each copy."""
        letter = self.letter
        return f"{letter.application_name}/{letter.stream_name}/{letter.shard_id}/{self.position_text}"

    @property
    def position_text(self) -> str:
        return f"{self.letter.record.sequence_number}-{self.letter.record.sub_sequence_number}"

    @property
    def position(self) -> ExtendedSequenceNumber:
        record = self.letter.record
        return ExtendedSequenceNumber(record.sequence_number, record.sub_sequence_number)

    @property
    def arrival_ms(self) -> int:
        return self.letter.record.approximate_arrival_timestamp or 0

    def is_called(self, word: str) -> bool:
        return word == self.letter.key or f"/{self.name}".endswith(f"/{word}")

    def head(self, handle: object) -> StoredLetter:
        letter = replace(self.letter, record=replace(self.letter.record, data="", schema=None), stderr=())
        return replace(self, letter=replace(letter, error=letter.error[:_ERROR_CHARACTERS]), handle=handle)

    def check_size(self, data_bytes: int) -> None:
        """BadLetter if that cannot be its data."""
        if data_bytes != self.data_bytes:
            raise BadLetter(f"{self.data_at} has {data_bytes} bytes, the letter says {self.data_bytes}")
        if data_bytes > MAX_UNPACKED_BYTES:
            raise BadLetter(f"{self.data_at} has {data_bytes} bytes, more than a record can have")

    def with_data(self, data: bytes) -> DeadLetter:
        return replace(self.letter, record=replace(self.letter.record, data=b64encode(data).decode("ascii")))


class LetterSource(Protocol):
    """All methods raise AwsError, DeadLetterNotStored or LettersUnusable."""

    def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        """Heads, in any order."""
        ...

    async def read(self, head: StoredLetter) -> DeadLetter:
        """With its data; BadLetter if it is gone."""
        ...

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        """What is not there does no harm."""
        ...

    async def hold(self) -> None:
        """Runs while the letters are worked on, until cancelled."""
        return


_ERROR_CHARACTERS: Final = 300
_SHOWN: Final = 40
_WHOLE: Final = "a whole number from 0"
# Of a snapshot it has the item's key; `int` takes no more digits.
_SEQUENCE_NUMBER: Final = re.compile(r"[0-9]{1,4300}")
_S3: Final = re.compile(r"s3://[^/]+/.+")
_SCHEMA_FIELDS: Final = ("schemaName", "schemaVersionId", "schemaDataFormat", "schemaDefinition")
_CAUSES: Final = tuple(cause.value for cause in LetterCause)
Rules = Mapping[str, tuple[Callable[[object], bool], str]]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_sequence_number(value: object) -> bool:
    """Quoted, because JSON rounds large numbers."""
    return isinstance(value, str | int) and _SEQUENCE_NUMBER.fullmatch(str(value)) is not None


RECORD_RULES: Final[Rules] = {
    **dict.fromkeys(("text", *_SCHEMA_FIELDS), (_is_text, "a string")),
    "partitionKey": (lambda value: value is None or _is_text(value), "a string, or null"),
    "sequenceNumber": (_is_sequence_number, "digits in quotes"),
    "subSequenceNumber": (_is_whole, _WHOLE),
    "approximateArrivalTimestamp": (lambda value: value is None or _is_whole(value), f"{_WHOLE}, or null"),
}
_LETTER_RULES: Final[Rules] = {
    **RECORD_RULES,
    **dict.fromkeys(
        ("applicationName", "streamName", "shardId", "workerId", "error"), (_is_text, "a string")
    ),
    **dict.fromkeys(("setAsideTimestamp", "failures", "dataBytes"), (_is_whole, _WHOLE)),
    "streamArn": (_is_text, "a string"),
    "cause": (lambda value: value in _CAUSES, f"one of {', '.join(_CAUSES)}"),
    "stderr": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of strings"),
    "dataAt": (lambda value: isinstance(value, str) and _S3.fullmatch(value) is not None, "s3://BUCKET/KEY"),
}
_REQUIRED: Final = ("shardId", "partitionKey", "sequenceNumber")


def looks_like_letter(fields: Mapping[str, object]) -> bool:
    return "shardId" in fields and "sequenceNumber" in fields


def fields_of(line: bytes) -> dict[str, Any]:
    try:
        try:
            fields: Any = orjson.loads(line)
        except orjson.JSONDecodeError:
            fields = json.loads(line)  # an escape of half a character, as DeadLetter writes it
    except (ValueError, RecursionError) as error:
        raise BadLetter(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLetter("not an object")
    return fields


def check_fields(fields: Mapping[str, object], rules: Rules) -> None:
    for name, value in fields.items():
        is_good, allowed = rules.get(name, (None, ""))
        if is_good is not None and not is_good(value):
            written = json.dumps(value)
            shown = written if len(written) <= _SHOWN else f"{written[:_SHOWN]}..."
            raise BadLetter(f"{name} is {shown}, not {allowed}")


def schema_of(fields: Mapping[str, str]) -> RecordSchema | None:
    schema = RecordSchema(*(fields.get(name, "") for name in _SCHEMA_FIELDS))
    return schema if fields.keys() & set(_SCHEMA_FIELDS) else None


def data_length(data: object) -> int:
    try:
        assert isinstance(data, str)
        return len(b64decode(data, validate=True))
    except (AssertionError, NotBase64, ValueError):
        raise BadLetter("data is not base64; use text for plain text") from None


def parse_letter(line: bytes, place: str, data_at: str | None = None) -> StoredLetter:
    """As `DeadLetter.line` writes it; unknown fields are ignored. `data_at` is for a line without data and `dataAt`."""
    fields = fields_of(line)
    if missing := [name for name in _REQUIRED if name not in fields]:
        raise BadLetter(f"it has no {', '.join(missing)}: not a dead letter")
    check_fields(fields, _LETTER_RULES)
    data, at = fields.get("data"), fields.get("dataAt", data_at)
    if data is None and (at is None or "dataBytes" not in fields):
        raise BadLetter("it has neither data nor dataAt and dataBytes")
    letter = DeadLetter(
        record_of(fields, "" if data is None else data),
        fields.get("applicationName", ""),
        fields.get("streamName", ""),
        fields.get("streamArn"),
        fields["shardId"],
        fields.get("workerId", ""),
        fields.get("setAsideTimestamp", 0),
        fields.get("failures", 0),
        fields.get("error") or "",
        tuple(fields.get("stderr", ())),
        LetterCause(fields.get("cause", LetterCause.FAILED.value)),
    )
    if data is None:
        return StoredLetter(letter, fields["dataBytes"], at, place)
    return StoredLetter(letter, data_length(data), None, place)


def record_of(fields: Mapping[str, Any], data: str) -> Record:
    return Record(
        data,
        fields["partitionKey"],
        str(fields["sequenceNumber"]),
        fields.get("approximateArrivalTimestamp"),
        fields.get("subSequenceNumber", 0),
        schema_of(fields),
    )


def unwrapped(body: str) -> bytes:
    if '"Notification"' in body:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            fields = None
        if (
            isinstance(fields, dict)
            and fields.get("Type") == "Notification"
            and _is_text(fields.get("Message"))
        ):
            body = fields["Message"]
    return body.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class ShardLetters:
    """Never empty."""

    letters: tuple[StoredLetter, ...]

    @property
    def of(self) -> DeadLetter:
        return self.letters[0].letter

    @property
    def first_ms(self) -> int:
        return min(each.arrival_ms for each in self.letters)

    @property
    def last_ms(self) -> int:
        return max(each.arrival_ms for each in self.letters)

    def may_begin(self, unfinished: Iterable[ShardLetters]) -> bool:
        """Not before a shard whose letters are all older: it may be a parent."""
        first_ms = self.first_ms
        return all(other.last_ms >= first_ms for other in unfinished)


def newest_copies(letters: Iterable[StoredLetter]) -> dict[str, StoredLetter]:
    """By name: a record may have been stored twice."""
    found: dict[str, StoredLetter] = {}
    for each in letters:
        known = found.get(each.name)
        if known is None or known.letter.set_aside_ms <= each.letter.set_aside_ms:
            found[each.name] = each
    return found


def in_order(letters: Iterable[StoredLetter]) -> list[ShardLetters]:
    """Shards by the arrival of their first letter, so that parents come before their children."""
    shards: dict[str, list[StoredLetter]] = {}
    for each in letters:
        shards.setdefault(each.name.removesuffix(each.position_text), []).append(each)
    found = [ShardLetters(tuple(sorted(few, key=lambda each: each.position))) for few in shards.values()]
    return sorted(found, key=lambda shard: (shard.first_ms, shard.last_ms, shard.letters[0].name))


class Outcome(StrEnum):
    DONE = "done"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Receipt:
    """`letter` is a name."""

    letter: str
    set_aside_ms: int
    outcome: Outcome
    reason: str
    at_ms: int

    def line(self) -> bytes:
        fields = {
            "letter": self.letter,
            "setAsideTimestamp": self.set_aside_ms,
            "outcome": self.outcome.value,
            **({"reason": self.reason} if self.reason else {}),
            "timestamp": self.at_ms,
        }
        return json.dumps(fields, separators=(",", ":")).encode("ascii")

    def is_done(self, stored: StoredLetter) -> bool:
        """False if it was set aside again since."""
        return self.outcome is Outcome.DONE and stored.letter.set_aside_ms <= self.set_aside_ms


def receipts_of(lines: Iterable[bytes]) -> Iterator[Receipt]:
    """A power loss leaves half a line: it is passed over, and its letter is given once more."""
    for line in lines:
        try:
            fields = fields_of(line)
            yield Receipt(
                str(fields["letter"]),
                int(fields["setAsideTimestamp"]),
                Outcome(fields["outcome"]),
                str(fields.get("reason", "")),
                int(fields["timestamp"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
