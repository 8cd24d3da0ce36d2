"""The stage of a `recordFilter`: what does not match is not delivered, and the position goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from kcl_daemon.records.batch import Batch
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.retrieval.source import Parts, Passed
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from kcl_daemon.retrieval.stages import SkippedRecords


class ShardFilter:
    """Of one reader. `at`: how far records were looked at."""

    def __init__(self, record_filter: RecordFilter, skipped: SkippedRecords | None = None) -> None:
        self._filter = record_filter
        self._skipped = skipped
        self.at: ExtendedSequenceNumber | None = None
        self._told: ExtendedSequenceNumber | None = None

    def filtered(self, parts: Parts) -> Parts:
        return _Filtered(self, parts)

    async def kept(self, batch: Batch) -> Batch:
        self.at = batch.payload.last
        steps = self._filter.kept_in_steps(batch.payload)
        while (kept := next(steps)) is None:
            await checkpoint()
        if self._skipped is not None and len(kept) < len(batch):
            self._skipped.filtered(len(batch) - len(kept))
        return batch.holding(kept)

    def passed(self) -> Passed | None:
        """After an answer that gave nothing; None: nothing new. What follows the last record that was given is told of then."""
        if self.at is None or self.at == self._told:
            return None
        self._told = self.at
        return Passed(self.at)


@dataclass(slots=True)
class _Filtered:
    filter: ShardFilter
    parts: Parts
    gave: bool = False

    async def next(self) -> Batch | Passed | None:
        while isinstance(part := await self.parts.next(), Batch):
            kept = await self.filter.kept(part)
            if kept:
                self.gave = True
                return kept
        return None if self.gave else self.filter.passed()
