from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.errors import AccessDenied, AwsError, InvalidRequest, Throttled, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, Kinesis, Randomness, StreamRef
from kcl_daemon.records.producing import (
    LARGE_BYTES,
    Entry,
    KeyedLine,
    PutResult,
    aggregated,
    plain,
    requests,
    size_bytes_of,
    strays,
)
from kcl_daemon.retrieval.distribution import AUTO
from kcl_daemon.shards.lineage import Shard

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_DOUBLINGS_MOST: Final = 10
# Without any success, the command line is probably wrong.
_PATIENCE_S: Final = 300.0
_PATIENCE_AT_FIRST_S: Final = 10.0


PutRecords = Callable[[StreamRef, Sequence[Entry]], Awaitable[Sequence[PutResult]]]


@dataclass(slots=True)
class PutCounts:
    """`bytes` are those of the data as it was put."""

    lines: int = 0
    records: int = 0
    bytes: int = 0
    refused: int = 0


@dataclass(slots=True)
class Writer:
    """`on_the_way` is the first line that is not known to be put."""

    put_records: PutRecords
    kinesis: Kinesis
    stream: StreamRef
    clock: Clock
    randomness: Randomness
    say: Callable[[str], object]
    aggregates: bool = False
    counts: PutCounts = field(default_factory=PutCounts)
    on_the_way: str | None = None
    is_stopping: bool = False
    _shards: dict[ShardId, Shard] = field(default_factory=dict[ShardId, Shard])
    _said: bool = False

    async def put(self, lines: Sequence[KeyedLine]) -> None:
        """Return when they are put or refused; the next ones wait, so order is kept as far as it can be.

        NotChanged: nothing was taken for so long that it is given up. AwsError: no line can be put.
        """
        left = list(lines)
        while left and not self.is_stopping:
            if self.aggregates and not self._shards:
                await self._look_at_shards()
            entries = aggregated(left, self._open_shards) if self.aggregates else plain(left)
            again: list[KeyedLine] = []
            for request in requests(entries):
                again += await self._put_all(request)
            left = again
        if left and self.on_the_way is None:
            self.on_the_way = left[0].place

    async def _look_at_shards(self) -> None:
        if self.aggregates and await self._is_auto():
            self.aggregates = False
            self.say(
                "each line is a record of its own: the stream distributes records by itself (RecordDistributionStrategy AUTO), and "
                "consumers other than kcl-daemon lose records of aggregates there"
            )
        self._shards = {shard.shard_id: shard for shard in await self.kinesis.list_shards(self.stream)}

    async def _is_auto(self) -> bool:
        try:
            return (await self.kinesis.describe_stream(self.stream)).distribution == AUTO
        except AccessDenied as error:
            self._tell(
                f"it is not known whether keys choose the shards of the stream, so lines are packed: {error}"
            )
            return False

    @property
    def _open_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_open]

    async def _put_all(self, request: Sequence[Entry]) -> list[KeyedLine]:
        left, tries, again = list(request), 0, list[KeyedLine]()
        since_s = self.clock.monotonic()
        while left and not self.is_stopping:
            self.on_the_way = left[0].lines[0].place
            failed, reason = await self._put_once(left, again)
            if len(failed) < len(left):
                since_s, tries = self.clock.monotonic(), 0
            left = failed
            if left:
                self._tell(f"{reason}; trying again")
                patience_s = _PATIENCE_S if self.counts.lines else _PATIENCE_AT_FIRST_S
                if self.clock.monotonic() - since_s > patience_s:
                    raise NotChanged(f"given up: {reason}")
                await self._pause(tries)
                tries += 1
        if not left:
            self.on_the_way = None
        return again

    async def _put_once(self, entries: Sequence[Entry], again: list[KeyedLine]) -> tuple[list[Entry], str]:
        try:
            results = await self.put_records(self.stream, entries)
        except (Throttled, Unavailable) as error:
            return list(entries), str(error)
        except InvalidRequest as error:
            if len(entries) > 1 or size_bytes_of(entries[0]) <= LARGE_BYTES:
                raise
            self._refuse(entries[0], error)
            return [], ""
        failed: list[Entry] = []
        reason = ""
        for entry, result in zip(entries, results, strict=True):
            if result.error:
                failed.append(entry)
                reason = result.error
            else:
                again += await self._count(entry, result.shard_id)
        return failed, reason

    async def _count(self, entry: Entry, shard_id: str) -> list[KeyedLine]:
        outside: list[KeyedLine] = []
        if len(entry.lines) > 1:
            if shard_id not in self._shards:
                await self._look_at_shards()
            shard = self._shards.get(ShardId(shard_id))
            outside = [] if shard is None else strays(entry, shard.hash_range)
            if outside and self.aggregates:
                await self._look_at_shards()  # the stream may be AUTO by now
        counts = self.counts
        counts.records += 1
        counts.lines += len(entry.lines) - len(outside)
        counts.bytes += sum(len(line.data) for line in entry.lines) - sum(len(line.data) for line in outside)
        return outside

    def _refuse(self, entry: Entry, error: AwsError) -> None:
        self.counts.refused += len(entry.lines)
        self.say(
            f"{entry.lines[0].place} is not put: the stream takes no record of {size_bytes_of(entry)} bytes: {error}"
        )

    def _tell(self, text: str) -> None:
        if not self._said:
            self._said = True
            self.say(text)

    async def _pause(self, tries: int) -> None:
        most = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(tries, _DOUBLINGS_MOST))
        await self.clock.sleep(most * self.randomness.uniform(0.5, 1.0))
