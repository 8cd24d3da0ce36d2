"""PURE: records on their way to a child, undecoded, and the line that they become.

Owns what a record is between an answer of Kinesis and a child's stdin: `data` and the partition key stay the JSON text
that came over the wire and are copied straight into the line. Must not know where records come from or what an
aggregate looks like inside; equal in its words to `kcl_protocol.codec`, and a test compares the two.

PURE: bytes to base64 as JSON text with its quotes, and back.

msgspec does it everywhere; `pybase64`, where it is installed, does it several times as fast from a kilobyte on.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Final

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, Encoder
from msgspec.structs import replace

from kcl_protocol.messages import Record, RecordSchema
from kcl_protocol.sequence import ExtendedSequenceNumber

# What a record takes in memory beside its text: the object itself, two views, a sequence number.
RECORD_OVERHEAD_BYTES: Final = 320
LINE_BYTES: Final = 8 * 2**20
"""No line of user records from aggregates is longer, unless one record alone is."""
# A record in a line without its texts, except the sequence number; a test compares.
LINE_OVERHEAD_BYTES: Final = 320
# F3 89 9A C2, the first bytes of a KPL aggregate, in base64 with the quote before it; a sixth character follows that
# is not of the magic alone.
_AGGREGATE_PREFIX: Final = b'"84maw'
_BASE64_BYTES: Final = 3 / 4


class RawRecord(Struct, gc=False, rename="camel"):
    """One user record, its texts as JSON with their quotes. Never altered once it is made.

    Args:
        data: base64 text, quoted.
        partition_key: quoted JSON text; may hold characters outside ASCII, as UTF-8 or escaped.
        sequence_number: decimal digits.
        approximate_arrival_timestamp: epoch milliseconds, or None.
        sub_sequence_number: index inside a KPL aggregate, 0 for a plain record.
        action: the word of the protocol; a record's last key, as KCL writes it.
    """

    data: Raw
    partition_key: Raw
    sequence_number: str
    approximate_arrival_timestamp: int | None
    sub_sequence_number: int = 0
    action: str = "record"

    @property
    def position(self) -> ExtendedSequenceNumber:
        """Where it stands in its shard; ValueError where the sequence number is none."""
        return ExtendedSequenceNumber(self.sequence_number, self.sub_sequence_number)


class SchemaTexts(Struct, frozen=True, gc=False):
    """A schema's version as texts of JSON with their quotes, in ASCII; shared by all of its records."""

    name: Raw
    version_id: Raw
    data_format: Raw
    definition: Raw

    @classmethod
    def of(cls, schema: RecordSchema) -> SchemaTexts:
        """The same of plain texts."""
        return cls(*map(_quoted, (schema.name, schema.version_id, schema.data_format, schema.definition)))


_NO_TEXT: Final = Raw(b"null")


class SchemaRecord(RawRecord, gc=False, rename="camel"):
    """A user record whose schema is known: four more texts. They are fields of their own as no reader of records expects objects."""

    schema_name: Raw = _NO_TEXT
    schema_version_id: Raw = _NO_TEXT
    schema_data_format: Raw = _NO_TEXT
    schema_definition: Raw = _NO_TEXT

    @classmethod
    def of(cls, record: RawRecord, data: Raw, schema: SchemaTexts) -> SchemaRecord:
        """A record with other data, and with its schema."""
        return cls(
            data,
            record.partition_key,
            record.sequence_number,
            record.approximate_arrival_timestamp,
            record.sub_sequence_number,
            record.action,
            schema.name,
            schema.version_id,
            schema.data_format,
            schema.definition,
        )


Piece = tuple[Sequence[RawRecord], int]
"""Some user records of an aggregate, and the most bytes that they take in a line; without records: it takes long."""

Split = Callable[[RawRecord], Iterable[Piece]]
"""Gives the user records of what may be a KPL aggregate piece by piece, or the record itself where it is none."""


class _Line(Struct, gc=False, rename="camel"):
    """The message `processRecords`, its keys in the order of the wire."""

    action: str
    records: Sequence[RawRecord]
    millis_behind_latest: int | None


class _SchemaLine(Struct, gc=False, rename="camel"):
    """The same, read where some of its records have a schema."""

    records: list[SchemaRecord]
    millis_behind_latest: int | None


_encoder: Final = Encoder()
_text_decoder: Final = Decoder(str)
_line_decoder: Final = Decoder(_Line)
_schema_line_decoder: Final = Decoder(_SchemaLine)
# A partition key or a definition cannot hold it: their quotes are escaped.
_SCHEMA_KEY: Final = b'"schemaName":'
_data_of: Final = attrgetter("data")
_prefix_of: Final = struct.Struct(f"{len(_AGGREGATE_PREFIX)}s").unpack_from


