"""A batch: records of one shard in their order, together with what their answers told of them.

What Kinesis says of an answer (its distance to the tip, when its records arrived, until when it is complete) is true of
each part of it in another way. So only the operations here make a batch from a batch. Nobody keeps a fact of a batch
beside it: at a cut it would stay with the wrong half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import inf
from typing import NamedTuple

from kcl_daemon.records.payload import EMPTY, LINE_OVERHEAD_BYTES, AnyRecord, Payload, Split, data_bytes_of
from kcl_protocol.sequence import ExtendedSequenceNumber


class Limits(NamedTuple):
    records: int
    data_bytes: int
    line_bytes: int

    @classmethod
    def of(cls, records: int, data_bytes: int) -> Limits:
        return cls(records, data_bytes, 4 * data_bytes // 3 + LINE_OVERHEAD_BYTES * records)

    def allow(self, sizes: Limits) -> bool:
        return all(size <= limit for size, limit in zip(sizes, self, strict=True))


class ReadFacts(NamedTuple):
    """What is known of each record of one answer.

    Args:
        arrived_s: monotonic arrival of what Kinesis dates `dated_ms` (epoch milliseconds; None: nothing is dated).
        behind_ms: how far the end of the answer was behind the tip; None: not known.
    """

    arrived_s: float
    dated_ms: int | None
    behind_ms: int | None

    def arrival_s(self, dated_ms: int | None) -> float:
        if dated_ms is None or self.dated_ms is None:
            return self.arrived_s
        return self.arrived_s + (dated_ms - self.dated_ms) / 1000

    def date_ms(self, arrived_s: float) -> float:
        """Before all dates if nothing is dated."""
        return -inf if self.dated_ms is None else self.dated_ms + 1000 * (arrived_s - self.arrived_s)

    @staticmethod
    def joined(parts: Sequence[ReadFacts]) -> ReadFacts:
        """In the order of their answers. Where these differ, a record is as young as one of them says."""
        last = parts[-1]
        youngest = max(parts, key=lambda each: each.arrival_s(last.dated_ms))
        return youngest._replace(behind_ms=last.behind_ms)


@dataclass(frozen=True, slots=True)
class Batch:
    """Made of one answer, or joined of several.

    Args:
        read: facts of the answer that it ends in.
        complete_ms: no record behind these arrived before it; None: not known, as wherever the answer goes on.
        earlier: facts of the answers before that one, each after the number of its last record.
    """

    payload: Payload
    read: ReadFacts
    complete_ms: int | None = None
    earlier: tuple[tuple[int, ReadFacts], ...] = ()

    def __len__(self) -> int:
        return len(self.payload)

    @property
    def records(self) -> Sequence[AnyRecord]:
        return self.payload.records

    @property
    def facts(self) -> ReadFacts:
        if not self.earlier:
            return self.read
        return ReadFacts.joined([*(facts for _, facts in self.earlier), self.read])

    @property
    def behind_ms(self) -> int | None:
        return self.read.behind_ms

    @property
    def arrived_s(self) -> float | None:
        """Monotonic arrival of the first record."""
        return self.facts.arrival_s(self.payload.first_arrival_ms) if self.payload else None

    @property
    def sizes(self) -> Limits:
        return Limits.of(len(self), self.payload.data_bytes)

    @property
    def end(self) -> Batch:
        return self.holding(EMPTY)

    def holding(self, payload: Payload) -> Batch:
        """With some of its records, or what was found in them: the others are left out for good."""
        return self if payload is self.payload else self._with(payload, self.complete_ms)

    def _part(self, payload: Payload) -> Batch:
        """Others of its records follow."""
        return self._with(payload, None)

    def _with(self, payload: Payload, complete_ms: int | None) -> Batch:
        read, earlier = self.read, self.earlier
        if earlier and payload:
            first, last = (int(each.sequence_number) for each in (payload.first, payload.last))
            earlier = tuple(each for each in earlier if first <= each[0])
            beyond = [at for at, (end, _) in enumerate(earlier) if last <= end]
            if beyond:
                read, earlier = earlier[beyond[0]][1], earlier[: beyond[0]]
        return Batch(payload, read, complete_ms, earlier)

    def part(self, begin: int, end: int) -> Batch:
        if begin == 0 and end >= len(self):
            return self
        payload = self.payload.some(self.records[begin:end])
        return self.holding(payload) if end >= len(self) else self._part(payload)

    def after(self, position: ExtendedSequenceNumber) -> Batch:
        return self.holding(self.payload.after(position))

    def before(self, time_ms: int) -> Batch:
        """Up to the first record that arrived then or later, whatever follows it."""
        payload = self.payload.arrived_before(time_ms)
        return self if len(payload) == len(self) else self._part(payload)

    def cut(self, limits: Limits) -> tuple[Batch, Batch]:
        """As many of the first records as the limits allow, and the others; one of both may be empty."""
        data_bytes = count = 0
        for record in islice(self.records, limits.records):
            data_bytes += data_bytes_of(record)
            if not limits.allow(Limits.of(count + 1, data_bytes)):
                break
            count += 1
        return self._part(self.payload.some(self.records[:count])), self.part(count, len(self))

    def pieces(self, limits: Limits) -> Iterator[Batch]:
        """Parts within the limits; one record may exceed them."""
        if limits.allow(self.sizes):
            yield self
            return
        begin = data_bytes = 0
        for at, record in enumerate(self.records):
            size_bytes = data_bytes_of(record)
            if at > begin and not limits.allow(Limits.of(at - begin + 1, data_bytes + size_bytes)):
                yield self.part(begin, at)
                begin, data_bytes = at, 0
            data_bytes += size_bytes
        yield self.part(begin, len(self))

    def opened(self, split: Split) -> Iterator[Batch]:
        """As `Payload.opened`."""
        for payload, is_last in self.payload.opened(split):
            yield self.holding(payload) if is_last else self._part(payload)

    @staticmethod
    def joined(parts: Sequence[Batch]) -> Batch:
        """A part without records may tell until when those before it are complete."""
        last = next((each for each in reversed(parts) if each or each.complete_ms is not None), parts[-1])
        given = [each for each in parts if each] or [parts[-1]]
        payload = Payload.joined([each.payload for each in given]) if len(given) > 1 else given[0].payload
        earlier = [*given[0].earlier]
        for each, following in pairwise(given):
            if each.read != (following.earlier[0][1] if following.earlier else following.read):
                earlier.append((int(each.payload.last.sequence_number), each.read))
            earlier += following.earlier
        return Batch(payload, given[-1].read, last.complete_ms, tuple(earlier))


def nothing(behind_ms: int | None, complete_ms: int | None = None) -> Batch:
    return Batch(EMPTY, ReadFacts(inf, None, behind_ms), complete_ms)
