"""One stream: its shards, their lineage and which of them takes a hash.

Keeps two promises: the open shards always cover every hash exactly once, and sequence numbers grow from parent to
child. Knows nothing of calls, tokens or JSON.

Sequence numbers: 56 digits that grow over all shards, reshards and streams of one model.

Knows nothing of streams or records. Inside the model a record is known by its tick, a small counter; the long number
is made from it on the way out, together with the shard's index, so that a number tells whose it is.

The records of one shard, in columns, found by bisection. Knows no shard, no iterator and no limit of the service.

One shard: its place in the lineage and among the hashes, its records, and how much of it was read lately.

Does not know its stream; who may split or merge it is decided there.

One consumer with enhanced fan-out: its life and who reads with it. Knows no stream.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kcl_local.kinesis.arguments import MAX_HASH, ReadLimits, invalid_argument, not_found

_SMALLEST: Final = 495 * 10**53
_DIGITS_MAX: Final = 56
_SHARD_BITS: Final = 24
_TICK_BITS: Final = 56
_TICK_MASK: Final = 2**_TICK_BITS - 1
_SHARD_MASK: Final = 2**_SHARD_BITS - 1


class SequenceNumbers:
    """Issues ticks and translates them.

    Args:
        started_s: when the model started; a later model's numbers are greater, so that a checkpoint which outlived
            its stream is not taken for one of the new stream.
    """

    def __init__(self, started_s: float) -> None:
        self._base = _SMALLEST + (int(started_s * 1000) << (_TICK_BITS + _SHARD_BITS))
        self._last_tick = 0

    def next_tick(self) -> int:
        """The next free tick, from 1."""
        self._last_tick += 1
        return self._last_tick

    def text(self, tick: int, shard_index: int) -> str:
        """The sequence number as on the wire."""
        return str(self._base + (tick << _SHARD_BITS) + shard_index)

    def tick_of(self, text: str, shard_index: int) -> int | None:
        """The tick behind a number of this shard; None for a number that cannot be one of its."""
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            return None
        offset = int(text) - self._base
        tick = offset >> _SHARD_BITS
        belongs = (
            offset > 0 and offset & _SHARD_MASK == shard_index and tick <= min(self._last_tick, _TICK_MASK)
        )
        return tick if belongs else None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record.

    Args:
        tick: its place in the order of the whole model.
        arrival_s: epoch seconds, whole milliseconds.
        partition_key: as it was put.
        data: base64 text as it was put.
        size_bytes: of the decoded data and the partition key.
    """

    tick: int
    arrival_s: float
    partition_key: str
    data: str
    size_bytes: int


class RecordLog:
    """Records in the order in which they came. Indices count what is still kept and hold until the next trim."""

    __slots__ = ("_arrivals", "_data", "_ends", "_keys", "_ticks", "_trimmed_bytes", "_trimmed_tick")

    def __init__(self) -> None:
        self._ticks = array("Q")
        self._arrivals = array("d")
        self._keys: list[str] = []
        self._data: list[str] = []
        self._ends = array("Q")  # bytes up to and including this record since the log began
        self._trimmed_bytes = 0
        self._trimmed_tick = 0

    def __len__(self) -> int:
        return len(self._ticks)

    def append(self, record: StoredRecord) -> None:
        """Add a record; its tick is above and its arrival not before those of the last one."""
        self._ticks.append(record.tick)
        self._arrivals.append(record.arrival_s)
        self._keys.append(record.partition_key)
        self._data.append(record.data)
        self._ends.append(self._bytes_before(len(self._ends)) + record.size_bytes)

    def trim(self, before_s: float) -> None:
        """Forget the records that arrived before that time."""
        count = bisect_left(self._arrivals, before_s)
        if not count:
            return
        self._trimmed_bytes = self._ends[count - 1]
        self._trimmed_tick = self._ticks[count - 1]
        for column in (self._ticks, self._arrivals, self._keys, self._data, self._ends):
            del column[:count]

    def may_hold(self, tick: int) -> bool:
        """Whether a kept record has this tick or a forgotten one may have had it."""
        index = bisect_left(self._ticks, tick)
        return tick <= self._trimmed_tick or (index < len(self) and self._ticks[index] == tick)

    def first_after(self, tick: int) -> int:
        """Index of the first record above that tick; the length where there is none."""
        return bisect_right(self._ticks, tick)

    def last_tick_before(self, timestamp_s: float) -> int:
        """Tick of the last record that arrived before that time, 0 where none is kept."""
        index = bisect_left(self._arrivals, timestamp_s)
        return self._ticks[index - 1] if index else 0

    def end_of_page(self, start: int, count_max: int, bytes_max: int) -> int:
        """Index behind the last record that fits beside those from `start` on; at least one record is taken."""
        by_bytes = bisect_right(self._ends, self._bytes_before(start) + bytes_max, lo=start)
        return min(max(by_bytes, start + 1), start + count_max, len(self))

    def size_bytes(self, start: int, end: int) -> int:
        """Bytes of the records from `start` to before `end`."""
        return self._bytes_before(end) - self._bytes_before(start)

    def arrival_s(self, index: int) -> float:
        """When that record came."""
        return self._arrivals[index]

    def tick(self, index: int) -> int:
        """The tick of that record."""
        return self._ticks[index]

    def columns(self, start: int, end: int) -> Iterator[tuple[int, float, str, str]]:
        """Tick, arrival, partition key and data of the records from `start` to before `end`."""
        span = slice(start, end)
        return zip(self._ticks[span], self._arrivals[span], self._keys[span], self._data[span], strict=True)

    def _bytes_before(self, index: int) -> int:
        return self._ends[index - 1] if index else self._trimmed_bytes


