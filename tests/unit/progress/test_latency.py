"""The histogram of times from arrival to finished: a batch at a time, and right within nine percent."""

from __future__ import annotations

from math import inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.progress.flow import (
    ZERO,
    ZERO_S,
    LatencyHistogram,
    RecentLatency,
    below,
    bucket_of,
    quantiles,
    upper_bound_s,
)

_STEP = 2 ** (1 / 8)


@given(st.floats(ZERO_S * 1.001, 2.0**24))
def test_a_bucket_has_what_is_above_the_one_before_and_at_most_its_bound(seconds: float) -> None:
    bucket = bucket_of(seconds)
    assert upper_bound_s(bucket - 1) * (1 - 1e-9) <= seconds <= upper_bound_s(bucket) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, ZERO), (ZERO_S, ZERO), (1.0, 0), (2.0, 8), (1e12, 200), (inf, 200)]
)
def test_bounds_and_ends(seconds: float, bucket: int) -> None:
    if seconds == inf:
        with pytest.raises(OverflowError):
            bucket_of(seconds)  # no caller has such an age
    else:
        assert bucket_of(seconds) == bucket


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.integers(1, 10_000)), max_size=20))
def test_no_record_is_lost_or_counted_twice_wherever_a_batch_is_spread(
    batches: list[tuple[float, float, int]],
) -> None:
    of_all = LatencyHistogram()
    histogram = LatencyHistogram(of_all)
    sums = 0.0
    for most_s, span_s, count in batches:
        histogram.finished(1e6, 1e6 - most_s, span_s, count)
        sums += count * (most_s + max(0.0, most_s - span_s)) / 2
    for each in (histogram, of_all):
        assert sum(each.buckets.values()) == each.count == sum(count for *_, count in batches)
        assert all(count > 0 for count in each.buckets.values())
        assert isclose(each.total_s, sums, rel_tol=1e-6, abs_tol=1e-3)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 10_000))
def test_a_batch_takes_a_bounded_number_of_buckets_between_its_first_and_its_last_record(
    least_s: float, span_s: float, count: int
) -> None:
    histogram = LatencyHistogram()
    histogram.finished(1e6, 1e6 - least_s - span_s, span_s, count)
    assert len(histogram.buckets) <= 8
    assert bucket_of(least_s) - 1 <= min(histogram.buckets)
    assert max(histogram.buckets) <= bucket_of(least_s + span_s) + 1


def test_a_batch_is_spread_evenly_between_its_first_and_its_last_record() -> None:
    """Eighty records, one each second: the first waits 80 s, the last a second."""
    histogram = LatencyHistogram()
    histogram.finished(100.0, 20.0, 79.0, 80)
    assert sum(histogram.buckets.values()) == 80
    p50_s, p90_s = quantiles(histogram.buckets, (0.5, 0.9))
    assert p50_s == pytest.approx(40, rel=0.2)
    assert p90_s == pytest.approx(72, rel=0.2)


def test_an_age_is_never_negative() -> None:
    histogram = LatencyHistogram()
    histogram.finished(100.0, 105.0, 3.0, 4)
    assert dict(histogram.buckets) == {ZERO: 4}
    assert (histogram.total_s, histogram.newest_s) == (0.0, 108.0)


@given(st.lists(st.floats(0.002, 1e5), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_at_most_nine_percent_too_long(ages_s: list[float], share: float) -> None:
    histogram = LatencyHistogram()
    for age_s in ages_s:
        histogram.finished(1e6, 1e6 - age_s, 0.0, 1)
    (found_s,) = quantiles(histogram.buckets, (share,))
    true_s = next(age_s for place, age_s in enumerate(sorted(ages_s), 1) if place >= share * len(ages_s))
    assert found_s is not None
    assert true_s * 0.999 <= found_s <= true_s * _STEP * 1.001


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantiles({}, (0.5, 0.99)) == [None, None]


@given(
    st.dictionaries(st.integers(ZERO, 100), st.integers(1, 1000), max_size=30),
    st.lists(st.floats(0.0005, 1e5), max_size=15).map(sorted),
)
def test_below_a_bound_is_all_that_certainly_is_and_nothing_that_certainly_is_not(
    buckets: dict[int, int], bounds_s: list[float]
) -> None:
    found = below(sorted(buckets.items()), bounds_s)
    assert found == sorted(found)
    for bound_s, count in zip(bounds_s, found, strict=True):
        least = sum(here for bucket, here in buckets.items() if upper_bound_s(bucket) <= bound_s)
        most = sum(
            here for bucket, here in buckets.items() if bucket == ZERO or upper_bound_s(bucket - 1) < bound_s
        )
        assert least - 1e-6 <= count <= most + 1e-6


def test_a_bound_never_counts_less_when_more_is_finished() -> None:
    histogram, before = LatencyHistogram(), [0.0] * 3
    for number in range(1, 300):
        histogram.finished(1000.0, 1000.0 - number / 40, number / 80, number % 7 + 1)
        now = below(sorted(histogram.buckets.items()), (0.1, 1.0, 5.0))
        assert all(then <= here for then, here in zip(before, now, strict=True))
        before = now


def test_recent_latency_forgets_records_of_earlier_minutes() -> None:
    histogram = LatencyHistogram()
    recent = RecentLatency(histogram, 0.0)
    assert recent.p50_and_p99(0.0) == (None, None)
    histogram.finished(10.0, 0.0, 0.0, 99)
    assert recent.p50_and_p99(11.0) == pytest.approx((10, 10), rel=0.1)
    histogram.finished(12.0, 11.0, 0.0, 900)
    assert recent.p50_and_p99(12.0) == pytest.approx((10, 10), rel=0.1), "a figure may be ten seconds old"
    assert recent.p50_and_p99(21.0) == pytest.approx((1, 10), rel=0.1)
    recent.rotate(150.0)
    histogram.finished(160.0, 158.0, 0.0, 4500)
    assert recent.p50_and_p99(161.0) == pytest.approx((2, 10), rel=0.1), "that of 150 s ago is among them"
    recent.rotate(200.0)
    recent.rotate(300.0)
    assert recent.p50_and_p99(301.0) == (2.0, 2.0)
    recent.rotate(450.0)
    assert recent.p50_and_p99(451.0) == (None, None)


def test_a_copy_stands_still() -> None:
    histogram = LatencyHistogram()
    histogram.finished(10.0, 9.0, 0.0, 3)
    copied = histogram.copy()
    histogram.finished(20.0, 9.0, 0.0, 3)
    assert (dict(copied.buckets), copied.count, copied.total_s) == ({0: 3}, 3, 3.0)
