"""Open shards cover every hash exactly once; sequence numbers grow from parent to child.

A tick is a small counter; a sequence number is made of it and the shard's index.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kcl_local import REGION
from kcl_local.kinesis.arguments import MAX_HASH, ReadLimits, invalid_argument, not_found

_SMALLEST: Final = 495 * 10**53
_DIGITS_MAX: Final = 56
_SHARD_BITS: Final = 24
_TICK_BITS: Final = 56
_TICK_MASK: Final = 2**_TICK_BITS - 1
_SHARD_MASK: Final = 2**_SHARD_BITS - 1
_WINDOW_S: Final = 1.0
ACCOUNT_ID: Final = "123456789012"
HOUR_S: Final = 3600


class SequenceNumbers:
    """56 digits. A later model has greater numbers, so an old checkpoint never fits a new stream."""

    def __init__(self, started_s: float) -> None:
        self._base = _SMALLEST + (int(started_s * 1000) << (_TICK_BITS + _SHARD_BITS))
        self._last_tick = 0

    def next_tick(self) -> int:
        self._last_tick += 1
        return self._last_tick

    def text(self, tick: int, shard_index: int) -> str:
        return str(self._base + (tick << _SHARD_BITS) + shard_index)

    def tick_of(self, text: str, shard_index: int) -> int | None:
        """None if this shard cannot have issued the number."""
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            return None
        offset = int(text) - self._base
        tick = offset >> _SHARD_BITS
        belongs = (
            offset > 0 and offset & _SHARD_MASK == shard_index and tick <= min(self._last_tick, _TICK_MASK)
        )
        return tick if belongs else None


@dataclass(frozen=True, slots=True)
class NewRecord:
    """`data` is base64; `size_bytes` is key and data. Without a key there is no hash."""

    key_hash: int | None
    partition_key: str | None
    data: str
    size_bytes: int


class RecordLog:
    """In order of arrival. Indices are valid until the next trim."""

    __slots__ = ("_arrivals", "_data", "_ends", "_keys", "_ticks", "_trimmed_bytes", "_trimmed_tick")

    def __init__(self) -> None:
        self._ticks = array("Q")
        self._arrivals = array("d")
        self._keys: list[str | None] = []
        self._data: list[str] = []
        self._ends = array("Q")  # total bytes up to and including each record
        self._trimmed_bytes = 0
        self._trimmed_tick = 0

    def __len__(self) -> int:
        return len(self._ticks)

    def append(self, tick: int, arrival_s: float, record: NewRecord) -> None:
        """Ticks must rise and arrivals, in epoch seconds of whole milliseconds, must not fall."""
        self._ticks.append(tick)
        self._arrivals.append(arrival_s)
        self._keys.append(record.partition_key)
        self._data.append(record.data)
        self._ends.append(self._bytes_before(len(self._ends)) + record.size_bytes)

    def trim(self, before_s: float) -> None:
        count = bisect_left(self._arrivals, before_s)
        if not count:
            return
        self._trimmed_bytes = self._ends[count - 1]
        self._trimmed_tick = self._ticks[count - 1]
        for column in (self._ticks, self._arrivals, self._keys, self._data, self._ends):
            del column[:count]

    def may_hold(self, tick: int) -> bool:
        index = bisect_left(self._ticks, tick)
        return tick <= self._trimmed_tick or (index < len(self) and self._ticks[index] == tick)

    def first_after(self, tick: int) -> int:
        return bisect_right(self._ticks, tick)

    def last_tick_before(self, timestamp_s: float) -> int:
        index = bisect_left(self._arrivals, timestamp_s)
        return self._ticks[index - 1] if index else 0

    def end_of_page(self, start: int, count_max: int, bytes_max: int) -> int:
        """A page has at least one record."""
        by_bytes = bisect_right(self._ends, self._bytes_before(start) + bytes_max, lo=start)
        return min(max(by_bytes, start + 1), start + count_max, len(self))

    def size_bytes(self, start: int, end: int) -> int:
        return self._bytes_before(end) - self._bytes_before(start)

    def arrival_s(self, index: int) -> float:
        return self._arrivals[index]

    def tick(self, index: int) -> int:
        return self._ticks[index]

    def columns(self, start: int, end: int) -> Iterator[tuple[int, float, str | None, str]]:
        span = slice(start, end)
        return zip(self._ticks[span], self._arrivals[span], self._keys[span], self._data[span], strict=True)

    def _bytes_before(self, index: int) -> int:
        return self._ends[index - 1] if index else self._trimmed_bytes


@dataclass(slots=True)
class ReadTraffic:
    _answers: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    _refuse_until_s: float = 0.0

    def allows(self, now_s: float, limits: ReadLimits) -> bool:
        while self._answers and self._answers[0][0] <= now_s - _WINDOW_S:
            self._answers.popleft()
        return now_s >= self._refuse_until_s and len(self._answers) < limits.reads_per_s

    def count(self, now_s: float, size_bytes: int, limits: ReadLimits) -> None:
        self._answers.append((now_s, size_bytes))
        recent_bytes = sum(size for _, size in self._answers)
        if recent_bytes > limits.bytes_per_s:
            self._refuse_until_s = now_s + recent_bytes / limits.bytes_per_s


@dataclass(slots=True, eq=False)
class Shard:
    """Hashes are inclusive, times in epoch seconds; ticks lie between `opened_tick` and `closed_tick`.

    `bells` are called when there is something new. They may only set a flag: the change may be half done.
    """

    index: int
    start_hash: int
    end_hash: int
    opened_tick: int
    opened_s: float
    parent_ids: tuple[str, ...] = ()
    closed_tick: int | None = None
    closed_s: float | None = None
    children: list[Shard] = field(default_factory=list["Shard"])
    records: RecordLog = field(default_factory=RecordLog)
    traffic: ReadTraffic = field(default_factory=ReadTraffic)
    bells: dict[int, Callable[[], None]] = field(default_factory=dict[int, "Callable[[], None]"])
    _continued: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def shard_id(self) -> str:
        return f"shardId-{self.index:012d}"

    @property
    def is_open(self) -> bool:
        return self.closed_tick is None

    def has_issued(self, tick: int) -> bool:
        """Whether callers may know this number, of a record, a continuation, or the shard's first or last."""
        if tick in {self.opened_tick, self.closed_tick}:
            return True
        index = bisect_left(self._continued, tick)
        if index < len(self._continued) and self._continued[index] == tick:
            return True
        return tick > self.opened_tick and self.records.may_hold(tick)

    def continue_at(self, tick: int) -> None:
        """Ticks must rise."""
        self._continued.append(tick)

    def wake(self) -> None:
        for ring in tuple(self.bells.values()):
            ring()

    def hash_range(self) -> dict[str, object]:
        return {"StartingHashKey": str(self.start_hash), "EndingHashKey": str(self.end_hash)}