_WINDOW_S: Final = 1.0


@dataclass(slots=True)
class ReadTraffic:
    """How much a shard gave within the last second."""

    _answers: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    _refuse_until_s: float = 0.0

    def allows(self, now_s: float, limits: ReadLimits) -> bool:
        """Whether one more call may read now."""
        while self._answers and self._answers[0][0] <= now_s - _WINDOW_S:
            self._answers.popleft()
        return now_s >= self._refuse_until_s and len(self._answers) < limits.reads_per_s

    def count(self, now_s: float, size_bytes: int, limits: ReadLimits) -> None:
        """Account for an answer of that size."""
        self._answers.append((now_s, size_bytes))
        recent_bytes = sum(size for _, size in self._answers)
        if recent_bytes > limits.bytes_per_s:
            self._refuse_until_s = now_s + recent_bytes / limits.bytes_per_s


@dataclass(slots=True, eq=False)
class Shard:
    """A shard, open or closed.

    Args:
        index: number of the shard in its stream, from 0.
        start_hash: first hash of its partition keys.
        end_hash: last one.
        opened_tick: where its sequence numbers start; above its parents' `closed_tick`.
        opened_s: when.
        parent_ids: none for an original shard, one after a split, two after a merge.
        closed_tick: where its sequence numbers end, None while it is open.
        closed_s: when.
        children: the shards that follow it.
        bells: called when there is something new to read; they must only take note, as the change may be half done.
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
        """Its name in the stream."""
        return shard_id_of(self.index)

    @property
    def is_open(self) -> bool:
        """Whether it still takes records."""
        return self.closed_tick is None

    def has_issued(self, tick: int) -> bool:
        """Whether a caller can have that number from here, as far as that is still known.

        That is: its first or last number, that of a record, or one to continue at.
        """
        if tick in {self.opened_tick, self.closed_tick}:
            return True
        index = bisect_left(self._continued, tick)
        if index < len(self._continued) and self._continued[index] == tick:
            return True
        return tick > self.opened_tick and self.records.may_hold(tick)

    def continue_at(self, tick: int) -> None:
        """Issue a number without a record; ticks come in rising order."""
        self._continued.append(tick)

    def wake(self) -> None:
        """Tell whoever waits for this shard."""
        for ring in tuple(self.bells.values()):
            ring()

    def hash_range(self) -> dict[str, object]:
        """`HashKeyRange` on the wire."""
        return {"StartingHashKey": str(self.start_hash), "EndingHashKey": str(self.end_hash)}


def shard_id_of(index: int) -> str:
    """The name of a stream's nth shard."""
    return f"shardId-{index:012d}"


@dataclass(frozen=True, slots=True)
class SubscriptionTurn:
    """A subscription to a shard.

    Args:
        number: tells it from all others of the model.
        started_s: epoch seconds.
    """

    number: int
    started_s: float


