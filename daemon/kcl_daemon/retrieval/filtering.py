"""Readers with a `recordFilter`: what does not match is not delivered, and the position goes on.

They are classes of their own, so that nothing is done for a filter where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from anyio.lowlevel import checkpoint

from kcl_daemon.ports import FetchedRecords, PushedRecords
from kcl_daemon.records.batch import Batch
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.retrieval.fan_out import FanOutReader
from kcl_daemon.retrieval.polling import PollingReader, PollResult
from kcl_daemon.retrieval.schemas import Decoder
from kcl_daemon.retrieval.source import EndOfShard, Passed, ReadItem, ShardSource
from kcl_protocol.sequence import ExtendedSequenceNumber


class _Looked:
    """How far the records of one reader were looked at.

    Args:
        kept: since `passed` was called.
        told: what `passed` returned last.
    """

    __slots__ = ("at", "kept", "told")

    def __init__(self) -> None:
        self.at: ExtendedSequenceNumber | None = None
        self.told: ExtendedSequenceNumber | None = None
        self.kept = False

    def passed(self) -> Passed | None:
        """What the child's side is told after an answer that gave it nothing; None: nothing new.

        Records that come after the last one of a batch are told of with the next answer, if it gives nothing.
        """
        kept, self.kept = self.kept, False
        if kept or self.at is None or self.at == self.told:
            return None
        self.told = self.at
        return Passed(self.at)


class FilteredSource(ShardSource):
    """Schemas are resolved first: a filter sees data without a header."""

    __slots__ = ("_filter", "looked")

    def __init__(self, source: ShardSource, record_filter: RecordFilter) -> None:
        super().__init__(**{each.name: getattr(source, each.name) for each in fields(source)})
        object.__setattr__(self, "_filter", record_filter)
        object.__setattr__(self, "looked", _Looked())

    looked: _Looked
    _filter: RecordFilter

    def undelivered(self, batch: Batch) -> Iterator[Batch]:
        for part in super().undelivered(batch):
            if part:
                self.looked.at = part.payload.last
            yield part

    async def chosen(self, part: Batch) -> Batch:
        return part if self.schemas is not None or not part else await self.kept(part)

    def decoder(self, batch: Batch) -> Decoder | None:
        return None if self.schemas is None else _FilteredParts(self, batch, super().decoder(batch))

    async def kept(self, batch: Batch) -> Batch:
        steps = self._filter.kept_in_steps(batch.payload)
        while (kept := next(steps)) is None:
            await checkpoint()
        self.looked.kept |= bool(kept)
        if self.skipped is not None and len(kept) < len(batch):
            self.skipped.filtered(len(batch) - len(kept))
        return batch.holding(kept)


@dataclass(slots=True)
class _FilteredParts:
    """`decoder` None: nothing in `batch` needs decoding."""

    source: FilteredSource
    batch: Batch | None
    decoder: Decoder | None

    async def next(self) -> Batch | None:
        while (part := await self._next()) is not None:
            kept = await self.source.kept(part)
            if kept:
                return kept
        return None

    async def _next(self) -> Batch | None:
        if self.decoder is not None:
            return await self.decoder.next()
        whole, self.batch = self.batch, None
        return whole


class FilteringPollingReader(PollingReader):
    async def _accept(self, fetched: FetchedRecords, asked_ms: int) -> PollResult | None:
        answer = await super()._accept(fetched, asked_ms)
        self._put_passed()
        return answer

    def _put(self, item: ReadItem) -> None:
        if isinstance(item, EndOfShard):
            self._put_passed()  # nothing is taken after the end
        super()._put(item)

    def _put_passed(self) -> None:
        assert isinstance(self._source, FilteredSource), "its factory gives it one"
        if (passed := self._source.looked.passed()) is not None:
            super()._put(passed)


class FilteringFanOutReader(FanOutReader):
    async def _accept(self, pushed: PushedRecords, asked_ms: int) -> bool:
        at_bound = await super()._accept(pushed, asked_ms)
        assert isinstance(self._source, FilteredSource), "its factory gives it one"
        if (passed := self._source.looked.passed()) is not None:
            await self._put(passed)
        return at_bound
