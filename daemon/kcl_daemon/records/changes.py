"""Changes of a DynamoDB table as records for a child, in three forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from json.encoder import encode_basestring_ascii
from operator import attrgetter, contains
from typing import Final, TypeVar

import msgspec
import orjson
from msgspec import Raw, Struct
from msgspec.json import Decoder, Encoder
from msgspec.structs import fields

from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES, Payload, UserRecord

_MS_PER_S: Final = 1000
_NULL: Final = b"null"
_EMPTY: Final = Raw(b"")
_NULL_TEXT: Final = Raw(_NULL)
_NO_KEYS: Final = Raw(b"{}")


class _Change(Struct, gc=False, kw_only=True, omit_defaults=True, rename="pascal"):
    """In the order of `KCL1` and `LAMBDA`. A null of the service is the text null; what it left out is empty."""

    approximate_creation_date_time: float | None = None
    keys: Raw = _NO_KEYS
    new_image: Raw = _EMPTY
    old_image: Raw = _EMPTY
    sequence_number: str
    size_bytes: Raw = _EMPTY
    stream_view_type: Raw = _EMPTY


class _Event(Struct, gc=False, kw_only=True, omit_defaults=True):
    """In the order of Jackson: names that its mix-ins do not give come first."""

    user_identity: Raw = msgspec.field(default=_EMPTY, name="userIdentity")
    event_id: Raw = msgspec.field(default=_EMPTY, name="eventID")
    event_name: Raw = msgspec.field(default=_EMPTY, name="eventName")
    event_version: Raw = msgspec.field(default=_EMPTY, name="eventVersion")
    event_source: Raw = msgspec.field(default=_EMPTY, name="eventSource")
    aws_region: Raw = msgspec.field(default=_EMPTY, name="awsRegion")
    dynamodb: _Change
    event_source_arn: Raw = msgspec.field(default=_EMPTY, name="eventSourceARN")


class _Answer(Struct, gc=False, rename="pascal"):
    records: list[_Event]
    next_shard_iterator: str | None = None


_answers: Final = Decoder(_Answer)
_WRONG: Final = (
    ValueError,
    msgspec.DecodeError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
_Part = TypeVar("_Part", _Change, _Event)
_encode: Final = Encoder().encode
_body_of: Final = attrgetter("body")
_key_of: Final = attrgetter("partition_key")


def changes_of(
    answer: bytes | bytearray, form: ChangeForm, stream_arn: str, since_ms: int | None = None
) -> tuple[Payload, str | None, int]:
    """The records of an answer of GetRecords, its next iterator, and how many changes it had. ValueError if it cannot be understood.

    Changes before `since_ms` are left out. A partition key is the JSON text of the item's keys.
    """
    try:
        opened = _opened(answer)
        records = _records(opened.records, form, stream_arn)
    except _WRONG as error:
        raise ValueError(f"the answer cannot be understood: {error!r:.200}") from error
    if records and records[-1].position < records[0].position:  # also finds invalid numbers
        raise ValueError("the records are out of order")
    if since_ms is not None:
        records = [
            each for each in records if (at := each.approximate_arrival_timestamp) is None or at >= since_ms
        ]
    return payload_of(records), opened.next_shard_iterator or None, len(opened.records)


def payload_of(records: Sequence[UserRecord]) -> Payload:
    texts = sum(map(len, map(_body_of, records))) + sum(map(len, map(_key_of, records)))
    return Payload.joined([Payload(records, texts + RECORD_OVERHEAD_BYTES * len(records))])


def snapshot_record(
    item: bytes, keys: tuple[str, ...], form: ChangeForm, stream_arn: str, *, number: str, at_ms: int
) -> UserRecord:
    """An item of a scan as a change: INSERT, in `PLAIN` of the kind `snapshot`."""
    attributes = _attributes(item)
    key = b",".join(
        b"%b:{%b}" % (_name(name), _joined(attributes[name].items())) for name in keys if name in attributes
    )
    change = _Change(
        sequence_number=number,
        approximate_creation_date_time=at_ms / _MS_PER_S,
        keys=Raw(b"{%b}" % key),
        new_image=Raw(item),
        size_bytes=Raw(b"%d" % len(item)),
        stream_view_type=Raw(b'"NEW_IMAGE"'),
    )
    event = _Event(
        dynamodb=change,
        event_id=Raw(b'"%b"' % blake2b(number.encode(), digest_size=16).hexdigest().encode()),
        event_name=Raw(b'"SNAPSHOT"' if form is ChangeForm.PLAIN else b'"INSERT"'),
        event_version=Raw(b'"1.1"'),
        event_source=Raw(b'"aws:dynamodb"'),
        aws_region=Raw(_name(_parts(stream_arn)[0])),
    )
    return _records([event], form, stream_arn)[0]


def _records(events: Sequence[_Event], form: ChangeForm, stream_arn: str) -> list[UserRecord]:
    changes = [event.dynamodb for event in events]
    seconds = [change.approximate_creation_date_time for change in changes]
    times = {each: _time(each, in_seconds=form is ChangeForm.LAMBDA) for each in set(seconds)}
    for change, at_s in zip(changes, seconds, strict=True):
        change.approximate_creation_date_time = times[at_s][1]
    bodies, keys = _bodies(events, form, stream_arn), _keys([change.keys for change in changes])
    numbers = [change.sequence_number for change in changes]
    return list(map(UserRecord, bodies, keys, numbers, [times[each][0] for each in seconds]))


def _time(at_s: float | None, *, in_seconds: bool) -> tuple[int | None, float | None]:
    if at_s is None:
        return None, None
    at_ms = round(at_s * _MS_PER_S)
    if not in_seconds:
        return at_ms, at_ms
    return at_ms, int(at_s) if at_s.is_integer() else at_s


def _opened(answer: bytes | bytearray) -> _Answer:
    try:
        if not answer.isascii():
            answer.decode()
        return _answers.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _opened_leniently(answer)


def _opened_leniently(answer: bytes | bytearray) -> _Answer:
    """Half of a surrogate pair must not stop a shard."""
    shape = json.loads(answer.decode("utf-8", "replace"))
    events = [
        _built(_Event, each, {"dynamodb": _built(_Change, each["dynamodb"], {})}) for each in shape["Records"]
    ]
    return _Answer(events, shape.get("NextShardIterator"))


def _built(kind: type[_Part], shape: Mapping[str, object], parts: Mapping[str, object]) -> _Part:
    texts = {each.encode_name for each in fields(kind) if each.type is Raw}
    given = {name: Raw(_dumped(value)) if name in texts else value for name, value in shape.items()}
    return msgspec.convert({**given, **parts}, kind)


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _keys(keys: Sequence[Raw]) -> Iterable[Raw]:
    """Quoted JSON: the same for an item, however the service writes it."""
    texts = b"\n".join(keys)
    if not keys or _in_order(tuple(_attributes(keys[0]))).fullmatch(texts) is None:
        texts = b"\n".join(map(_sorted_key, keys))
    if not texts.isascii():
        return [Raw(encode_basestring_ascii(each).encode()) for each in texts.decode().split("\n")]
    quoted = texts.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b'"\n"')
    return map(Raw, (b'"%b"' % quoted).split(b"\n")) if keys else ()


@lru_cache(64)
def _in_order(names: tuple[str, ...]) -> re.Pattern[bytes]:
    """Matches keys as `_sorted_key` writes them, a line each; a table has one set of names."""
    parts = [rb'"%b":\{"[SNB]":"[^"\\\n]*+"\}' % re.escape(name.encode()) for name in sorted(names)]
    one = rb"\{%b\}" % b",".join(parts)
    return re.compile(rb"%b(?:\n%b)*+" % (one, one))


def _sorted_key(key: Raw) -> bytes:
    try:
        return orjson.dumps(orjson.loads(memoryview(key)), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return _dumped(dict(sorted(json.loads(bytes(key)).items())))


def _bodies(events: Sequence[_Event], form: ChangeForm, stream_arn: str) -> list[bytes]:
    if form is ChangeForm.PLAIN:
        table = _name(_parts(stream_arn)[1])
        return [_as_plain(event, table) for event in events]
    arn = Raw(_name(stream_arn)) if form is ChangeForm.LAMBDA else _EMPTY
    for event in events:
        if event.user_identity:
            event.user_identity = Raw(_identity(event))
        event.event_source_arn = arn
    bodies = list(map(_encode, events))
    if any(map(contains, bodies, repeat(b":null"))):
        return [_encode(_without_nulls(event)) for event in events]
    return bodies


def _parts(stream_arn: str) -> tuple[str, str]:
    parts = stream_arn.split(":", 5)
    return (parts[3], parts[5].split("/")[1]) if len(parts) > 5 and "/" in parts[5] else ("", stream_arn)


def _without_nulls(event: _Event) -> _Event:
    for part in (event, event.dynamodb):
        for each in fields(part):
            if getattr(part, each.name) == _NULL_TEXT:
                setattr(part, each.name, each.default)
    return event


def _is_given(text: Raw | bytes) -> bool:
    return len(text) > 0 and bytes(text) != _NULL


def _identity(event: _Event) -> bytes:
    """AWS documents `principalId` and `type`; the service's own model writes them large. Null if there is none."""
    if not _is_given(event.user_identity):
        return _NULL
    shape: dict[str, object] = json.loads(bytes(event.user_identity))
    spelt = {"principalId": ("principalId", "PrincipalId"), "type": ("type", "Type")}
    found = {
        name: shape[each] for name, names in spelt.items() for each in names if shape.get(each) is not None
    }
    return _dumped(found)


