"""The segments of a snapshot as shards, and what follows them.

A segment is a closed shard with no parents. Its children are the shards of the stream that were open when the snapshot
began, which wait for all segments. So lineage, hand-overs and clean-up know nothing of snapshots.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Final

from kcl_daemon.leases.lease import Lease, StreamIdentity
from kcl_daemon.shards.lineage import NO_HASH_KEYS, Segment, Shard, children_by_parent, created_ms, segment_of
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import TRIM_HORIZON

# Clocks differ, and a scan may read an item as it was a moment ago.
_MARGIN_MS: Final = 10 * 60_000
_ORDINAL_DIGITS: Final = 18
_RUN: Final = 10**9
_RUN_MS: Final = 10
# Python's int() takes 4,300 digits.
MOST_DIGITS: Final = 4_300 - 1 - _ORDINAL_DIGITS
_MARK: Final = b"\x01"  # so that a key may begin with a zero byte
_UNIT_BYTES: Final = 8_192  # of an eventually consistent read
_SEGMENT_BYTES: Final = 2**30
_SEGMENT_UNITS: Final = 16
_SEGMENTS_MOST: Final = 32  # each row of a shard that follows names them all
_WISHED_HOURS: Final = 6

ItemKey = Mapping[str, Mapping[str, str]]


def segment_shards(begun_ms: int, count: int) -> tuple[Shard, ...]:
    return _shards(Segment(begun_ms, 0, count).all)


def _shards(segments: Iterable[Segment]) -> tuple[Shard, ...]:
    return tuple(Shard(each.shard_id, NO_HASH_KEYS, frozenset(), 0, 0) for each in segments)


def segment_leases(begun_ms: int, count: int, stream: StreamIdentity | None = None) -> list[Lease]:
    return [new_lease(shard, TRIM_HORIZON, stream) for shard in segment_shards(begun_ms, count)]


def snapshot_in(leases: Iterable[Lease]) -> Segment | None:
    """The first segment of the latest snapshot that has leases."""
    begun = [found for lease in leases if (found := segment_of(lease.shard_id)) is not None]
    return None if not begun else replace(max(begun, key=lambda each: each.begun_ms), index=0)


def with_segments(shards: Sequence[Shard], leases: Iterable[Lease]) -> tuple[Shard, ...]:
    """The shards of the stream that count, after the segments that `leases` have; without such leases: as they are.

    Until a shard of the stream has a lease, all segments are there: their leases are being created.
    """
    known = {lease.shard_id for lease in leases}
    first = snapshot_in(leases)
    if first is None:
        return tuple(shards)
    begins = all(segment_of(each) is not None for each in known)
    segments = [each for each in first.all if begins or each.shard_id in known]
    return (*_shards(segments), *shards_since(shards, first))


def shards_since(shards: Sequence[Shard], segment: Segment) -> tuple[Shard, ...]:
    """Those that can hold changes since the snapshot began; the first of them follow all its segments."""
    since_ms, children = segment.begun_ms - _MARGIN_MS, children_by_parent(shards)
    count = {
        shard.shard_id
        for shard in shards
        if not (after := children.get(shard.shard_id))
        or any((created_ms(each) or inf) >= since_ms for each in after)
    }
    parents = frozenset(each.shard_id for each in segment.all)
    return tuple(
        shard if shard.parent_shard_ids & count else replace(shard, parent_shard_ids=parents)
        for shard in shards
        if shard.shard_id in count
    )


def first_shards(shards: Sequence[Shard], segment: Segment) -> tuple[Shard, ...]:
    return tuple(each for each in shards_since(shards, segment) if segment.shard_id in each.parent_shard_ids)


def segments_for(size_bytes: int, read_units: int) -> int:
    return max(1, min(_SEGMENTS_MOST, -(-size_bytes // _SEGMENT_BYTES), read_units // _SEGMENT_UNITS))


def hours_of(size_bytes: int, read_units: int) -> float:
    return size_bytes / _UNIT_BYTES / read_units / 3_600


def units_for(size_bytes: int) -> int:
    """Read units a second with which a scan takes a quarter of what the stream keeps."""
    return ceil(hours_of(size_bytes, 1) / _WISHED_HOURS)


def ordinal_of(begun_ms: int, now_ms: int, before: int, items: int) -> int:
    """After which a reader that begins now goes on; `items` were read before, in this order.

    A resumed scan may find fewer items, or more, so its numbers are above all given before: `before` is the last that
    it knows. The last nine digits count the items.
    """
    return max((now_ms - begun_ms) // _RUN_MS + 1, before // _RUN + 1) * _RUN + items


def items_of(ordinal: int) -> int:
    return ordinal % _RUN


def position_number(ordinal: int, key: bytes, digits: int) -> str:
    """It grows with `ordinal`, and has the item's key, so that a scan can go on after it.

    `digits` must not shrink within a segment, and be enough for the key (`digits_of`); at most `MOST_DIGITS`.
    """
    return f"1{ordinal:0{_ORDINAL_DIGITS}}{int.from_bytes(_MARK + key):0{digits}}"


def digits_of(key: bytes) -> int:
    return -(-(len(key) + 1) * 2409 // 1000)  # log10(256) is 2.4082


def digits_in(number: str) -> int:
    return len(number) - 1 - _ORDINAL_DIGITS


def position_of(number: str) -> tuple[int, bytes]:
    """The ordinal and the key. ValueError: it is not the number of a segment."""
    if not (number.startswith("1") and number.isascii() and number.isdecimal() and digits_in(number) > 0):
        raise ValueError(f"not a position in a segment: {number:.80}")
    key = int(number[1 + _ORDINAL_DIGITS :])
    marked = key.to_bytes((key.bit_length() + 7) // 8)
    if not marked.startswith(_MARK):
        raise ValueError(f"not a position in a segment: {number:.80}")
    return int(number[1 : 1 + _ORDINAL_DIGITS]), marked[1:]


def beginning(number: str) -> str:
    """Before all items; its numbers have as many digits."""
    return position_number(0, b"", digits_in(number))


def items_at(shard_id: str, number: str) -> int | None:
    """How many items a segment had given at its checkpoint."""
    if segment_of(shard_id) is None:
        return None
    try:
        return items_of(position_of(number)[0])
    except ValueError:
        return None


def key_bytes(key: ItemKey, names: Sequence[str]) -> bytes:
    """Without the names; `key` as DynamoDB's JSON has it."""
    parts = list[bytes]()
    for name in names:
        ((kind, value),) = key[name].items()
        data = b64decode(value) if kind == "B" else value.encode("utf-8", "surrogatepass")
        parts.append(kind.encode() + len(data).to_bytes(2) + data)
    return b"".join(parts)


def key_of(data: bytes, names: Sequence[str]) -> ItemKey:
    """ValueError: it has other keys than the table."""
    key, at = dict[str, Mapping[str, str]](), 0
    for name in names:
        kind, size = data[at : at + 1].decode("ascii"), int.from_bytes(data[at + 1 : at + 3])
        value, at = data[at + 3 : at + 3 + size], at + 3 + size
        key[name] = {
            kind: b64encode(value).decode() if kind == "B" else value.decode("utf-8", "surrogatepass")
        }
    if at != len(data) or not all("".join(each) in {"S", "N", "B"} for each in key.values()):
        raise ValueError("the position has another key than the table")
    return key
