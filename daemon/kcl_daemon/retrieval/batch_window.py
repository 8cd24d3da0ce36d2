"""Batches of a size: joins what is read until a window is over, and cuts what is too much (no counterpart in KCL)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio

from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.ports import Clock
from kcl_daemon.progress.invariants import Invariants
from kcl_daemon.progress.progress import LeaseProgress
from kcl_daemon.records.batch import Batch, Limits
from kcl_daemon.records.payload import LINE_BYTES
from kcl_daemon.retrieval.byte_budget import Reservation
from kcl_daemon.retrieval.source import DeliveryBatch, EndOfShard, ReadItem, ShardReader


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Of a batch that is not made yet.

    Args:
        since_s: monotonic.
        held_bytes: memory of all that was read at once; given back with its last part.
    """

    batch: Batch
    since_s: float
    held_bytes: int = 0


class BatchWindow:
    """Over a reader whose batches are not encoded. When another shard needs the room, what is gathered is delivered."""

    def __init__(
        self,
        reader: ShardReader,
        settings: DeliverySettings,
        *,
        clock: Clock,
        progress: LeaseProgress,
        reserve: Callable[[Callable[[], None], Invariants], Reservation],
    ) -> None:
        self._reader = reader
        self._window_s = (settings.batch_window_ms or 0) / 1000
        self._limits = Limits(settings.batch_records, settings.batch_bytes, LINE_BYTES)
        self._clock = clock
        self._progress = progress
        self._gathered: deque[_Gathered] = deque()
        self._next: ReadItem | None = None
        self._given_bytes = 0
        self._is_room_wanted = False
        self._waiting: anyio.CancelScope | None = None
        self._reservation = reserve(self._deliver_now, progress.invariants)

    @property
    def trouble(self) -> str | None:
        return self._reader.trouble

    @property
    def oldest_s(self) -> float | None:
        arrived = (each.batch.arrived_s for each in self._gathered)
        return min((each for each in arrived if each is not None), default=self._reader.oldest_s)

    @property
    def waiting(self) -> tuple[int, int]:
        records, data_bytes = self._reader.waiting
        for each in self._gathered:
            records, data_bytes = records + len(each.batch), data_bytes + each.batch.payload.data_bytes
        return records, data_bytes

    async def run(self) -> None:
        await self._reader.run()

    def close(self) -> None:
        self._gathered.clear()
        if isinstance(self._next, DeliveryBatch):
            self._next.release()
        self._progress.window_until_s = None
        self._reservation.release()
        self._reader.close()

    async def next(self) -> ReadItem:
        while (item := self._due()) is None:
            left_s = max(0.0, self._until_s - self._clock.monotonic()) if self._gathered else None
            try:
                with self._clock.move_on_after(left_s) as self._waiting:
                    self._take_in(await self._reader.next())
            finally:
                self._waiting = None
        return item

    def rest(self) -> ReadItem | None:
        return self._joined() if self._gathered else self._following()

    @property
    def _until_s(self) -> float:
        return self._gathered[0].since_s + self._window_s

    def _due(self) -> ReadItem | None:
        if not self._gathered:
            self._is_room_wanted = False
            return self._following()
        sizes = (sum(every) for every in zip(*(each.batch.sizes for each in self._gathered), strict=True))
        is_full = any(size >= limit for size, limit in zip(sizes, self._limits, strict=True))
        is_over = self._clock.monotonic() >= self._until_s
        if is_full or is_over or self._is_room_wanted or isinstance(self._next, EndOfShard):
            return self._joined()
        return None

    def _following(self) -> ReadItem | None:
        item = self._next
        if not isinstance(item, EndOfShard):
            self._next = None
        return item

    def _take_in(self, item: ReadItem) -> None:
        if isinstance(item, DeliveryBatch) and item.count:
            self._gather(item)
        elif isinstance(item, DeliveryBatch) and self._gathered:
            last = self._gathered[-1]
            self._gathered[-1] = replace(last, batch=Batch.joined([last.batch, item.take()]))
            item.release()
        else:
            self._next = item

    def _gather(self, read: DeliveryBatch) -> None:
        now_s, batch = self._clock.monotonic(), read.take()
        read.release()
        self._next = None
        *others, last = batch.pieces(self._limits)
        self._gathered += [_Gathered(each, now_s) for each in others]
        held_bytes = sum(each.sizes.line_bytes for each in (*others, last))
        self._gathered.append(_Gathered(last, now_s, held_bytes))
        self._account()

    def _deliver_now(self) -> None:
        if self._gathered:
            self._is_room_wanted = True
            if self._waiting is not None:
                self._waiting.cancel()

    def _joined(self) -> DeliveryBatch:
        parts, left = list[Batch](), self._limits
        while self._gathered and left.records > 0:
            gathered = self._gathered.popleft()
            sizes = gathered.batch.sizes
            if not parts or left.allow(sizes):
                parts.append(gathered.batch)
                left = Limits(*(limit - size for limit, size in zip(left, sizes, strict=True)))
                continue
            head, tail = gathered.batch.cut(left)
            parts.append(head)
            self._gathered.appendleft(replace(gathered, batch=tail))
            break
        batch = Batch.joined(parts)
        self._given_bytes = batch.sizes.line_bytes
        self._account()
        return DeliveryBatch(batch, self._given_back)

    def _given_back(self) -> None:
        self._given_bytes = 0
        self._account()

    def _account(self) -> None:
        self._progress.window_until_s = self._until_s if self._gathered else None
        self._reservation.resize(self._given_bytes + sum(each.held_bytes for each in self._gathered))
