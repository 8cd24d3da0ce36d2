"""Lines on their way into a stream: keys, aggregates, requests of PutRecords."""

from __future__ import annotations

import gzip
import json
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, cast

from kcl_daemon.leases.lease import HashRange
from kcl_daemon.records.kpl import Aggregate, hash_of_key

KEY_CHARACTERS_MOST: Final = 256
RECORD_BYTES_MOST: Final = 10 * 2**20
"""With the key, where the stream allows it; a stream without a setting takes a tenth."""
REQUEST_RECORDS_MOST: Final = 500
# The service takes 10 MiB. But a shard takes one a second: what is more is mostly refused and sent again.
_REQUEST_BYTES: Final = 4 * 2**20
LARGE_BYTES: Final = 2**20
"""A stream may refuse a larger record, and then its whole request: it goes alone."""
_AGGREGATE_BYTES: Final = 50 * 1024  # KPL: AggregationMaxSize


class BadLine(ValueError):
    """The message says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """`place` is for people: `orders.txt, line 7`."""

    place: str
    data: bytes


@dataclass(frozen=True, slots=True)
class KeyedLine:
    place: str
    data: bytes
    partition_key: str


@dataclass(frozen=True, slots=True)
class Entry:
    partition_key: str
    data: bytes
    lines: Sequence[KeyedLine]


def size_bytes_of(record: KeyedLine | Entry) -> int:
    return len(record.data) + len(record.partition_key.encode())


@dataclass(frozen=True, slots=True)
class PutResult:
    shard_id: str
    error: str = ""


class OpenShard(Protocol):
    @property
    def shard_id(self) -> str: ...

    @property
    def hash_range(self) -> HashRange: ...


def key_in(data: bytes, path: Sequence[str]) -> str:
    """A number as it is written."""
    name = ".".join(path)
    try:
        # As text, because 1.10 must not become 1.1.
        value: object = json.loads(data, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"it is no JSON, so it has no key {name}: {error}") from None
    for field in path:
        if not isinstance(value, dict) or field not in value:
            raise BadLine(f"its JSON has no field {name}")
        value = cast("dict[str, object]", value)[field]
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        raise BadLine(f"its field {name} is neither a text nor a number")
    return value


def checked(line: Line, *, in_base64: bool) -> Line:
    if not line.data:
        raise BadLine("it is empty")
    if len(line.data) > RECORD_BYTES_MOST:
        raise BadLine(f"it is too long: more than {RECORD_BYTES_MOST} bytes")
    try:
        return replace(line, data=a2b_base64(line.data, strict_mode=True)) if in_base64 else line
    except ValueError as error:
        raise BadLine(f"it is no base64: {error}") from None


def keyed(line: Line, partition_key: str, *, packed: bool) -> KeyedLine:
    if not 1 <= len(partition_key) <= KEY_CHARACTERS_MOST:
        raise BadLine(f"its key has {len(partition_key)} characters; 1 to {KEY_CHARACTERS_MOST} are possible")
    try:
        partition_key.encode()
    except UnicodeEncodeError:
        raise BadLine("its key is no valid text") from None
    data = gzip.compress(line.data, 6, mtime=0) if packed else line.data
    made = KeyedLine(line.place, data, partition_key)
    if size_bytes_of(made) > RECORD_BYTES_MOST:
        raise BadLine(
            f"it is too long: {size_bytes_of(made)} bytes with its key, {RECORD_BYTES_MOST} are possible"
        )
    return made


def plain(lines: Iterable[KeyedLine]) -> Iterator[Entry]:
    for line in lines:
        yield Entry(line.partition_key, line.data, (line,))


def aggregated(lines: Iterable[KeyedLine], shards: Sequence[OpenShard]) -> Iterator[Entry]:
    """Of one shard, in order. A large or lone line is a record of its own, as with the KPL."""
    filling: dict[str, tuple[Aggregate, list[KeyedLine]]] = {}
    for line in lines:
        shard_id = shard_of(line, shards)
        aggregate, few = filling.get(shard_id) or (Aggregate(), [])
        if (
            few
            and aggregate.size_bytes + aggregate.added_bytes(line.partition_key, line.data) > _AGGREGATE_BYTES
        ):
            yield _entry(aggregate, few)
            aggregate, few = Aggregate(), []
        aggregate.add(line.partition_key, line.data)
        few.append(line)
        filling[shard_id] = aggregate, few
    for aggregate, few in filling.values():
        yield _entry(aggregate, few)


def _entry(aggregate: Aggregate, lines: Sequence[KeyedLine]) -> Entry:
    if len(lines) == 1:
        return Entry(lines[0].partition_key, lines[0].data, lines)
    # The first key leads to the shard of all.
    return Entry(lines[0].partition_key, aggregate.data(), lines)


def shard_of(line: KeyedLine, shards: Sequence[OpenShard]) -> str:
    """Empty in the middle of a reshard."""
    hashed = hash_of_key(line.partition_key.encode())
    return next((each.shard_id for each in shards if _has(each.hash_range, hashed)), "")


def strays(entry: Entry, hash_range: HashRange) -> list[KeyedLine]:
    """Lines of an aggregate whose shard is another since a reshard: consumers drop them."""
    if len(entry.lines) == 1:
        return []
    return [line for line in entry.lines if not _has(hash_range, hash_of_key(line.partition_key.encode()))]


def _has(hash_range: HashRange, hashed: int) -> bool:
    return hash_range.start <= hashed <= hash_range.end


def requests(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    request: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        large = size_bytes_of(entry) > LARGE_BYTES
        if request and (
            large
            or len(request) == REQUEST_RECORDS_MOST
            or size_bytes + size_bytes_of(entry) > _REQUEST_BYTES
        ):
            yield request
            request, size_bytes = [], 0
        request.append(entry)
        size_bytes += size_bytes_of(entry)
        if large:
            yield request
            request, size_bytes = [], 0
    if request:
        yield request


class Lines:
    """Of a line beyond `RECORD_BYTES_MOST` only the beginning is kept, to refuse it."""

    def __init__(self, name: str = "") -> None:
        self._before = f"{name}, " if name else ""
        self._number = 0
        self._rest = bytearray()

    def fed(self, piece: bytes) -> list[Line]:
        *ended, rest = piece.split(b"\n")
        found: list[Line] = []
        for part in ended:
            self._keep(part)
            found.append(self._line())
        self._keep(rest)
        return found

    def end(self) -> list[Line]:
        return [self._line()] if self._rest else []

    def _keep(self, part: bytes) -> None:
        self._rest += part[: RECORD_BYTES_MOST + 1 - len(self._rest)]

    def _line(self) -> Line:
        self._number += 1
        data, self._rest = bytes(self._rest), bytearray()
        return Line(f"{self._before}line {self._number}", data.removesuffix(b"\r"))