@dataclass(frozen=True, slots=True)
class SubscriptionTurn:
    number: int
    started_s: float


@dataclass(slots=True, eq=False)
class RegisteredConsumer:
    """The last subscription to each shard, even if it is over."""

    name: str
    stream_arn: str
    created_s: float
    deleted_s: float | None = None
    turns: dict[str, SubscriptionTurn] = field(default_factory=dict[str, SubscriptionTurn])

    @property
    def arn(self) -> str:
        return f"{self.stream_arn}/consumer/{self.name}:{int(self.created_s)}"

    def status(self, now_s: float, creating_s: float) -> str:
        if self.deleted_s is not None:
            return "DELETING"
        return "ACTIVE" if now_s >= self.created_s + creating_s else "CREATING"


class Stream:
    """Records before `trimmed_before_s` are gone even within the retention.

    `is_auto`: records go to the open shards in turn (RecordDistributionStrategy).
    """

    def __init__(
        self,
        arn: str,
        shard_count: int,
        *,
        numbers: SequenceNumbers,
        created_s: float,
        mode: str,
        record_bytes_max: int,
        retention_hours: int,
    ) -> None:
        self.arn = arn
        self.name = arn.rpartition("/")[2]
        self.consumers: dict[str, RegisteredConsumer] = {}
        self.trimmed_before_s = 0.0
        self.created_s = created_s
        self.mode = mode
        self.is_auto = False
        self._turn = 0
        self.record_bytes_max = record_bytes_max
        self.retention_hours = retention_hours
        self.numbers = numbers
        self.identity = numbers.next_tick()  # differs from an earlier stream of the same name
        self._shards: dict[str, Shard] = {}
        self._open: list[Shard] = []
        self._closed: deque[Shard] = deque()
        self._next_index = 0
        edges = even_starts(shard_count)
        for start, end in zip(edges, [*(edge - 1 for edge in edges[1:]), MAX_HASH], strict=True):
            self._open.append(self._add(start, end, created_s))

    @property
    def shards(self) -> list[Shard]:
        return list(self._shards.values())

    @property
    def open_shards(self) -> list[Shard]:
        return list(self._open)

    def shard(self, shard_id: str) -> Shard:
        shard = self._shards.get(shard_id)
        if shard is None:
            raise not_found(f"shard {shard_id} of stream {self.name} does not exist (any more)")
        return shard

    def knows(self, shard_id: str) -> bool:
        return shard_id in self._shards

    def horizon_s(self, now_s: float) -> float:
        return max(now_s - self.retention_hours * HOUR_S, self.trimmed_before_s)

    def expire(self, now_s: float) -> None:
        horizon_s = self.horizon_s(now_s)
        while self._closed and (self._closed[0].closed_s or 0.0) < horizon_s:
            expired = self._closed.popleft()
            del self._shards[expired.shard_id]
            expired.wake()

    def put(self, record: NewRecord, now_s: float) -> tuple[Shard, int]:
        shard = (
            self._next_in_turn() if record.key_hash is None or self.is_auto else self._holder(record.key_hash)
        )
        tick = self.numbers.next_tick()
        shard.records.append(tick, now_s, record)
        shard.wake()
        return shard, tick

    def _next_in_turn(self) -> Shard:
        self._turn += 1
        return self._open[self._turn % len(self._open)]

    def _holder(self, key_hash: int) -> Shard:
        return self._open[bisect_right(self._open, key_hash, key=lambda shard: shard.start_hash) - 1]

    def split(self, shard: Shard, at_hash: int, now_s: float) -> None:
        self._require_open(shard)
        if not shard.start_hash < at_hash <= shard.end_hash:
            raise invalid_argument(
                f"NewStartingHashKey {at_hash} is not inside shard {shard.shard_id} and above its first hash"
            )
        self._close(shard, now_s)
        place = self._open.index(shard)
        lower = self._add(shard.start_hash, at_hash - 1, now_s, shard)
        upper = self._add(at_hash, shard.end_hash, now_s, shard)
        self._open[place : place + 1] = [lower, upper]

    def merge(self, shard: Shard, adjacent: Shard, now_s: float) -> None:
        self._require_open(shard)
        self._require_open(adjacent)
        left, right = sorted((shard, adjacent), key=lambda each: each.start_hash)
        if left.end_hash + 1 != right.start_hash:
            raise invalid_argument(f"shards {shard.shard_id} and {adjacent.shard_id} are not adjacent")
        self._close(shard, now_s)
        self._close(adjacent, now_s)
        place = self._open.index(left)
        self._open[place : place + 2] = [self._add(left.start_hash, right.end_hash, now_s, shard, adjacent)]

    def scale(self, shard_count: int, now_s: float) -> None:
        edges = even_starts(shard_count)
        for edge in edges:
            holder = self._holder(edge)
            if holder.start_hash != edge:
                self.split(holder, edge, now_s)
        wanted = set(edges)
        place = 1
        while place < len(self._open):
            if self._open[place].start_hash in wanted:
                place += 1
            else:
                self.merge(self._open[place - 1], self._open[place], now_s)

    def _add(self, start_hash: int, end_hash: int, now_s: float, *parents: Shard) -> Shard:
        shard = Shard(
            index=self._next_index,
            start_hash=start_hash,
            end_hash=end_hash,
            opened_tick=self.numbers.next_tick(),
            opened_s=now_s,
            parent_ids=tuple(parent.shard_id for parent in parents),
        )
        self._next_index += 1
        self._shards[shard.shard_id] = shard
        for parent in parents:
            parent.children.append(shard)
        return shard

    def _close(self, shard: Shard, now_s: float) -> None:
        shard.closed_tick = self.numbers.next_tick()
        shard.closed_s = now_s
        self._closed.append(shard)
        shard.wake()

    def _require_open(self, shard: Shard) -> None:
        if not shard.is_open:
            raise invalid_argument(
                f"shard {shard.shard_id} of stream {self.name} has already been merged or split"
            )


def stream_arn(name: str) -> str:
    return f"arn:aws:kinesis:{REGION}:{ACCOUNT_ID}:stream/{name}"


def even_starts(count: int) -> list[int]:
    return [index * (MAX_HASH + 1) // count for index in range(count)]
