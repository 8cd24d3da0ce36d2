"""Records pass unless they are held back, by an operator or by the child itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from kcl_daemon.consumer.connection import ChildConnection
from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.lane import Lane
from kcl_daemon.leases.holds import NOT_HELD, Pace
from kcl_daemon.progress.progress import PAUSED_BY_CHILD, WaitReason
from kcl_daemon.records.payload import AnyRecord, data_bytes_of
from kcl_daemon.retrieval.source import DeliveryBatch

Give = Callable[[DeliveryBatch], Awaitable[bool]]
"""False: a stop came before all was given, and nothing may follow."""


class Gate:
    def __init__(
        self, parts: ConsumerContext, lane: Lane, stop_signal: StopSignal, connection: ChildConnection
    ) -> None:
        self._holds = parts.holds
        self._context = parts.context
        self._lane = lane
        self._stop_signal = stop_signal
        self._connection = connection
        self._asked = False

    @property
    def is_held(self) -> bool:
        is_paused = self._connection.paused_until_s > self._context.clock.monotonic()
        return is_paused or self._holds.of(self._lane.lease) is not NOT_HELD

    async def opens(self, *, gives: bool = False, within_batch: bool = False) -> bool:
        """Waits; early requests are answered meanwhile. False after a stop request. `within_batch`: they are counted already."""
        self._asked = not gives
        while True:
            await self._connection.answer_early_requests()
            if self._connection.silent:
                raise await self._connection.exited("idle")
            if self._stop_signal.reason is not StopReason.NONE:
                return False
            closed, most_s = self._closed(within_batch=within_batch)
            if not closed:
                return True
            await self._stop_signal.interruptible(partial(self._holds.until_changed, most_s))

    def _closed(self, *, within_batch: bool) -> tuple[bool, float | None]:
        """For how long at most; None: until the holds change."""
        clock, holds, progress = self._context.clock, self._holds, self._lane.progress
        now_s = clock.monotonic()
        if self._connection.paused_until_s > now_s:
            progress.waits(WaitReason.PAUSED, PAUSED_BY_CHILD)
            return True, self._connection.paused_until_s - now_s
        if not (self._asked or holds.may_give()):
            self._asked = True  # once: what was read last stays in force
            return True, self._context.timings.call_s
        hold = holds.of(self._lane.lease)
        if hold.pause is not None:
            from kcl_daemon.hold_words import why_text

            progress.waits(WaitReason.PAUSED, why_text(hold.pause))
            return True, None if hold.ends_ms is None else max(0.0, (hold.ends_ms - clock.wall_ms()) / 1000)
        pace = holds.pace(self._lane.lease, hold)
        if pace.free_s > now_s and not within_batch:
            from kcl_daemon.hold_words import share_text

            progress.waits(WaitReason.LIMITED, "; ".join(map(share_text, hold.limits)))
            return True, pace.free_s - now_s
        return False, None

    async def give(self, batch: DeliveryBatch, give: Give) -> bool:
        """Under a limit in parts. At a stop it is still given, if nothing is held back."""
        if not await self.opens(gives=True) and (
            self._stop_signal.reason is not StopReason.STOP or self.is_held
        ):
            return False
        pace = self._pace
        if _fits(pace, batch):
            self._holds.given(self._lane.lease, batch.count, batch.data_bytes)
            return await give(batch)
        whole, begin = batch.take(), 0
        while begin < len(whole):
            end = _end_of_part(whole.records, begin, self._pace)
            part = DeliveryBatch(whole.part(begin, end))
            self._holds.given(self._lane.lease, part.count, part.data_bytes)
            begin = end
            if not await give(part) or (begin < len(whole) and not await self.opens(gives=True)):
                return False
        return True

    @property
    def _pace(self) -> Pace:
        return self._holds.pace(self._lane.lease, self._holds.of(self._lane.lease))


def _fits(pace: Pace, batch: DeliveryBatch) -> bool:
    records, data_bytes = pace.part
    return batch.count == 1 or (batch.count <= records and batch.data_bytes <= data_bytes)


def _end_of_part(records: Sequence[AnyRecord], begin: int, pace: Pace) -> int:
    most_records, left_bytes = pace.part
    end = begin
    while end < len(records) and (end == begin or end - begin < most_records):
        left_bytes -= data_bytes_of(records[end])
        if left_bytes < 0 and end > begin:
            break
        end += 1
    return end
