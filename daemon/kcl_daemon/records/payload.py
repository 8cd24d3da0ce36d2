"""Records between Kinesis and a child's stdin, kept undecoded.

`data` and the partition key stay JSON text and are copied into the child's line, which must equal that of
`kcl_protocol.codec`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, overload

from msgspec import DecodeError, Raw, Struct, field
from msgspec.json import Decoder, Encoder
from msgspec.structs import astuple, replace

from kcl_daemon.records.base64_text import BASE64, FAST_FROM_BYTES, bytes_of, bytes_of_long, bytes_of_short
from kcl_protocol.codec import FRAME_START, decode_daemon_line
from kcl_protocol.messages import ProcessRecords, Record, RecordSchema
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from kcl_protocol.frames import Columns, Row

# Memory besides the text.
RECORD_OVERHEAD_BYTES: Final = 320
LINE_BYTES: Final = 8 * 2**20
"""Maximum line of user records from aggregates; one record may be longer."""
SLICE_BYTES: Final = 2**20
# The rest of a record in a line, except the sequence number.
LINE_OVERHEAD_BYTES: Final = 320
# F3 89 9A C2, the start of a KPL aggregate, in base64 after the quote.
_AGGREGATE_PREFIX: Final = b'"84maw'


class RawRecord(Struct, gc=False, rename="camel"):
    """One user record, its texts as quoted JSON. Never changed.

    Args:
        data: base64 text.
        partition_key: as UTF-8 or escaped; null if the producer gave none.
        approximate_arrival_timestamp: epoch milliseconds.
        sub_sequence_number: index inside a KPL aggregate, else 0.
    """

    data: Raw
    partition_key: Raw
    sequence_number: str
    approximate_arrival_timestamp: int | None
    sub_sequence_number: int = 0
    action: str = "record"

    @property
    def position(self) -> ExtendedSequenceNumber:
        """ValueError if the sequence number is invalid."""
        return ExtendedSequenceNumber(self.sequence_number, self.sub_sequence_number)


class UserRecord(Struct, gc=False, rename="camel"):
    """Of a KPL aggregate or a change of a table; base64 is left to the encoder of the line."""

    body: bytes = field(name="data")
    partition_key: Raw
    sequence_number: str
    approximate_arrival_timestamp: int | None
    sub_sequence_number: int = 0
    action: str = "record"

    @property
    def data(self) -> Raw:
        return BASE64.encoded(self.body)

    @property
    def position(self) -> ExtendedSequenceNumber:
        return ExtendedSequenceNumber(self.sequence_number, self.sub_sequence_number)


AnyRecord = RawRecord | UserRecord
_OWN_FIELDS: Final = len(RawRecord.__struct_fields__)
MakeUserRecord = Callable[[bytes, Raw, str, int | None, int], AnyRecord]


class SchemaTexts(Struct, frozen=True, gc=False):
    """A schema version as quoted ASCII JSON, shared by its records."""

    name: Raw
    version_id: Raw
    data_format: Raw
    definition: Raw

    @classmethod
    def of(cls, schema: RecordSchema) -> SchemaTexts:
        return cls(*map(_quoted, (schema.name, schema.version_id, schema.data_format, schema.definition)))


NULL: Final = Raw(b"null")


class SchemaRecord(RawRecord, gc=False, rename="camel"):
    schema_name: Raw = NULL
    schema_version_id: Raw = NULL
    schema_data_format: Raw = NULL
    schema_definition: Raw = NULL

    @classmethod
    def of(cls, record: AnyRecord, data: Raw, schema: SchemaTexts) -> SchemaRecord:
        return cls(data, *astuple(record)[1:_OWN_FIELDS], *astuple(schema))


class UserRecords(Sequence[AnyRecord]):
    """Of one aggregate, as columns; `keys` are quoted JSON without its quotes. A record is made when it is looked at."""

    __slots__ = ("_make", "_outer", "bodies", "keys", "sub_numbers")

    def __init__(
        self,
        outer: AnyRecord,
        bodies: Sequence[bytes],
        keys: Sequence[bytes],
        sub_numbers: Sequence[int],
        make: MakeUserRecord,
    ) -> None:
        self._outer = outer
        self.bodies = bodies
        self.keys = keys
        self.sub_numbers = sub_numbers
        self._make = make

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[AnyRecord]:
        number, arrival_ms = self._outer.sequence_number, self._outer.approximate_arrival_timestamp
        keys = map(Raw, (b'"%b"' % b'"\n"'.join(self.keys)).split(b"\n"))
        return map(self._make, self.bodies, keys, repeat(number), repeat(arrival_ms), self.sub_numbers)

    @overload
    def __getitem__(self, index: int) -> AnyRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[AnyRecord]: ...

    def __getitem__(self, index: int | slice) -> AnyRecord | Sequence[AnyRecord]:
        if isinstance(index, slice):
            return list(self)[index]
        number, arrival_ms = self._outer.sequence_number, self._outer.approximate_arrival_timestamp
        key = Raw(b'"%b"' % self.keys[index])
        return UserRecord(self.bodies[index], key, number, arrival_ms, self.sub_numbers[index])

    def columns(self) -> Columns:
        count, outer, keys = len(self.bodies), self._outer, self.keys
        if b"\\" in b"".join(keys):
            keys = list(map(str.encode, _texts_decoder.decode(b'["%b"]' % b'","'.join(keys))))
        from kcl_protocol.frames import Columns

        return Columns(
            self.bodies,
            keys,
            [outer.sequence_number] * count,
            [outer.approximate_arrival_timestamp] * count,
            self.sub_numbers,
        )


Piece = tuple[Sequence[AnyRecord], int]
"""User records and their maximum size in a line; empty: the next piece takes long."""

Split = Callable[[AnyRecord], Iterable[Piece]]
"""The pieces of an aggregate, or the record itself."""


class _Line(Struct, gc=False, rename="camel", omit_defaults=True):
    action: str
    records: Sequence[AnyRecord]
    millis_behind_latest: int | None
    complete_millis: int | None = None


class _RawLine(Struct, gc=False, rename="camel"):
    records: list[RawRecord]
    millis_behind_latest: int | None


class _SchemaLine(Struct, gc=False, rename="camel"):
    records: list[SchemaRecord]
    millis_behind_latest: int | None


_encoder: Final = Encoder()
_text_decoder: Final = Decoder(str)
_texts_decoder: Final = Decoder(list[str])
_keys_decoder: Final = Decoder(list[str | None])
_line_decoder: Final = Decoder(_RawLine)
_schema_line_decoder: Final = Decoder(_SchemaLine)
# Cannot occur in a partition key or definition: their quotes are escaped.
_SCHEMA_KEY: Final = b'"schemaName":'
_data_of: Final = attrgetter("data")
_body_of: Final = attrgetter("body")
_key_of: Final = attrgetter("partition_key")
_number_of: Final = attrgetter("sequence_number")
_arrival_of: Final = attrgetter("approximate_arrival_timestamp")
_sub_number_of: Final = attrgetter("sub_sequence_number")
_prefix_of: Final = struct.Struct(f"{len(_AGGREGATE_PREFIX)}s").unpack_from
# With `RECORD_OVERHEAD_BYTES`: to copy less is quicker than to look at its end.
_SHORT_BYTES: Final = 1200


class Payload:
    """Records in one of their forms; what is known of them beside is in `Batch`."""

    __slots__ = ("_known_bytes", "records", "size_bytes")

    def __init__(self, records: Sequence[AnyRecord], size_bytes: int) -> None:
        self.records = records
        self.size_bytes = size_bytes
        self._known_bytes: int | None = None

    @classmethod
    def of(cls, records: Iterable[Record]) -> Payload:
        raw = [raw_record(record) for record in records]
        texts = sum(len(record.data) + len(record.partition_key) for record in raw)
        return cls(raw, texts + RECORD_OVERHEAD_BYTES * len(raw))

    @classmethod
    def of_line(cls, line: bytes) -> tuple[Payload, int | None]:
        """Of a line, or a frame, which the records keep in memory. Each becomes the same text again."""
        if line.startswith(FRAME_START):
            from kcl_protocol.frames import decode_frame

            frame, behind_ms = decode_frame(line)
            return _Expanded([list(map(_of_row, frame.rows()))], len(line)), behind_ms
        try:
            if _SCHEMA_KEY in line:
                opened = _schema_line_decoder.decode(line)
                records = list(map(_without_defaults, opened.records))
                return cls(records, len(line)), opened.millis_behind_latest
            message = _line_decoder.decode(line)
        except DecodeError:  # half of a surrogate pair in a key, which children may be sent
            odd = decode_daemon_line(line)
            assert isinstance(odd, ProcessRecords), "it is a line of records"
            return cls.of(odd.records), odd.millis_behind_latest
        return cls(message.records, len(line)), message.millis_behind_latest

    def __len__(self) -> int:
        return len(self.records)

    @property
    def first(self) -> ExtendedSequenceNumber:
        """IndexError if there is none."""
        return self._record(0).position

    @property
    def first_arrival_ms(self) -> int | None:
        return self._record(0).approximate_arrival_timestamp

    @property
    def last_arrival_ms(self) -> int | None:
        return self._record(-1).approximate_arrival_timestamp

    @property
    def last(self) -> ExtendedSequenceNumber:
        return self._record(-1).position

    @property
    def span_ms(self) -> int:
        """From the first record to the last; 0 where that is not known."""
        first_ms, last_ms = (self.first_arrival_ms, self.last_arrival_ms) if self else (None, None)
        return 0 if first_ms is None or last_ms is None else max(0, last_ms - first_ms)

    def _record(self, index: Literal[0, -1]) -> AnyRecord:
        return self.records[index]

    @property
    def data_bytes(self) -> int:
        if self._known_bytes is None:
            self._known_bytes = self._counted_bytes()
        return self._known_bytes

    def _counted_bytes(self) -> int:
        texts = [record.data for record in self.records]
        are_short = self.size_bytes < _SHORT_BYTES * len(texts)
        return bytes_of_short(texts) if are_short else bytes_of_long(texts)

    def after(self, position: ExtendedSequenceNumber) -> Payload:
        is_later = not self or position < self.first
        return self if is_later else self.some([each for each in self.records if position < each.position])

    def arrived_before(self, time_ms: int) -> Payload:
        """Up to the first record that arrived then or later, whatever follows it."""
        for place, record in enumerate(self.records):
            if (record.approximate_arrival_timestamp or 0) >= time_ms:
                return self.some(self.records[:place])
        return self

    def some(self, records: Sequence[AnyRecord]) -> Payload:
        return Payload(records, self.size_bytes)

    @property
    def runs(self) -> Sequence[Sequence[AnyRecord]]:
        """The records in order; those of one aggregate may be `UserRecords`."""
        return (self.records,)

    @staticmethod
    def joined(parts: Sequence[Payload]) -> Payload:
        runs = (run for part in parts for run in part.runs)
        return _Expanded(runs, sum(part.size_bytes for part in parts))

    @staticmethod
    def only(records: Sequence[AnyRecord]) -> Payload:
        """Records that keep nothing else in memory."""
        for record in records:
            detach(record)
        texts = sum(4 * data_bytes_of(record) // 3 + len(record.partition_key) for record in records)
        return _Expanded([records], texts + LINE_OVERHEAD_BYTES * len(records))

    def expanded(self, split: Split, **limits: int) -> Iterator[Payload]:
        return (part for part, _ in self.opened(split, **limits))

    def opened(
        self, split: Split, max_bytes: int = LINE_BYTES, slice_bytes: int = SLICE_BYTES
    ) -> Iterator[tuple[Payload, bool]]:
        """Replace each possible KPL aggregate by the pieces of `split`: parts as they are consumed, and whether it is the last.

        A part is at most `max_bytes`, and comes from at most `slice_bytes` of base64 data; one piece or record may exceed
        both. An empty part means that the next one takes long.
        """
        if not self._looks_aggregated():
            yield self, True
            return
        part: list[Sequence[AnyRecord]] = []
        part_bytes = taken_bytes = 0
        for record in self.records:
            if taken_bytes and taken_bytes + len(record.data) > slice_bytes:
                yield _Expanded(part, part_bytes), False
                part, part_bytes, taken_bytes = [], 0, 0
            taken_bytes += len(record.data)
            for piece, piece_bytes in split(record) if _looks_aggregated(record) else _alone(record):
                if part and part_bytes + piece_bytes > max_bytes:
                    yield _Expanded(part, part_bytes), False
                    part, part_bytes = [], 0
                if not piece:
                    yield EMPTY, False
                if isinstance(piece, UserRecords):
                    part.append(piece)
                elif part and isinstance(part[-1], list):
                    part[-1].extend(piece)
                else:
                    part.append(list(piece))
                part_bytes += piece_bytes
        yield _Expanded(part, part_bytes), True

    def line(self, millis_behind_latest: int | None, complete_ms: int | None = None) -> bytes:
        """The `processRecords` line, in ASCII, with LF."""
        line = _encoded(self.records, millis_behind_latest, complete_ms)
        if line.isascii():
            return line
        return _encoded(list(map(_in_ascii, self.records)), millis_behind_latest, complete_ms)

    def frame(self, millis_behind_latest: int | None, complete_ms: int | None = None) -> bytes:
        """A line if there are no records, or one that fits in no frame."""
        if self:
            from kcl_protocol.frames import encode_frame

            try:
                return encode_frame(self._columns(), millis_behind_latest, complete_ms)
            except (ValueError, OverflowError, DecodeError):
                pass
        return self.line(millis_behind_latest, complete_ms)

    def _columns(self) -> Columns:
        """ValueError or DecodeError: data is not base64, or a key is no valid text."""
        return _columns(self.records)

    def decoded(self) -> list[Record]:
        return [
            Record(
                _text(each.data),
                key_text(each),
                each.sequence_number,
                each.approximate_arrival_timestamp,
                each.sub_sequence_number,
                _schema(each),
            )
            for each in self.records
        ]

    def _looks_aggregated(self) -> bool:
        """Runs in C: most streams hold no aggregates. User records are none, and have no base64 to look at."""
        if self and isinstance(self._record(0), UserRecord):
            return False
        try:
            return (_AGGREGATE_PREFIX,) in map(_prefix_of, map(_data_of, self.records))
        except struct.error:
            return any(map(_looks_aggregated, self.records))


class _Expanded(Payload):
    """Also user records of aggregates, in runs."""

    __slots__ = ("_records", "_runs")

    def __init__(self, runs: Iterable[Sequence[AnyRecord]], size_bytes: int) -> None:
        self._runs = [run for run in runs if run]
        self._records: Sequence[AnyRecord] | None = None
        self._known_bytes = None
        self.size_bytes = size_bytes

    @property
    def records(self) -> Sequence[AnyRecord]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride] - made once
        if self._records is None:
            self._records = list(chain.from_iterable(self._runs))
        return self._records

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def runs(self) -> Sequence[Sequence[AnyRecord]]:
        return self._runs

    def _record(self, index: Literal[0, -1]) -> AnyRecord:
        return self._runs[index][index]

    def some(self, records: Sequence[AnyRecord]) -> Payload:
        return _Expanded([records], self.size_bytes)

    def _columns(self) -> Columns:
        from kcl_protocol.frames import Columns

        return Columns.joined(
            run.columns() if isinstance(run, UserRecords) else _columns(run) for run in self._runs
        )

    def _counted_bytes(self) -> int:
        return sum(
            sum(map(len, run.bodies)) if isinstance(run, UserRecords) else _data_bytes(run)
            for run in self._runs
        )


def data_bytes_of(record: AnyRecord) -> int:
    return len(record.body) if isinstance(record, UserRecord) else bytes_of(record.data)


def _data_bytes(records: Sequence[AnyRecord]) -> int:
    if all(map(isinstance, records, repeat(UserRecord))):
        return sum(map(len, map(_body_of, records)))
    return sum(map(data_bytes_of, records))


def _columns(records: Sequence[AnyRecord]) -> Columns:
    """Made in C, as far as there are no user records of aggregates among them."""
    from kcl_protocol.frames import Columns

    kinds = set(map(type, records))
    return Columns(
        [each.body if isinstance(each, UserRecord) else BASE64.decoded(each.data) for each in records]
        if UserRecord in kinds
        else BASE64.all_decoded(list(map(_data_of, records))),
        _encoded_keys(b"[%b]" % b",".join(map(_key_of, records))),
        list(map(_number_of, records)),
        list(map(_arrival_of, records)),
        list(map(_sub_number_of, records)),
        list(map(_schema, records)) if SchemaRecord in kinds else (),
    )


def _encoded_keys(texts: bytes) -> list[bytes | None]:
    if bytes(NULL) not in texts:
        return list(map(str.encode, _texts_decoder.decode(texts)))
    return [None if key is None else key.encode() for key in _keys_decoder.decode(texts)]


EMPTY: Final = Payload((), 0)


def raw_record(record: Record) -> RawRecord:
    raw = RawRecord(
        _quoted(record.data),
        _key(record.partition_key),
        record.sequence_number,
        record.approximate_arrival_timestamp,
        record.sub_sequence_number,
    )
    return raw if record.schema is None else SchemaRecord.of(raw, raw.data, SchemaTexts.of(record.schema))


def _of_row(row: Row) -> AnyRecord:
    data, key, number, arrival_ms, sub_number, schema = row
    record = UserRecord(data, _key(key), number, arrival_ms, sub_number)
    return record if schema is None else SchemaRecord.of(record, record.data, SchemaTexts.of(schema))


def _without_defaults(record: SchemaRecord) -> RawRecord:
    return record if record.schema_name is not NULL else RawRecord(*astuple(record)[:_OWN_FIELDS])


def key_text(record: AnyRecord) -> str | None:
    return None if record.partition_key == NULL else _text(record.partition_key)


def detach(record: AnyRecord) -> None:
    """Else what it came in stays in memory as long as it does."""
    record.partition_key = record.partition_key.copy()
    if isinstance(record, RawRecord):
        record.data = record.data.copy()


def line_bytes(record: AnyRecord) -> int:
    """Rather too high."""
    return len(record.data) + len(record.partition_key) + LINE_OVERHEAD_BYTES


def _alone(record: AnyRecord) -> tuple[Piece, ...]:
    return (((record,), line_bytes(record)),)


def _looks_aggregated(record: AnyRecord) -> bool:
    return bytes(record.data).startswith(_AGGREGATE_PREFIX)


def _encoded(
    records: Sequence[AnyRecord], millis_behind_latest: int | None, complete_ms: int | None
) -> bytes:
    if (fast := BASE64.fast_encode) and records and all(map(isinstance, records, repeat(UserRecord))):
        records = _in_base64(records, fast)
    # A list, because msgspec 0.22 leaks other iterators. Adds the LF without a copy.
    return _encoder.encode_lines([_Line("processRecords", records, millis_behind_latest, complete_ms)])


def _in_base64(records: Sequence[AnyRecord], encode: Callable[[bytes], bytes]) -> list[AnyRecord]:
    return list(
        map(
            RawRecord,
            map(Raw, map(b'"%b"'.__mod__, map(encode, map(_body_of, records)))),
            map(_key_of, records),
            map(_number_of, records),
            map(_arrival_of, records),
            map(_sub_number_of, records),
        )
    )


def _in_ascii(record: AnyRecord) -> AnyRecord:
    """Children read in the encoding of their locale."""
    if bytes(record.partition_key).isascii():
        return record
    return replace(record, partition_key=_quoted(_text(record.partition_key)))


def _quoted(text: str) -> Raw:
    return Raw(encode_basestring_ascii(text).encode("ascii"))


def _key(text: str | None) -> Raw:
    return NULL if text is None else _quoted(text)


def _schema(record: AnyRecord) -> RecordSchema | None:
    if isinstance(record, SchemaRecord):
        return RecordSchema(*map(_text, astuple(record)[_OWN_FIELDS:]))
    return None


def _text(raw: Raw) -> str:
    """Invalid UTF-8 becomes U+FFFD: one odd key must not stop a shard."""
    try:
        return _text_decoder.decode(raw)
    except (DecodeError, UnicodeDecodeError):
        return str(json.loads(bytes(raw).decode("utf-8", "replace")))


def user_record_type(size_bytes: int, count: int) -> MakeUserRecord:
    return _encoded_record if BASE64.fast_encode and size_bytes >= FAST_FROM_BYTES * count else UserRecord


def _encoded_record(
    data: bytes, partition_key: Raw, sequence_number: str, arrival_ms: int | None, sub_number: int
) -> RawRecord:
    return RawRecord(BASE64.encoded(data), partition_key, sequence_number, arrival_ms, sub_number)
