"""Batches as binary frames, for a child that announces `frames` in its first status.

A frame is columns, so that both ends run at the speed of C: arrival times and sub-sequence numbers (64 bits), the ends
of all texts (32 bits), indexes of schemas if there are any, then all keys, sequence numbers and data.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import attrgetter
from struct import error, pack, unpack_from
from typing import Final, cast, overload

from kcl_protocol.codec import decode_frame_header, dump_line, schema_fields
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.messages import FrameHeader, ProcessRecords, Record, RecordSchema

NO_ARRIVAL: Final = -(2**63)
_NO_SCHEMA: Final = -1
_NUMBERS_BYTES: Final = 16  # of each record: arrival and sub-sequence number
_TEXTS: Final = 3  # of each record: partition key, sequence number, data

# Data, partition key, sequence number, arrival, sub-sequence number, schema.
Row = tuple[bytes, str | None, str, int | None, int, RecordSchema | None]
RowColumns = tuple[
    Iterable[bytes],
    Iterable[str | None],
    Iterable[str],
    Iterable[int | None],
    Iterable[int],
    Iterable[RecordSchema | None],
]


@dataclass(frozen=True, slots=True)
class Columns:
    """What a frame is made of, by record. Keys are UTF-8. `schemas` is empty if no record has one."""

    data: Sequence[bytes]
    partition_keys: Sequence[bytes | None]
    sequence_numbers: Sequence[str]
    arrivals_ms: Sequence[int | None]
    sub_sequence_numbers: Sequence[int]
    schemas: Sequence[RecordSchema | None] = ()

    @classmethod
    def joined(cls, parts: Iterable[Columns]) -> Columns:
        """One batch after the other. ValueError if some have schemas and others not."""
        parts = list(parts)
        if len({bool(part.schemas) for part in parts}) > 1:
            raise ValueError("some have schemas, others not")
        columns = zip(*map(attrgetter(*cls.__slots__), parts), strict=True)
        return cls(*(list(chain.from_iterable(column)) for column in columns))


def encode_frame(columns: Columns, millis_behind_latest: int | None, complete_ms: int | None = None) -> bytes:
    """The header line and its frame.

    Raises:
        ValueError: a sequence number is not ASCII, or some have no key and others an empty one.
        OverflowError: a number does not fit, or the frame has more than 2 GiB.
    """
    count, schemas = len(columns.data), dict[RecordSchema, int]()
    arrivals, (keys, keyless) = columns.arrivals_ms, _key_texts(columns.partition_keys)
    if None in arrivals:
        arrivals = [NO_ARRIVAL if each is None else each for each in arrivals]
    indexes = [
        _NO_SCHEMA if each is None else schemas.setdefault(each, len(schemas)) for each in columns.schemas
    ]
    texts_at = count * _NUMBERS_BYTES + (_TEXTS * count + 1) * 4 + len(indexes) * 4
    texts = (keys, columns.sequence_numbers, columns.data)
    lengths = chain.from_iterable(map(len, each) for each in texts)
    ends = list(accumulate(lengths, initial=texts_at))
    fields: dict[str, object] = {
        "action": ProcessRecords.action,
        "frame": ends[-1],
        "count": count,
        "millisBehindLatest": millis_behind_latest,
    }
    if complete_ms is not None:
        fields["completeMillis"] = complete_ms
    if schemas:
        fields["schemas"] = list(map(schema_fields, schemas))
    if keyless:
        fields["keyless"] = True
    parts = (
        dump_line(fields),
        _packed("q", arrivals),
        _packed("q", columns.sub_sequence_numbers),
        _packed("i", ends),
        _packed("i", indexes),
        b"".join(keys),
        "".join(columns.sequence_numbers).encode("ascii"),
    )
    return b"".join(chain(parts, columns.data))


def _key_texts(keys: Sequence[bytes | None]) -> tuple[Sequence[bytes], bool]:
    """As they stand in a frame, and whether an empty one stands for none."""
    if None not in keys:
        return cast("Sequence[bytes]", keys), False
    if b"" in keys:
        raise ValueError("some have no key, others an empty one")
    return [each or b"" for each in keys], True


def decode_frame(data: bytes) -> tuple[Frame, int | None]:
    """The records of `encode_frame`, and `millis_behind_latest`. Raises RemoteProtocolError."""
    line, _, body = data.partition(b"\n")
    header = decode_frame_header(line)
    return Frame(header, body), header.millis_behind_latest


def framed_records(header: FrameHeader, body: bytes) -> ProcessRecords:
    """For `ChildSide`. Raises RemoteProtocolError."""
    return ProcessRecords(Frame(header, body), header.millis_behind_latest, header.complete_ms)


class Frame(Sequence[Record]):
    """Its records are made when they are looked at. `ends`: of the texts in `body`.

    Raises:
        RemoteProtocolError: the frame is cut off, or does not fit its header.
    """

    __slots__ = ("_count", "_keys", "_schemas", "body", "ends", "keyless")

    def __init__(self, header: FrameHeader, body: bytes) -> None:
        self._count = count = header.count
        self.body, self.keyless = body, header.keyless
        ends_at = count * _NUMBERS_BYTES
        schemas_at = ends_at + (_TEXTS * count + 1) * 4
        texts_at = schemas_at + (4 * count if header.schemas else 0)
        if len(body) != header.size_bytes or len(body) < texts_at:
            needed = f"{header.size_bytes} by its header, {texts_at} at least for {count} records"
            raise RemoteProtocolError(f"the daemon's frame has {len(body)} bytes, but needs {needed}")
        self.ends: tuple[int, ...] = unpack_from(f"<{_TEXTS * count + 1}i", body, ends_at)
        if (self.ends[0], self.ends[-1]) != (texts_at, len(body)) or sorted(self.ends) != list(self.ends):
            raise RemoteProtocolError(
                f"the texts of the daemon's frame are not one after the other from {texts_at} to {len(body)}"
            )
        if not body[self.ends[count] : self.ends[2 * count]].isascii():
            raise RemoteProtocolError("a sequence number in the daemon's frame is not ASCII")
        in_place = body[texts_at : self.ends[count]].isascii() and not self.keyless
        self._keys = None if in_place else self._decoded_keys()
        self._schemas = self._by_record(header.schemas, schemas_at) if header.schemas else None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        rows = list(self.rows())[index]
        return list(map(_record, rows)) if isinstance(rows, list) else _record(rows)

    def __iter__(self) -> Iterator[Record]:
        return map(_record, self.rows())

    def columns(self) -> RowColumns:
        """The parts of a `Row` by record, made in C; the last one may be longer."""
        count, head = self._count, self.body[: self.ends[2 * self._count]].decode("latin-1")
        return (
            map(self.body.__getitem__, self._places(2 * count)),
            map(head.__getitem__, self._places(0)) if self._keys is None else self._keys,
            map(head.__getitem__, self._places(count)),
            self.arrivals_ms,
            cast("tuple[int, ...]", unpack_from(f"<{count}q", self.body, 8 * count)),
            repeat(None) if self._schemas is None else self._schemas,
        )

    def rows(self) -> Iterator[Row]:
        return zip(*self.columns(), strict=False)

    def _places(self, first: int) -> Iterator[slice]:
        ends = self.ends
        return map(slice, ends[first : first + self._count], ends[first + 1 :])

    @property
    def arrivals_ms(self) -> Sequence[int | None]:
        arrivals: tuple[int, ...] = unpack_from(f"<{self._count}q", self.body)
        if NO_ARRIVAL not in arrivals:
            return arrivals
        return [None if each == NO_ARRIVAL else each for each in arrivals]

    def _decoded_keys(self) -> Sequence[str | None]:
        try:
            keys = [self.body[place].decode() for place in self._places(0)]
            return [each or None for each in keys] if self.keyless else keys
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a partition key in the daemon's frame is no UTF-8: {error}") from None

    def _by_record(self, schemas: Sequence[RecordSchema], at: int) -> list[RecordSchema | None]:
        known = {_NO_SCHEMA: None, **dict(enumerate(schemas))}
        try:
            return [known[index] for index in unpack_from(f"<{self._count}i", self.body, at)]
        except KeyError as error:
            raise RemoteProtocolError(
                f"a record in the daemon's frame has schema {error}, but there are {len(schemas)}"
            ) from None


class FrameIndex:
    """Finds records in what `encode_frame` made, without copying the others."""

    __slots__ = ("_at", "_count", "_data", "_keyless", "_schemas")

    def __init__(self, data: bytes) -> None:
        self._at = data.index(b"\n") + 1
        header = decode_frame_header(data[: self._at - 1])
        self._data, self._count, self._schemas = data, header.count, header.schemas
        self._keyless = header.keyless

    def find(self, sequence_number: str, sub_sequence_number: int) -> Record | None:
        wanted = int(sequence_number), sub_sequence_number
        index = bisect_left(range(self._count), wanted, key=self._position)
        if index == self._count or self._position(index) != wanted:
            return None
        arrival_ms, key = self._integer("<q", 8 * index), self._text(0, index).decode()
        return Record(
            b64encode(self._text(2, index)).decode("ascii"),
            None if self._keyless and not key else key,
            sequence_number,
            None if arrival_ms == NO_ARRIVAL else arrival_ms,
            sub_sequence_number,
            self._schema(index),
        )

    def _position(self, index: int) -> tuple[int, int]:
        return int(self._text(1, index)), self._integer("<q", 8 * (self._count + index))

    def _text(self, column: int, index: int) -> bytes:
        place = self._count * _NUMBERS_BYTES + 4 * (column * self._count + index)
        begin, end = unpack_from("<2i", self._data, self._at + place)
        return self._data[self._at + begin : self._at + end]

    def _schema(self, index: int) -> RecordSchema | None:
        if not self._schemas:
            return None
        place = self._count * _NUMBERS_BYTES + (_TEXTS * self._count + 1) * 4
        known = self._integer("<i", place + 4 * index)
        return None if known == _NO_SCHEMA else self._schemas[known]

    def _integer(self, kind: str, place: int) -> int:
        number: int = unpack_from(kind, self._data, self._at + place)[0]
        return number


def _record(row: Row) -> Record:
    return Record(b64encode(row[0]).decode("ascii"), *row[1:])


def _packed(kind: str, numbers: Sequence[int | None]) -> bytes:
    try:
        return pack(f"<{len(numbers)}{kind}", *numbers)
    except error as overflow:
        raise OverflowError(str(overflow)) from None
