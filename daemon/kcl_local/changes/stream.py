"""Its youngest shards cover every hash of a partition key exactly once."""

from __future__ import annotations

import hashlib
import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import add
from random import Random  # noqa: TID251 - from a seed, so that a run can be repeated
from typing import Final, cast

import orjson

from kcl_local.kinesis.arguments import MAX_HASH, MIB, malformed, not_found
from kcl_local.kinesis.stream import even_starts

Item = Mapping[str, Mapping[str, object]]
"""As in DynamoDB's JSON: `{"id": {"S": "a"}}`."""

VIEW_TYPES: Final = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
_SMALLEST: Final = 1000 * 10**17  # 21 digits; one more after two and a half hours
_PER_SECOND: Final = 10**17


@dataclass(frozen=True, slots=True)
class StreamsOptions:
    """Defaults are the service's.

    A life is up to `life_jitter` of it longer or shorter. A list shows a closed shard as open for `closing_lag_s`, and
    a child after `children_lag_s`. A stream is ENABLING and DISABLING for `changing_s`. Each `empty_every`th answer for a
    shard is empty.
    """

    shard_life_s: float = 4 * 3600.0
    life_jitter: float = 0.1
    retention_s: float = 24 * 3600.0
    iterator_ttl_s: float = 15 * 60.0
    changing_s: float = 0.0
    closing_lag_s: float = 0.0
    children_lag_s: float = 0.0
    empty_every: int = 0
    answer_bytes_max: int = MIB
    seed: int = 0


DEFAULTS: Final = StreamsOptions()


class ChangeLog:
    """Each as the two halves of its JSON. Indices are valid until the next trim."""

    __slots__ = ("_ends", "_heads", "_seconds", "_tails", "_trimmed_bytes", "numbers", "trimmed_to")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.trimmed_to = 0
        self._seconds = array("d")
        self._heads: list[bytes] = []
        self._tails: list[bytes] = []
        self._ends = array("Q")  # total bytes up to and including each change
        self._trimmed_bytes = 0

    def append(self, number: int, at_s: float, size_bytes: int, head: bytes, tail: bytes = b"") -> None:
        self.numbers.append(number)
        self._seconds.append(at_s)
        self._heads.append(head)
        self._tails.append(tail)
        self._ends.append(self._bytes_before(len(self._ends)) + size_bytes)

    def trim(self, before_s: float) -> None:
        count = bisect_left(self._seconds, before_s)
        if count:
            self._trimmed_bytes, self.trimmed_to = self._ends[count - 1], self.numbers[count - 1] + 1
            for column in (self.numbers, self._seconds, self._heads, self._tails, self._ends):
                del column[:count]

    def first_at(self, timestamp_s: float) -> int | None:
        index = bisect_left(self._seconds, timestamp_s, key=int)
        return self.numbers[index] if index < len(self.numbers) else None

    def page(self, since: int, limit: int, bytes_max: int) -> tuple[int, int]:
        """As indices. A page has at least one change if there is any."""
        start = bisect_left(self.numbers, since)
        by_bytes = bisect_right(self._ends, self._bytes_before(start) + bytes_max, lo=start)
        return start, min(max(by_bytes, start + 1), start + limit, len(self.numbers))

    def json(self, start: int, end: int) -> bytes:
        return b",".join(map(add, self._heads[start:end], self._tails[start:end]))

    def _bytes_before(self, index: int) -> int:
        return self._ends[index - 1] if index else self._trimmed_bytes


@dataclass(slots=True, eq=False)
class Shard:
    """Hashes are inclusive, times in epoch seconds; `last`: the ending sequence number."""

    shard_id: str
    parent_id: str | None
    start_hash: int
    end_hash: int
    opened_s: float
    first: int
    last: int | None = None
    closed_s: float | None = None
    changes: ChangeLog = field(default_factory=ChangeLog)
    reads: int = 0

    @property
    def is_open(self) -> bool:
        return self.last is None


