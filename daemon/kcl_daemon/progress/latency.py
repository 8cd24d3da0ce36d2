"""How long records take from their arrival in the stream until they are finished.

The buckets are those of Prometheus' native histograms, schema 3: bucket `i` ends at 2**(i / 8) seconds, 9 % above the one before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import ceil, exp2, inf, log2
from typing import Final

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
