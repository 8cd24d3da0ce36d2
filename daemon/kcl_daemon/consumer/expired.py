"""Records that are too old (`maxRecordAgeMillis`; no counterpart in KCL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcl_daemon.consumer.connection import Checkpointer, ChildConnection
from kcl_daemon.consumer.context import ConsumerContext
from kcl_daemon.consumer.gate import Give
from kcl_daemon.consumer.lane import Lane
from kcl_daemon.consumer.set_aside import SetAside
from kcl_daemon.records.dead_letter import LetterCause
from kcl_daemon.records.payload import AnyRecord, Payload
from kcl_daemon.retrieval.source import DeliveryBatch
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber

# Letters are made and stored so many at a time: their data is in memory twice.
_AT_ONCE: Final = 500


class ExpiredRecords:
    def __init__(
        self,
        *,
        parts: ConsumerContext,
        lane: Lane,
        checkpointer: Checkpointer,
        aside: SetAside,
        max_age_ms: int,
    ) -> None:
        self._parts = parts
        self._lane = lane
        self._checkpointer = checkpointer
        self._aside = aside
        self._max_age_ms = max_age_ms

    async def give(self, batch: DeliveryBatch, give: Give, connection: ChildConnection) -> bool:
        """What is not too old."""
        if not self._may_be_in(batch):
            return await give(batch)
        fresh = await self._set_aside(batch, connection)
        if fresh is None or fresh.last is None:
            return fresh is not None
        return await give(fresh)

    def _may_be_in(self, batch: DeliveryBatch) -> bool:
        if batch.arrived_s is None:
            return False
        return self._parts.context.clock.monotonic() - batch.arrived_s > self._max_age_ms / 1000

    async def _set_aside(self, batch: DeliveryBatch, connection: ChildConnection) -> DeliveryBatch | None:
        """None: a stop came first, and all of it comes again."""
        whole = batch.take()
        oldest_ms = whole.facts.date_ms(self._parts.context.clock.monotonic()) - self._max_age_ms
        expired, fresh = list[AnyRecord](), list[AnyRecord]()
        for record in whole.records:
            arrived_ms = record.approximate_arrival_timestamp
            (expired if arrived_ms is not None and arrived_ms < oldest_ms else fresh).append(record)
        for begin in range(0, len(expired), _AT_ONCE):
            if not await self._stored(expired[begin : begin + _AT_ONCE], connection):
                return None
        first_fresh = fresh[0].position if fresh else SHARD_END
        if passed := [each.position for each in expired if each.position < first_fresh]:
            await self._passed(passed[-1])
        return DeliveryBatch(whole.holding(whole.payload.some(fresh)))

    async def _stored(self, records: Sequence[AnyRecord], connection: ChildConnection) -> bool:
        """False if a stop came first. ChildExited if the child has ended meanwhile."""
        reason = f"older than maxRecordAgeMillis = {self._max_age_ms}"
        if self._aside.destination is not None:
            letters = [
                self._aside.letter(record, LetterCause.EXPIRED, reason)
                for record in Payload(records, 0).decoded()
            ]
            if any(await self._aside.store(letters, given_up=lambda: connection.silent)):
                if connection.silent:
                    raise await connection.exited("idle")
                return False
        self._aside.counted(LetterCause.EXPIRED, len(records), reason)
        self._aside.expired(len(records), records[0].approximate_arrival_timestamp)
        return True

    async def _passed(self, last: ExtendedSequenceNumber) -> None:
        """Checkpoints of the child alone would not pass a shard of old records."""
        self._checkpointer.passed(last)
        self._lane.progress.done(last, 0, 0)
        await self._checkpointer.store_passed()