class Payload:
    """The records of one answer, or of one event: opaque to all but those who make them or split aggregates.

    Args:
        records: in order of position.
        size_bytes: about the memory that they take.
    """

    __slots__ = ("records", "size_bytes")

    def __init__(self, records: Sequence[RawRecord], size_bytes: int) -> None:
        self.records = records
        self.size_bytes = size_bytes

    @classmethod
    def of(cls, records: Iterable[Record]) -> Payload:
        """The same for records that are decoded already, as those of a Kinesis in memory."""
        raw = [raw_record(record) for record in records]
        texts = sum(len(record.data) + len(record.partition_key) for record in raw)
        return cls(raw, texts + RECORD_OVERHEAD_BYTES * len(raw))

    @classmethod
    def of_line(cls, line: bytes) -> tuple[Payload, int | None]:
        """The records of a line `processRecords` and what it tells of `millisBehindLatest`; they keep the line in memory.

        Every record becomes the same text again, its schema included: the data has no header any more to find it by.
        """
        if _SCHEMA_KEY in line:
            opened = _schema_line_decoder.decode(line)
            return cls(list(map(_without_defaults, opened.records)), len(line)), opened.millis_behind_latest
        message = _line_decoder.decode(line)
        return cls(message.records, len(line)), message.millis_behind_latest

    def __len__(self) -> int:
        return len(self.records)

    @property
    def first(self) -> ExtendedSequenceNumber:
        """Position of the first record; IndexError where there is none."""
        return self.records[0].position

    @property
    def last(self) -> ExtendedSequenceNumber:
        """Position of the last record; IndexError where there is none."""
        return self.records[-1].position

    @property
    def data_bytes(self) -> int:
        """Bytes of user data, as decoded; base64's padding makes it up to two more for each record."""
        quotes = 2 * len(self.records)
        return int((sum(map(len, map(_data_of, self.records))) - quotes) * _BASE64_BYTES)

    def after(self, position: ExtendedSequenceNumber) -> Payload:
        """Without the records at or before a position; itself where there are none such."""
        if not self.records or position < self.first:
            return self
        return Payload([each for each in self.records if position < each.position], self.size_bytes)

    def slices(self, max_bytes: int) -> Iterator[Payload]:
        """In parts that take no long time to expand; only where there may be aggregates, else itself.

        Args:
            max_bytes: of data, as base64; a part has one record at least.
        """
        if not self._looks_aggregated():
            yield self
            return
        part: list[RawRecord] = []
        part_bytes = 0
        for record in self.records:
            if part and part_bytes + len(record.data) > max_bytes:
                yield Payload(part, part_bytes)
                part, part_bytes = [], 0
            part.append(record)
            part_bytes += len(record.data)
        yield Payload(part, part_bytes)

    def expanded(self, split: Split, max_bytes: int = LINE_BYTES) -> Iterator[Payload]:
        """With every record that begins like a KPL aggregate replaced by what `split` gives for it, in parts, as they are taken.

        A part without records says that the next one takes long. Itself where nothing begins like an aggregate.

        Args:
            split: takes one apart.
            max_bytes: of a part's line; one piece or record may be longer.
        """
        if not self._looks_aggregated():
            yield self
            return
        part: list[RawRecord] = []
        part_bytes = 0
        for record in self.records:
            for piece, piece_bytes in split(record) if _looks_aggregated(record) else _alone(record):
                if part and part_bytes + piece_bytes > max_bytes:
                    yield Payload(part, part_bytes)
                    part, part_bytes = [], 0
                if not piece:
                    yield EMPTY
                part.extend(piece)
                part_bytes += piece_bytes
        yield Payload(part, part_bytes)

    def line(self, millis_behind_latest: int | None) -> bytes:
        """The child's line `processRecords`, in ASCII, with its LF."""
        line = _encoded(self.records, millis_behind_latest)
        if line.isascii():
            return line
        return _encoded([_in_ascii(record) for record in self.records], millis_behind_latest)

    def decoded(self) -> list[Record]:
        """The records with their texts read, for tools and tests; slow."""
        return [
            Record(
                _text(each.data),
                _text(each.partition_key),
                each.sequence_number,
                each.approximate_arrival_timestamp,
                each.sub_sequence_number,
                _schema(each),
            )
            for each in self.records
        ]

    def _looks_aggregated(self) -> bool:
        """Whether any record begins like an aggregate; runs in C for each record, as most streams hold none."""
        try:
            return (_AGGREGATE_PREFIX,) in map(_prefix_of, map(_data_of, self.records))
        except struct.error:  # a text shorter than the prefix
            return any(map(_looks_aggregated, self.records))


