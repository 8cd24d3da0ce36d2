"""What went into one shard and out of it, and what waits or is not checkpointed.

Latency is from a record's arrival in the stream until it is finished. The buckets are those of Prometheus' native histograms, schema 3: bucket `i` ends at 2**(i / 8) seconds, 9 % above the one before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import ceil, exp2, inf, log2
from typing import Final

from kcl_protocol.sequence import ExtendedSequenceNumber

BATCHES_MOST: Final = 256
_SAMPLE_S: Final = 5.0
_RATES_S: Final = 10.0
# Batches of a second or more: over less, their ends would show and not their speed.
_SPEED_S: Final = 30.0
SCHEMA: Final = 3
_IN_A_DOUBLING: Final = 2**SCHEMA
ZERO_S: Final = 2.0**-10
"""Arrival times are in milliseconds; what took no longer is in the bucket `ZERO`."""
ZERO: Final = -10 * _IN_A_DOUBLING
# Thirteen months; no stream is kept for more than a year.
_MOST: Final = 25 * _IN_A_DOUBLING
# A batch is spread over so many places at most.
_PLACES: Final = 6
_ROTATED_S: Final = 150.0
_KNOWN_S: Final = 10.0


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


def bucket_of(seconds: float) -> int:
    return ZERO if seconds <= ZERO_S else min(_MOST, ceil(log2(seconds) * _IN_A_DOUBLING))


def upper_bound_s(bucket: int) -> float:
    return exp2(bucket / _IN_A_DOUBLING)


class LatencyHistogram:
    """Of one shard, since its lease was taken; `of_all` of all shards of a stream, since the start.

    `newest_s` is the arrival of the newest record that was finished, `finished_s` when the last batch was.
    """

    __slots__ = ("buckets", "count", "finished_s", "newest_s", "of_all", "total_s")

    def __init__(self, of_all: LatencyHistogram | None = None) -> None:
        self.buckets: defaultdict[int, int] = defaultdict(int)
        self.count = 0
        self.total_s = 0.0
        self.newest_s = self.finished_s = -inf
        self.of_all = of_all

    def finished(self, now_s: float, arrived_s: float, span_s: float, count: int) -> None:
        """A batch that arrived evenly from `arrived_s` on, for `span_s`."""
        most_s = now_s - arrived_s if now_s > arrived_s else 0.0
        least_s = most_s - span_s if most_s > span_s else 0.0
        self.finished_s = now_s
        self.newest_s = max(self.newest_s, arrived_s + span_s)
        low, high = bucket_of(least_s), bucket_of(most_s)
        total_s, of_all = count * (least_s + most_s) / 2, self.of_all or LatencyHistogram()
        buckets, all_buckets = self.buckets, of_all.buckets
        self.count += count
        self.total_s += total_s
        of_all.count += count
        of_all.total_s += total_s
        if low == high:
            buckets[low] += count
            all_buckets[low] += count
            return
        places = min(count, _PLACES, 2 * (high - low) + 1)
        here, more = divmod(count, places)
        # Few have a place each, many share one: then it stands for the middle of them.
        width_s = (most_s - least_s) / (places if here > 1 or more else max(1, places - 1))
        at_s = least_s + width_s / 2 if here > 1 or more else least_s
        for place in range(places):
            bucket = bucket_of(at_s)
            at_s += width_s
            given = here + 1 if place < more else here
            buckets[bucket] += given
            all_buckets[bucket] += given

    def copy(self) -> LatencyHistogram:
        copied = LatencyHistogram()
        copied.buckets.update(self.buckets)
        copied.count, copied.total_s = self.count, self.total_s
        return copied


def quantiles(buckets: Mapping[int, int], shares: Iterable[float]) -> list[float | None]:
    """Within which time each of the rising `shares` was finished, at most 9 % too long; None: no records."""
    count, ordered = sum(buckets.values()), sorted(buckets.items())
    found, below, place = list[float | None](), 0, -1
    for share in shares:
        while count and below < share * count:
            place += 1
            below += ordered[place][1]
        found.append(None if not count else upper_bound_s(ordered[max(0, place)][0]))
    return found


def below(buckets: Iterable[tuple[int, int]], bounds_s: Iterable[float]) -> list[float]:
    """How many took at most each of the rising `bounds_s`, of sorted `buckets`; in a bucket they are spread evenly."""
    left = iter(buckets)
    bucket, count = next(left, (_MOST + 1, 0))
    found, total = list[float](), 0.0
    for bound_s in bounds_s:
        while count and upper_bound_s(bucket) <= bound_s:
            total += count
            bucket, count = next(left, (_MOST + 1, 0))
        low_s = 0.0 if bucket == ZERO else upper_bound_s(bucket - 1)
        share = (bound_s - low_s) / (upper_bound_s(bucket) - low_s) if count and bound_s > low_s else 0.0
        found.append(total + count * share)
    return found


class RecentLatency:
    """Of the last two and a half to five minutes."""

    def __init__(self, histogram: LatencyHistogram, now_s: float) -> None:
        self._histogram = histogram
        self._before = self._since = dict(histogram.buckets)
        self._rotated_s = now_s
        self._known: tuple[float, tuple[float | None, float | None]] = -inf, (None, None)

    def rotate(self, now_s: float) -> None:
        if now_s - self._rotated_s >= _ROTATED_S:
            self._rotated_s, self._before = now_s, self._since
            self._since = dict(self._histogram.buckets)

    def p50_and_p99(self, now_s: float) -> tuple[float | None, float | None]:
        """Up to ten seconds old."""
        if self._known[1][0] is None or now_s - self._known[0] >= _KNOWN_S:
            before = self._before
            recent = {
                bucket: count - before.get(bucket, 0) for bucket, count in self._histogram.buckets.items()
            }
            p50_s, p99_s = quantiles(recent, (0.5, 0.99))
            self._known = now_s, (p50_s, p99_s)
        return self._known[1]
