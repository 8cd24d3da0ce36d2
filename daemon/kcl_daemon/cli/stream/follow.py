"""Follows shards within a fifth of their quota of reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from anyio import create_task_group
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.config.kinds import RunUntil
from kcl_daemon.errors import AwsError, IteratorExpired, Throttled, Trimmed, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, FetchedRecords, IteratorKind, Kinesis, ReadFrom, StreamRef
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import AnyRecord, Payload
from kcl_daemon.retrieval.distribution import Distribution, Strays
from kcl_daemon.retrieval.fair_share import FairShare
from kcl_daemon.retrieval.source import INCONSISTENT_END
from kcl_daemon.shards.lineage import NO_HASH_KEYS, ChildShard, InitialPosition, Shard, StartAt
from kcl_daemon.text import counted, short_shard

# A record may be seen later than it arrived, and this clock may be wrong by so much.
_LATE_MS: Final = 7_000
_MARGIN_S: Final = 5.0
_OLDEST: Final = ReadFrom(IteratorKind.TRIM_HORIZON)
_SHARDS_NAMED: Final = 10

AnyShard = Shard | ChildShard
OnRecords = Callable[[ShardId, Sequence[AnyRecord]], Awaitable[None]]


@dataclass(slots=True)
class Follower:
    """`say` gets what a person should know, each once."""

    kinesis: Kinesis
    stream: StreamRef
    start: InitialPosition
    until: RunUntil | None
    only: Sequence[str]
    clock: Clock
    on_records: OnRecords
    say: Callable[[str], object]
    left_out: int = 0
    aggregates: int = 0
    distribution: Distribution = field(init=False)
    _unfinished: set[ShardId] = field(default_factory=set[ShardId])
    _waiting: dict[ShardId, AnyShard] = field(default_factory=dict[ShardId, AnyShard])
    _begun: set[ShardId] = field(default_factory=set[ShardId])
    _said: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.distribution = Distribution(self.kinesis, self.stream, self.clock)

    async def shards(self) -> Sequence[Shard]:
        """NotChanged if one that was named does not exist."""
        if not self.only:
            return await self.kinesis.list_shards(self.stream, self.start)
        every = await self.kinesis.list_shards(self.stream)
        chosen = [shard for shard in every if {shard.shard_id, short_shard(shard.shard_id)} & {*self.only}]
        found = {name for shard in chosen for name in (shard.shard_id, short_shard(shard.shard_id))}
        if missing := [name for name in self.only if name not in found]:
            names = [shard.shard_id for shard in every][-_SHARDS_NAMED:]
            raise NotChanged(
                f"the stream {self.stream.name} has no shard {', '.join(missing)}; it has {', '.join(names)}"
            )
        return chosen

    async def run(self, shards: Sequence[Shard]) -> None:
        """Until all have ended. Raises AwsError if the stream is gone or must not be read."""
        self._unfinished |= {shard.shard_id for shard in shards}
        async with create_task_group() as tasks:
            for shard in shards:
                where = _OLDEST if shard.parent_shard_ids & self._unfinished else _where(self.start)
                self._begin_when_due(tasks, shard, where)

    def _begin_when_due(self, tasks: TaskGroup, shard: AnyShard, where: ReadFrom) -> None:
        if shard.shard_id in self._begun:
            return
        self._unfinished.add(shard.shard_id)
        if shard.parent_shard_ids & self._unfinished:
            self._waiting[shard.shard_id] = shard
            return
        self._waiting.pop(shard.shard_id, None)
        self._begun.add(shard.shard_id)
        tasks.start_soon(self._follow, tasks, shard, where)

    async def _follow(self, tasks: TaskGroup, shard: AnyShard, where: ReadFrom) -> None:
        children = await _ShardTail(self, shard, where).run()
        if children is None:  # its end is not reached, so nothing after it is shown
            return
        self._unfinished.discard(shard.shard_id)
        for child in children:
            self._begin_when_due(tasks, child, _OLDEST)
        for waiting in list(self._waiting.values()):
            self._begin_when_due(tasks, waiting, _OLDEST)

    def tell(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self.say(text)


def _where(start: InitialPosition) -> ReadFrom:
    match start.at:
        case StartAt.LATEST:
            return ReadFrom(IteratorKind.LATEST)
        case StartAt.TIMESTAMP:
            return ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=start.timestamp_s)
        case StartAt.TRIM_HORIZON:
            return _OLDEST


class _ShardTail:
    def __init__(self, follower: Follower, shard: AnyShard, where: ReadFrom) -> None:
        self._follower = follower
        self._shard = shard
        self._where = where
        self._iterator: str | None = None
        self._share = FairShare()
        has_keys = shard.hash_range != NO_HASH_KEYS
        self._strays = Strays(follower.distribution, follower.clock)
        hash_range = shard.hash_range if has_keys else None
        self._split = Deaggregator(hash_range, self._malformed, self._left_out, strays=self._strays)

    async def run(self) -> tuple[ChildShard, ...] | None:
        """The children; None: it was read as far as wanted."""
        follower = self._follower
        while True:
            asked_ms = follower.clock.wall_ms()
            fetched = await self._read()
            if fetched is not None:
                payload, is_over = self._bounded(fetched, asked_ms)
                await self._deliver(payload)
                if is_over:
                    return None
                if fetched.next_iterator is None:
                    return fetched.child_shards
                self._share = self._share.answered(len(fetched.payload), _service_bytes(fetched.payload))
            await follower.clock.sleep(self._share.pause_s)

    async def _read(self) -> FetchedRecords | None:
        """None: it must be tried again."""
        follower, shard_id = self._follower, self._shard.shard_id
        kinesis, stream = follower.kinesis, follower.stream
        try:
            if self._iterator is None:
                self._iterator = await kinesis.get_shard_iterator(stream, shard_id, self._where)
            fetched = await kinesis.get_records(stream, shard_id, self._iterator, self._share.limit)
            _require_consistent(fetched)
        except IteratorExpired:
            self._iterator = None
            return None
        except Trimmed as error:
            follower.tell("trimmed", f"records were too old to be read, so some are left out: {error}")
            self._iterator, self._where = None, _OLDEST
            return None
        except (Throttled, Unavailable) as error:
            self._refused(error)
            return None
        self._iterator = fetched.next_iterator
        if fetched.payload:
            last = fetched.payload.last.sequence_number
            self._where = ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=last)
        elif self._where.sequence_number is None and not fetched.millis_behind_latest:
            # If the iterator is lost, LATEST would leave records out.
            now_s = follower.clock.wall_ms() / 1000
            self._where = ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=now_s - _MARGIN_S)
        return fetched

    def _refused(self, error: AwsError) -> None:
        self._share = self._share.refused()
        if isinstance(error, Throttled):
            self._follower.tell("throttled", f"others read this stream too; reading more slowly: {error}")
        else:
            self._follower.tell("unavailable", f"{error}; trying again")

    def _bounded(self, fetched: FetchedRecords, asked_ms: int) -> tuple[Payload, bool]:
        until, payload, behind_ms = self._follower.until, fetched.payload, fetched.millis_behind_latest
        if until is None or (until.time_ms is None and fetched.next_iterator is None):
            return payload, False
        if until.time_ms is None:
            return payload, not behind_ms and (behind_ms is not None or not payload)
        before = payload.arrived_before(until.time_ms)
        if len(before) < len(payload):
            return before, True
        at_end = fetched.next_iterator is None
        return payload, not at_end and asked_ms - (behind_ms or 0) - _LATE_MS >= until.time_ms

    async def _deliver(self, payload: Payload) -> None:
        self._strays.received()
        for part in payload.expanded(self._split):
            if part:
                await self._follower.on_records(self._shard.shard_id, part.records)
            await self._strays.settle()
            await checkpoint()

    def _left_out(self, count: int, total: int, sequence_number: str) -> None:
        self._follower.left_out += count
        self._follower.aggregates += 1
        self._follower.tell(
            "left_out",
            f"{counted(count, 'record')} left out: their keys belong to other shards ({count} of {total} in the KPL aggregate "
            f"{sequence_number}); a daemon leaves them out too, unless keepRecordsOfOtherShards = true",
        )

    def _malformed(self, reason: str, sequence_number: str) -> None:
        self._follower.tell(
            "malformed", f"record {sequence_number} begins like a KPL aggregate, but is none: {reason}"
        )


def _service_bytes(payload: Payload) -> int:
    return payload.data_bytes + sum(len(record.partition_key) for record in payload.records)


def _require_consistent(fetched: FetchedRecords) -> None:
    if (fetched.next_iterator is None) is not (bool(fetched.child_shards) or fetched.is_last):
        raise Unavailable(INCONSISTENT_END, operation="GetRecords")
