"""One stream: its shards, their lineage and which of them takes a hash.

Keeps two promises: the open shards always cover every hash exactly once, and sequence numbers grow from parent to
child. Knows nothing of calls, tokens or JSON.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from kcl_local.kinesis.arguments import MAX_HASH
from kcl_local.kinesis.consumer import Consumer
from kcl_local.kinesis.errors import invalid_argument, not_found
from kcl_local.kinesis.records import StoredRecord
from kcl_local.kinesis.sequence import SequenceNumbers
from kcl_local.kinesis.shard import Shard

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
        self.consumers: dict[str, Consumer] = {}
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
