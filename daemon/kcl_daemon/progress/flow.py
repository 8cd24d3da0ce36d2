"""What went into one shard and out of it, and what waits.

Counted once a batch, never once a record: this is in the record path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

_SAMPLE_S: Final = 5.0
_RATES_S: Final = 10.0
# Batches of a second or more: over less, their ends would show and not their speed.
_SPEED_S: Final = 30.0


@dataclass(eq=False, slots=True)
class ShardFlow:
    """Of one held lease, since it was taken; `LeaseProgress.records` and `data_bytes` count what was finished.

    Args:
        read_records: for the child, as `read_bytes`: without those that are filtered or already done.
        busy_s: how long its child worked on records; a lane has its own.
        refused_s: how long nothing was there to give, because Kinesis refused reads or the quota of the shard was used up.
        memory_s: as `refused_s`, because other shards hold the memory.
    """

    read_records: int = 0
    read_bytes: int = 0
    busy_s: float = 0.0
    refused_s: float = 0.0
    memory_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowRates:
    """Of one shard over the last ten seconds or more; shares are 0 to 1.

    Args:
        speed: seconds of the stream finished in a second, by arrival, over half a minute or more; None: unknown, or
            nothing was finished and nothing waits.
        busy: share of the time that its child worked; with lanes, of the busiest lane.
        refused: share of the time that reading waited for the shard's quota or was refused.
        memory: share of the time that reading waited for memory.
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
    """What was counted until `at_s` (monotonic); `busy_s` by lane, None: the only child."""

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
