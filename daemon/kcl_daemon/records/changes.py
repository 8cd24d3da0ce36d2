"""Changes of a DynamoDB table as records for a child, in three forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from json.encoder import encode_basestring_ascii
from typing import Any, Final, TypeVar, cast

import msgspec
import orjson
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import fields

from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES, DecodedRecords, Payload, UserRecord

_MS_PER_S: Final = 1000
_NULL: Final = b"null"
_EMPTY: Final = Raw(b"")
_NO_KEYS: Final = Raw(b"{}")


class ChangeForm(Enum):
    """What `data` of a record is; the values are those of `childRecordFormat`."""

    KCL1 = "KCL1"
    """The JSON that the adapter 1.x's StreamsMultiLangDaemon gave: times in milliseconds, without nulls."""
    LAMBDA = "LAMBDA"
    """A record of AWS Lambda's event: as the service gives it, with `eventSourceARN`."""
    PLAIN = "PLAIN"
    """Plain values: see docs/dynamodb-streams.md."""


class _Change(Struct, gc=False, rename="pascal"):
    """`dynamodb` of a record. What is left out or null is empty, or the text null."""

    sequence_number: str
    approximate_creation_date_time: Raw = _EMPTY
    keys: Raw = _NO_KEYS
    new_image: Raw = _EMPTY
    old_image: Raw = _EMPTY
    size_bytes: Raw = _EMPTY
    stream_view_type: Raw = _EMPTY

    @property
    def at_ms(self) -> int | None:
        text = self.approximate_creation_date_time
        return round(float(text) * _MS_PER_S) if _is_given(text) else None


class _Event(Struct, gc=False):
    dynamodb: _Change
    event_id: Raw = msgspec.field(default=_EMPTY, name="eventID")
    event_name: Raw = msgspec.field(default=_EMPTY, name="eventName")
    event_version: Raw = msgspec.field(default=_EMPTY, name="eventVersion")
    event_source: Raw = msgspec.field(default=_EMPTY, name="eventSource")
    aws_region: Raw = msgspec.field(default=_EMPTY, name="awsRegion")
    user_identity: Raw = msgspec.field(default=_EMPTY, name="userIdentity")


class _Answer(Struct, gc=False, rename="pascal"):
    records: list[_Event]
    next_shard_iterator: str | None = None


_answers: Final = Decoder(_Answer)
_Part = TypeVar("_Part", _Change, _Event)
Write = Callable[[_Event, int | None], bytes]


def changes_of(
    answer: bytes | bytearray, form: ChangeForm, stream_arn: str, since_ms: int | None = None
) -> tuple[Payload, str | None, int]:
    """The records of an answer of GetRecords, its next iterator, and how many changes it had.

    `since_ms`: changes before that time are left out. A partition key is the JSON text of the item's keys.

    Raises:
        ValueError: the answer cannot be understood.
    """
    opened = _opened(answer)
    write = _writer(form, stream_arn)
    records = [_record(event, write) for event in opened.records]
    if records and records[-1].position < records[0].position:  # also finds invalid numbers
        raise ValueError("the records are out of order")
    if since_ms is not None:
        records = [each for each in records if _is_since(each, since_ms)]
    return payload_of(records), opened.next_shard_iterator or None, len(opened.records)


def payload_of(records: Sequence[UserRecord]) -> Payload:
    texts = sum(len(each.body) + len(each.partition_key) for each in records)
    return DecodedRecords(records, texts + RECORD_OVERHEAD_BYTES * len(records))


