"""What went into one shard and out of it, and what waits or is not checkpointed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final

from kcl_protocol.sequence import ExtendedSequenceNumber

BATCHES_MOST: Final = 256
_SAMPLE_S: Final = 5.0
_RATES_S: Final = 10.0
# Batches of a second or more: over less, their ends would show and not their speed.
_SPEED_S: Final = 30.0


@dataclass(eq=False, slots=True)
class ShardFlow:
    """Since the lease was taken.

    Args:
        read_records: without those that are filtered or already done.
        busy_s: how long its child worked on records.
        refused_s: how long nothing was there to give, because Kinesis refused reads or the shard's quota was used up.
        memory_s: the same, because other shards hold the memory.
    """

    read_records: int = 0
    read_bytes: int = 0
    busy_s: float = 0.0
    refused_s: float = 0.0
    memory_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowRates:
    """Over the last ten seconds or more; `busy` (of the busiest lane), `refused` and `memory` are shares of the time.

    `speed`: seconds of the stream finished in a second, over half a minute or more; None: unknown, or nothing to do.
    """

    in_records: float = 0.0
    in_bytes: float = 0.0
    out_records: float = 0.0
    out_bytes: float = 0.0
    speed: float | None = None
    busy: float = 0.0
    refused: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowSample:
    """What was counted until `at_s`; `busy_s` by lane, None: the only child."""

    at_s: float
    read_records: int
    read_bytes: int
    records: int
    data_bytes: int
    busy_s: Mapping[int | None, float]
    refused_s: float
    memory_s: float


class FlowMeter:
    def __init__(self) -> None:
        self._samples: deque[FlowSample] = deque()
        self._finished: deque[tuple[float, float]] = deque()

    def is_due(self, now_s: float) -> bool:
        return not self._samples or now_s - self._samples[-1].at_s >= _SAMPLE_S

    def add(self, sample: FlowSample, *, finished_s: float, newest_s: float) -> None:
        """`newest_s`: arrival of the newest record that was finished until `finished_s`."""
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at_s <= sample.at_s - _RATES_S:
            self._samples.popleft()
        finished = self._finished
        if finished_s > (finished[-1][0] if finished else -inf):
            finished.append((finished_s, newest_s))
            while len(finished) > 2 and finished[1][0] <= finished_s - _SPEED_S:
                finished.popleft()

    def rates(self, *, waiting: bool) -> FlowRates:
        """`waiting`: there are records that are not finished."""
        if len(self._samples) < 2:
            return FlowRates()
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at_s - first.at_s
        busiest_s = max(
            (last.busy_s[lane] - first.busy_s.get(lane, 0.0) for lane in last.busy_s), default=0.0
        )
        return FlowRates(
            (last.read_records - first.read_records) / seconds,
            (last.read_bytes - first.read_bytes) / seconds,
            (last.records - first.records) / seconds,
            (last.data_bytes - first.data_bytes) / seconds,
            self._speed(last.at_s, waiting=waiting),
            min(1.0, busiest_s / seconds),
            min(1.0, (last.refused_s - first.refused_s) / seconds),
            min(1.0, (last.memory_s - first.memory_s) / seconds),
        )

    def _speed(self, now_s: float, *, waiting: bool) -> float | None:
        """While nothing more is finished it falls, once that takes longer than between the batches before."""
        if len(self._finished) < 2 or (not waiting and now_s - self._finished[-1][0] > _SPEED_S):
            return None
        (before_s, before_arrived_s), (last_s, last_arrived_s) = self._finished[0], self._finished[-1]
        return max(0.0, last_arrived_s - before_arrived_s) / max(last_s - before_s, now_s - last_s)


class Uncheckpointed:
    """The batches that were delivered and that the stored checkpoint does not cover.

    Of more than `BATCHES_MOST` neighbours count as one, which is as old as the first of them.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[ExtendedSequenceNumber, float]] = deque()
        self._each = self._in_last = 1

    def delivered(
        self, last: ExtendedSequenceNumber, arrived_s: float, stored: ExtendedSequenceNumber
    ) -> None:
        """What comes again counts from the first time."""
        batches = self._batches
        self._forget(stored)
        if not stored < last or (batches and not batches[-1][0] < last):
            return
        if batches and self._in_last < self._each:
            batches[-1] = last, batches[-1][1]
            self._in_last += 1
            return
        batches.append((last, arrived_s))
        self._in_last = 1
        if len(batches) > BATCHES_MOST:
            pairs = zip(islice(batches, 0, None, 2), islice(batches, 1, None, 2), strict=False)
            self._batches = deque([*((second[0], first[1]) for first, second in pairs), batches[-1]])
            self._each *= 2

    def oldest_s(self, stored: ExtendedSequenceNumber) -> float | None:
        """Arrival of the first record; None: all is checkpointed."""
        self._forget(stored)
        return self._batches[0][1] if self._batches else None

    def _forget(self, stored: ExtendedSequenceNumber) -> None:
        batches = self._batches
        while batches and not stored < batches[0][0]:
            batches.popleft()
        if len(batches) < 2:
            self._each = 1