class Stream:
    """From being enabled until all of it is trimmed."""

    def __init__(
        self,
        table_arn: str,
        label: str,
        *,
        view_type: str,
        keys: Sequence[str],
        shards: int,
        created_s: float,
        options: StreamsOptions,
    ) -> None:
        if view_type not in VIEW_TYPES:
            raise malformed(f"StreamViewType must be one of {', '.join(VIEW_TYPES)}, not {view_type!r:.80}")
        self.table_arn = table_arn
        self.table = table_arn.rpartition("/")[2]
        self.label = label
        self.arn = f"{table_arn}/stream/{label}"
        self.view_type = view_type
        self.keys = tuple(keys)
        self.created_s = created_s
        self.disabled_s: float | None = None
        self.trimmed_before_s = 0.0
        self.now_s = created_s
        self.last_number = 0
        self._ticks = 0
        self._options = options
        self._chance = Random(f"{options.seed}{self.arn}")  # noqa: S311 # nosec B311
        self._shards: dict[str, Shard] = {}
        self._youngest: list[Shard] = []
        self._due: list[tuple[float, str]] = []
        self._closed_ones: deque[Shard] = deque()
        starts = even_starts(shards)
        for start, end in zip(starts, [*(each - 1 for each in starts[1:]), MAX_HASH], strict=True):
            self._youngest.append(self._open(start, end, None, created_s))

    @property
    def shards(self) -> list[Shard]:
        return [self._shards[shard_id] for shard_id in sorted(self._shards)]

    @property
    def open_shards(self) -> list[Shard]:
        return [shard for shard in self._youngest if shard.is_open]

    def shard(self, shard_id: str) -> Shard:
        shard = self._shards.get(shard_id)
        if shard is None:
            raise not_found(f"shard {shard_id:.80} of stream {self.arn} does not exist (any more)")
        return shard

    def horizon_s(self) -> float:
        return max(self.now_s - self._options.retention_s, self.trimmed_before_s)

    def advance(self, now_s: float) -> None:
        while self._due and self._due[0][0] <= now_s:
            at_s, shard_id = heapq.heappop(self._due)
            if shard_id in self._shards and self._shards[shard_id].is_open:
                self.roll(shard_id, at_s)
        self.now_s = now_s
        horizon_s = self.horizon_s()
        while self._closed_ones and (self._closed_ones[0].closed_s or 0.0) < horizon_s:
            del self._shards[self._closed_ones.popleft().shard_id]

    def roll(self, shard_id: str, at_s: float) -> list[str]:
        shard = self._closed(shard_id, at_s)
        return self._succeed(shard, at_s, [(shard.start_hash, shard.end_hash)])

    def split(self, shard_id: str, at_s: float) -> list[str]:
        shard = self._closed(shard_id, at_s)
        middle = (shard.start_hash + shard.end_hash) // 2
        return self._succeed(shard, at_s, [(shard.start_hash, middle), (middle + 1, shard.end_hash)])

    def end(self, shard_id: str, at_s: float) -> list[str]:
        self._closed(shard_id, at_s)
        return []

    def disable(self, now_s: float) -> None:
        self.disabled_s = now_s
        for shard in self.open_shards:
            self._closed(shard.shard_id, now_s)

    def status(self) -> str:
        since_s, words = self.created_s, ("ENABLING", "ENABLED")
        if self.disabled_s is not None:
            since_s, words = self.disabled_s, ("DISABLING", "DISABLED")
        return words[self.now_s >= since_s + self._options.changing_s]

    def shows_open(self, shard: Shard) -> bool:
        return shard.closed_s is None or self.now_s < shard.closed_s + self._options.closing_lag_s

    def shows(self, shard: Shard) -> bool:
        return shard.parent_id is None or self.now_s >= shard.opened_s + self._options.children_lag_s

    def next_number(self) -> int:
        self._ticks += 1
        elapsed_s = max(0, int(self.now_s - self.created_s))
        self.last_number = max(self.last_number + 1, _SMALLEST + elapsed_s * _PER_SECOND + self._ticks)
        return self.last_number

    def holder(self, partition_key: object) -> Shard:
        digest = hashlib.md5(orjson.dumps(partition_key), usedforsecurity=False).digest()
        place = bisect_right(self._youngest, int.from_bytes(digest), key=lambda each: each.start_hash) - 1
        found = self._youngest[place]
        if not found.is_open:
            self._succeed(found, self.now_s, [(found.start_hash, found.end_hash)])
        return self._youngest[place]

    def _open(self, start_hash: int, end_hash: int, parent: Shard | None, at_s: float) -> Shard:
        shard_id = f"shardId-{int(at_s * 1000):020}-{self._chance.getrandbits(32):08x}"
        shard = Shard(
            shard_id, parent.shard_id if parent else None, start_hash, end_hash, at_s, self.next_number()
        )
        self._shards[shard_id] = shard
        life_s = self._options.shard_life_s * (1 + self._options.life_jitter * self._chance.uniform(-1, 1))
        heapq.heappush(self._due, (at_s + life_s, shard_id))
        return shard

    def _closed(self, shard_id: str, at_s: float) -> Shard:
        shard = self.shard(shard_id)
        if not shard.is_open:
            raise malformed(f"shard {shard_id} of stream {self.arn} is closed already")
        shard.last, shard.closed_s = self.next_number(), at_s
        self._closed_ones.append(shard)
        return shard

    def _succeed(self, parent: Shard, at_s: float, ranges: Sequence[tuple[int, int]]) -> list[str]:
        place = self._youngest.index(parent)
        children = [self._open(start, end, parent, at_s) for start, end in ranges]
        self._youngest[place : place + 1] = children
        return [child.shard_id for child in children]


def label_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")


def item_bytes(item: Item) -> int:
    """As DynamoDB counts, without what it adds for lists and maps."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Mapping[str, object]) -> int:
    ((kind, inner),) = value.items()
    match kind, inner:
        case "M", dict():
            return item_bytes(cast("Item", inner))
        case "L", list():
            return sum(map(_value_bytes, cast("list[Mapping[str, object]]", inner)))
        case (("SS" | "NS" | "BS"), list()):
            return sum(len(str(each)) for each in inner)
        case (("S" | "N" | "B"), _):
            return len(str(inner).encode())
        case _:
            return 1