_EXPIRED: Final = _dumped({"principalId": "dynamodb.amazonaws.com", "type": "Service"})


def _as_plain(event: _Event, table: bytes) -> bytes:
    change = event.dynamodb
    kind = event.event_name
    parts: list[bytes | Raw] = [
        b'{"kind":',
        bytes(kind).lower() or _NULL,
        b',"table":',
        table,
        b',"keys":',
        _plain_item(change.keys),
    ]
    for name, image in ((b',"new":', change.new_image), (b',"old":', change.old_image)):
        if _is_given(image):
            parts += (name, _plain_item(image))
    parts += (
        b',"sequenceNumber":"',
        change.sequence_number.encode(),
        b'","createdAt":',
        _encode(change.approximate_creation_date_time),
    )
    parts.append(b',"expired":true}' if _identity(event) == _EXPIRED else b"}")
    return b"".join(parts)


_attributes_of: Final = Decoder(dict[str, dict[str, Raw]])
_values_of: Final = Decoder(list[dict[str, Raw]])
_texts_of: Final = Decoder(list[Raw])
_number_of: Final = re.compile(rb'"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"').fullmatch


def _attributes(item: Raw | bytes) -> Mapping[str, Mapping[str, Raw]]:
    try:
        return _attributes_of.decode(item)
    except msgspec.DecodeError:  # half of a surrogate pair
        shape: dict[str, dict[str, object]] = json.loads(bytes(item))
        return {name: _raw_value(value) for name, value in shape.items()}