def snapshot_record(
    item: bytes, keys: tuple[str, ...], form: ChangeForm, stream_arn: str, *, number: str, at_ms: int
) -> UserRecord:
    """An item of a scan (its JSON, as Scan gives it) as a change: INSERT, in `PLAIN` of the kind `snapshot`."""
    attributes = _attributes(item)
    key = b",".join(
        b"%b:{%b}" % (_name(name), _joined(attributes[name].items())) for name in keys if name in attributes
    )
    change = _Change(
        number,
        Raw(b"%d" % (at_ms // _MS_PER_S) if at_ms % _MS_PER_S == 0 else b"%.3f" % (at_ms / _MS_PER_S)),
        Raw(b"{%b}" % key),
        Raw(item),
        size_bytes=Raw(b"%d" % len(item)),
        stream_view_type=Raw(b'"NEW_IMAGE"'),
    )
    event = _Event(
        change,
        Raw(b'"%b"' % blake2b(number.encode(), digest_size=16).hexdigest().encode()),
        _SNAPSHOT if form is ChangeForm.PLAIN else Raw(b'"INSERT"'),
        Raw(b'"1.1"'),
        Raw(b'"aws:dynamodb"'),
        Raw(_name(_parts(stream_arn)[0])),
    )
    return _record(event, _writer(form, stream_arn))


_SNAPSHOT: Final = Raw(b'"SNAPSHOT"')


def _record(event: _Event, write: Write) -> UserRecord:
    change = event.dynamodb
    at_ms = change.at_ms
    return UserRecord(write(event, at_ms), _key(change.keys), change.sequence_number, at_ms)


def _is_since(record: UserRecord, since_ms: int) -> bool:
    at_ms = record.approximate_arrival_timestamp
    return at_ms is None or at_ms >= since_ms


def _opened(answer: bytes | bytearray) -> _Answer:
    try:
        if not answer.isascii():
            answer.decode()
        return _answers.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _opened_leniently(answer)


def _opened_leniently(answer: bytes | bytearray) -> _Answer:
    """Half of a surrogate pair is refused by msgspec; it must not stop a shard."""
    try:
        shape = json.loads(answer.decode("utf-8", "replace"))
        events = [
            _built(_Event, each, {"dynamodb": _built(_Change, each["dynamodb"], {})})
            for each in shape["Records"]
        ]
        return _Answer(events, shape.get("NextShardIterator"))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"the answer cannot be understood: {error!r:.200}") from error


def _built(kind: type[_Part], shape: Mapping[str, object], parts: Mapping[str, object]) -> _Part:
    given: dict[str, Any] = {}
    for each in fields(kind):
        name = each.encode_name
        if name in parts:
            given[each.name] = parts[name]
        elif each.type is str:
            if not isinstance(shape[name], str):
                raise TypeError(f"{name} is no text")
            given[each.name] = shape[name]
        elif name in shape:
            given[each.name] = Raw(_dumped(shape[name]))
    return kind(**given)


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _is_given(text: Raw) -> bool:
    return len(text) > 0 and bytes(text) != _NULL


def _key(keys: Raw) -> Raw:
    """The same for an item, however the service writes it."""
    try:
        text = orjson.dumps(orjson.loads(memoryview(keys)), option=orjson.OPT_SORT_KEYS).decode()
        return Raw(orjson.dumps(text))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        text = json.dumps(json.loads(bytes(keys)), separators=(",", ":"), sort_keys=True)
        return Raw(encode_basestring_ascii(text).encode("ascii"))


@lru_cache(64)
def _writer(form: ChangeForm, stream_arn: str) -> Write:
    if form is ChangeForm.KCL1:
        return _as_kcl1
    region, table = _parts(stream_arn)
    if form is ChangeForm.LAMBDA:
        end = b',"eventSourceARN":%b}' % _name(stream_arn)
        return lambda event, _: _of_lambda(event, end)
    name = _name(table)
    return lambda event, at_ms: _as_plain(event, at_ms, name)


def _parts(stream_arn: str) -> tuple[str, str]:
    """Region and table."""
    parts = stream_arn.split(":", 5)
    return (parts[3], parts[5].split("/")[1]) if len(parts) > 5 and "/" in parts[5] else ("", stream_arn)


def _as_kcl1(event: _Event, at_ms: int | None) -> bytes:
    """In the order of Jackson: names that its mix-ins do not give come first."""
    identity = _identity(event.user_identity)
    time = b"" if at_ms is None else b"%d" % at_ms
    parts = [b'{"userIdentity":%b,' % identity if identity else b"{"]
    _put_event(parts, event, time)
    parts.append(b"}")
    return b"".join(parts)


def _of_lambda(event: _Event, end: bytes) -> bytes:
    parts: list[bytes | Raw] = [b"{"]
    _put_event(parts, event, event.dynamodb.approximate_creation_date_time)
    identity = _identity(event.user_identity)
    if identity:
        parts.append(b',"userIdentity":%b' % identity)
    parts.append(end)
    return b"".join(parts)


def _put_event(parts: list[bytes | Raw], event: _Event, time: bytes | Raw) -> None:
    """Without the last brace of the event; each part is undecoded."""
    change = event.dynamodb
    for name, text in (
        (b'"eventID":', event.event_id),
        (b'"eventName":', event.event_name),
        (b'"eventVersion":', event.event_version),
        (b'"eventSource":', event.event_source),
        (b'"awsRegion":', event.aws_region),
    ):
        if _is_given(text):
            parts += (name, text, b",")
    parts.append(b'"dynamodb":{')
    if time:
        parts += (b'"ApproximateCreationDateTime":', time, b",")
    parts += (b'"Keys":', change.keys, b",")
    if _is_given(change.new_image):
        parts += (b'"NewImage":', change.new_image, b",")
    if _is_given(change.old_image):
        parts += (b'"OldImage":', change.old_image, b",")
    parts.append(b'"SequenceNumber":"%b"' % change.sequence_number.encode())
    if _is_given(change.size_bytes):
        parts += (b',"SizeBytes":', change.size_bytes)
    if _is_given(change.stream_view_type):
        parts += (b',"StreamViewType":', change.stream_view_type)
    parts.append(b"}")


def _identity(text: Raw) -> bytes | None:
    """As AWS's documentation has it; the service's own model writes the names large."""
    if not _is_given(text):
        return None
    shape: dict[str, object] = json.loads(bytes(text))
    known = {"principalId": ("principalId", "PrincipalId"), "type": ("type", "Type")}
    found = {
        name: shape[each] for name, spelt in known.items() for each in spelt if shape.get(each) is not None
    }
    return _dumped(found)


_EXPIRED: Final = _dumped({"principalId": "dynamodb.amazonaws.com", "type": "Service"})


def _as_plain(event: _Event, at_ms: int | None, table: bytes) -> bytes:
    change = event.dynamodb
    kind = b"null" if not _is_given(event.event_name) else bytes(event.event_name).lower()
    parts = [b'{"kind":%b,"table":%b,"keys":%b' % (kind, table, _plain_item(change.keys))]
    if _is_given(change.new_image):
        parts.append(b',"new":%b' % _plain_item(change.new_image))
    if _is_given(change.old_image):
        parts.append(b',"old":%b' % _plain_item(change.old_image))
    parts.append(b',"sequenceNumber":"%b"' % change.sequence_number.encode())
    if at_ms is not None:
        parts.append(b',"createdAt":%d' % at_ms)
    parts.append(b',"expired":true}' if _identity(event.user_identity) == _EXPIRED else b"}")
    return b"".join(parts)


_attributes_of: Final = Decoder(dict[str, dict[str, Raw]])
_lists_of: Final = Decoder(list[dict[str, Raw]])
_texts_of: Final = Decoder(list[Raw])
_is_number: Final = re.compile(rb'"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"').fullmatch


def _attributes(item: Raw | bytes) -> Mapping[str, Mapping[str, Raw]]:
    try:
        return _attributes_of.decode(item)
    except msgspec.DecodeError:  # half of a surrogate pair
        shape = cast("dict[str, dict[str, object]]", json.loads(bytes(item)))
        return {name: _raw_value(value) for name, value in shape.items()}


def _raw_value(value: Mapping[str, object]) -> dict[str, Raw]:
    return {kind: Raw(_dumped(each)) for kind, each in value.items()}


def _plain_item(item: Raw) -> bytes:
    return b"{%b}" % b",".join(
        [b"%b:%b" % (_name(name), _plain(value)) for name, value in _attributes(item).items()]
    )


def _plain(value: Mapping[str, Raw]) -> Raw | bytes:
    """The values in it may be of any kind, also of one that is not known yet."""
    kind, text = next(iter(value.items()), ("", _EMPTY))
    if len(value) == 1:
        if kind in {"S", "BOOL"}:
            return text
        write = _PLAIN.get(kind)
        if write is not None:
            return write(text)
    return b'{"$other":{%b}}' % _joined(value.items())


def _number(text: Raw) -> bytes:
    """JSON has no number such as .5 or 007, but the service gives none either."""
    given = bytes(text)
    if _is_number(given):
        return given[1:-1]
    try:
        number = Decimal(json.loads(given))
    except (InvalidOperation, TypeError):
        number = Decimal("NaN")
    return str(number).encode() if number.is_finite() else b'{"$number":%b}' % given


def _map(text: Raw) -> bytes:
    """An object whose only name begins with $ is one of ours."""
    plain = _plain_item(text)
    names = _attributes(text)
    is_like_ours = len(names) == 1 and next(iter(names)).startswith("$")
    return b'{"$map":%b}' % plain if is_like_ours else plain


def _list(text: Raw) -> bytes:
    try:
        values = _lists_of.decode(text)
    except msgspec.DecodeError:
        values = list(map(_raw_value, json.loads(bytes(text))))
    return b"[%b]" % b",".join(map(_plain, values))


def _binary(text: Raw) -> bytes:
    return b'{"$binary":%b}' % text


def _set(text: Raw, write: Callable[[Raw], Raw | bytes]) -> bytes:
    try:
        values = _texts_of.decode(text)
    except msgspec.DecodeError:
        values = [Raw(_dumped(each)) for each in json.loads(bytes(text))]
    return b'{"$set":[%b]}' % b",".join(map(write, values))


_PLAIN: Final[Mapping[str, Callable[[Raw], bytes]]] = {
    "N": _number,
    "B": _binary,
    "NULL": lambda _: _NULL,
    "M": _map,
    "L": _list,
    "SS": lambda text: _set(text, lambda each: each),
    "NS": lambda text: _set(text, _number),
    "BS": lambda text: _set(text, _binary),
}


def _joined(parts: Iterable[tuple[str, Raw]]) -> bytes:
    return b",".join([b"%b:%b" % (_name(name), text) for name, text in parts])


@lru_cache(4096)
def _name(name: str) -> bytes:
    return encode_basestring_ascii(name).encode("ascii")