EMPTY: Final = Payload((), 0)


def raw_record(record: Record) -> RawRecord:
    """A decoded record as an undecoded one."""
    raw = RawRecord(
        _quoted(record.data),
        _quoted(record.partition_key),
        record.sequence_number,
        record.approximate_arrival_timestamp,
        record.sub_sequence_number,
    )
    return raw if record.schema is None else SchemaRecord.of(raw, raw.data, SchemaTexts.of(record.schema))


def _without_defaults(record: SchemaRecord) -> RawRecord:
    """The record as it was on the line: of one without a schema nothing must be said of schemas."""
    if record.schema_name is not _NO_TEXT:
        return record
    return RawRecord(
        record.data,
        record.partition_key,
        record.sequence_number,
        record.approximate_arrival_timestamp,
        record.sub_sequence_number,
        record.action,
    )


def line_bytes(record: RawRecord) -> int:
    """About what a record takes in a line, rather more; and in memory."""
    return len(record.data) + len(record.partition_key) + LINE_OVERHEAD_BYTES


def _alone(record: RawRecord) -> tuple[Piece, ...]:
    return (((record,), line_bytes(record)),)


def _looks_aggregated(record: RawRecord) -> bool:
    return bytes(record.data).startswith(_AGGREGATE_PREFIX)


def _encoded(records: Sequence[RawRecord], millis_behind_latest: int | None) -> bytes:
    # As the only one of many lines: that way the LF comes without a copy of the whole. A list, as msgspec 0.22 never frees
    # the iterator that it takes of anything else, which was 64 bytes for each batch.
    return _encoder.encode_lines([_Line("processRecords", records, millis_behind_latest)])


def _in_ascii(record: RawRecord) -> RawRecord:
    r"""The record with `\uXXXX` for what is outside ASCII: children read stdin in the encoding of their locale."""
    if bytes(record.partition_key).isascii():
        return record
    return replace(record, partition_key=_quoted(_text(record.partition_key)))


def _quoted(text: str) -> Raw:
    return Raw(encode_basestring_ascii(text).encode("ascii"))


def _schema(record: RawRecord) -> RecordSchema | None:
    if not isinstance(record, SchemaRecord):
        return None
    return RecordSchema(
        _text(record.schema_name),
        _text(record.schema_version_id),
        _text(record.schema_data_format),
        _text(record.schema_definition),
    )


def _text(raw: Raw) -> str:
    """The text; bytes that are no UTF-8 become U+FFFD: one odd key must not stop a shard."""
    try:
        return _text_decoder.decode(raw)
    except (DecodeError, UnicodeDecodeError):
        return str(json.loads(bytes(raw).decode("utf-8", "replace")))


HAS_FAST: Final = find_spec("pybase64") is not None  # an optional extra
# Below this msgspec's single call is the shorter way.
_FAST_FROM_BYTES: Final = 512
_decoder: Final = Decoder(bytes)
_encode: Final[Callable[[bytes], bytes]] = Encoder().encode


class Base64Text:
    """The two ways.

    Args:
        fast: whether pybase64 is used, which must be there then.
    """

    def __init__(self, *, fast: bool = HAS_FAST) -> None:
        self._fast_decode: Callable[[memoryview], bytes] | None = None
        self._fast_encode: Callable[[bytes], bytes] | None = None
        if fast:
            import pybase64  # noqa: PLC0415 - an optional extra

            self._fast_decode = lambda text: pybase64.b64decode(text, validate=True)
            self._fast_encode = pybase64.b64encode

    def decoded(self, text: Raw) -> bytes:
        """The bytes that a quoted text stands for; ValueError where it is none."""
        view = memoryview(text)
        if self._fast_decode is not None and len(view) >= _FAST_FROM_BYTES:
            try:
                return self._fast_decode(view[1:-1])
            except ValueError:
                pass  # JSON may write a slash with a backslash before it; the other reader knows that
        try:
            return _decoder.decode(view)
        except DecodeError as error:
            raise ValueError(str(error)) from error

    def encoded(self, data: bytes) -> Raw:
        """Bytes as a quoted text."""
        if self._fast_encode is not None and len(data) >= _FAST_FROM_BYTES:
            return Raw(b'"%b"' % self._fast_encode(data))
        return Raw(_encode(data))


BASE64: Final = Base64Text()