def _raw_value(value: Mapping[str, object]) -> dict[str, Raw]:
    return {kind: Raw(_dumped(each)) for kind, each in value.items()}


def _plain_item(item: Raw) -> bytes:
    parts = [b"%b:%b" % (_name(name), _plain(value)) for name, value in _attributes(item).items()]
    return b"{%b}" % b",".join(parts)


def _plain(value: Mapping[str, Raw]) -> Raw | bytes:
    if len(value) == 1:
        for kind, text in value.items():
            if kind in _AS_IT_IS:
                return text
            if kind in _PLAIN:
                return _PLAIN[kind](text)
    return b'{"$other":{%b}}' % _joined(value.items())


def _number(text: Raw) -> bytes:
    """JSON has no number such as .5 or 007, but the service gives none either."""
    if (number := _number_of(text)) is not None:
        return number[1]
    try:
        parsed = Decimal(json.loads(bytes(text)))
    except (InvalidOperation, TypeError):
        parsed = Decimal("NaN")
    return str(parsed).encode() if parsed.is_finite() else b'{"$number":%b}' % text


def _map(text: Raw) -> bytes:
    """A map whose only name begins with $ would look like one of our own objects."""
    plain = _plain_item(text)
    if plain.startswith(b'{"$') and len(_attributes(text)) == 1:
        return b'{"$map":%b}' % plain
    return plain


def _list(text: Raw) -> bytes:
    try:
        values = _values_of.decode(text)
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


_AS_IT_IS: Final = frozenset({"S", "BOOL"})
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