@dataclass(slots=True, eq=False)
class RegisteredConsumer:
    """A consumer.

    Args:
        name: unique in its stream.
        stream_arn: its stream.
        created_s: epoch seconds.
        deleted_s: when it was deregistered, None while it was not.
        turns: the last subscription to each shard, by shard ID, also where it is over.
    """

    name: str
    stream_arn: str
    created_s: float
    deleted_s: float | None = None
    turns: dict[str, SubscriptionTurn] = field(default_factory=dict[str, SubscriptionTurn])

    @property
    def arn(self) -> str:
        """Its ARN, with the second of its creation."""
        return f"{self.stream_arn}/consumer/{self.name}:{int(self.created_s)}"

    def status(self, now_s: float, creating_s: float) -> str:
        """`ConsumerStatus` on the wire."""
        if self.deleted_s is not None:
            return "DELETING"
        return "ACTIVE" if now_s >= self.created_s + creating_s else "CREATING"


ACCOUNT_ID = "123456789012"
REGION = "us-east-1"
HOUR_S = 3600


class Stream:
    """A stream of the one region.

    Args:
        arn: its account and name, see `stream_arn`.
        shard_count: open shards to begin with, of equal hash ranges.
        numbers: shared by all streams of the model.
        created_s: epoch seconds.
        mode: PROVISIONED or ON_DEMAND; only told, never acted upon.
        record_bytes_max: data and partition key of one record.
        retention_hours: how long records and closed shards are kept.

    Attributes:
        consumers: those registered for enhanced fan-out, by name.
        trimmed_before_s: what came before is gone, even where the retention would have kept it.
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
        self.record_bytes_max = record_bytes_max
        self.retention_hours = retention_hours
        self.numbers = numbers
        self.identity = numbers.next_tick()  # tells this stream from an earlier one of the same name
        self._shards: dict[str, Shard] = {}  # by index
        self._open: list[Shard] = []  # by hash
        self._closed: deque[Shard] = deque()  # by time of closing
        self._next_index = 0
        edges = even_starts(shard_count)
        for start, end in zip(edges, [*(edge - 1 for edge in edges[1:]), MAX_HASH], strict=True):
            self._open.append(self._add(start, end, created_s))

    @property
    def shards(self) -> list[Shard]:
        """All shards still known, in the order of their names."""
        return list(self._shards.values())

    @property
    def open_shards(self) -> list[Shard]:
        """Those that take records, in the order of their hashes."""
        return list(self._open)

    def shard(self, shard_id: str) -> Shard:
        """The shard of that name; ServiceError where it never existed or has expired."""
        shard = self._shards.get(shard_id)
        if shard is None:
            raise not_found(f"shard {shard_id} of stream {self.name} does not exist (any more)")
        return shard

    def knows(self, shard_id: str) -> bool:
        """Whether a shard of that name exists and has not expired."""
        return shard_id in self._shards

    def horizon_s(self, now_s: float) -> float:
        """Records from before that time are gone."""
        return max(now_s - self.retention_hours * HOUR_S, self.trimmed_before_s)

    def expire(self, now_s: float) -> None:
        """Forget the closed shards whose last record is certainly gone."""
        horizon_s = self.horizon_s(now_s)
        while self._closed and (self._closed[0].closed_s or 0.0) < horizon_s:
            expired = self._closed.popleft()
            del self._shards[expired.shard_id]
            expired.wake()

    def put(
        self, key_hash: int, partition_key: str, data: str, *, size_bytes: int, now_s: float
    ) -> tuple[Shard, int]:
        """Store a record in the open shard of that hash; tells the shard and the record's tick."""
        shard = self._open[bisect_right(self._open, key_hash, key=lambda shard: shard.start_hash) - 1]
        tick = self.numbers.next_tick()
        shard.records.append(StoredRecord(tick, now_s, partition_key, data, size_bytes))
        shard.wake()
        return shard, tick

    def split(self, shard: Shard, at_hash: int, now_s: float) -> None:
        """Close a shard and open two: below that hash, and from it on."""
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
        """Close two shards whose hashes lie side by side and open one for both."""
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
        """Split and merge until there are that many open shards of equal hash ranges."""
        edges = even_starts(shard_count)
        for edge in edges:
            holder = self._open[bisect_right(self._open, edge, key=lambda shard: shard.start_hash) - 1]
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


def stream_arn(name: str, account_id: str = ACCOUNT_ID) -> str:
    """The ARN of that stream."""
    return f"arn:aws:kinesis:{REGION}:{account_id}:stream/{name}"


def even_starts(count: int) -> list[int]:
    """First hashes of that many ranges of equal size."""
    return [index * (MAX_HASH + 1) // count for index in range(count)]
