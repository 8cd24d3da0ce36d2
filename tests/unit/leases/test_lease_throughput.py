"""Throughput of a lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import Throughput

KIB = 1024


def test_nothing_is_known_before_the_first_delivery() -> None:
    throughput = Throughput(2.0, now_s=0)
    assert throughput.at_renewal(now_s=10) is None
    throughput.begins()
    assert throughput.at_renewal(now_s=20) is None


def test_the_first_figure_is_taken_as_it_is() -> None:
    throughput = Throughput(2.0, now_s=8)
    throughput.record(6 * KIB)
    throughput.record(4 * KIB)
    assert throughput.at_renewal(now_s=10) == 5.0


def test_the_time_before_the_first_delivery_does_not_make_the_first_figure_small() -> None:
    throughput = Throughput(2.0, now_s=0)
    for now_s in range(2, 3_600, 2):
        assert throughput.at_renewal(now_s=now_s) is None
    throughput.record(10 * KIB)
    assert throughput.at_renewal(now_s=3_600) == 5.0


def test_half_of_each_later_figure_is_new() -> None:
    throughput = Throughput(2.0, now_s=8)
    throughput.record(20 * KIB)
    assert throughput.at_renewal(now_s=10) == 10.0
    throughput.record(4 * KIB)
    assert throughput.at_renewal(now_s=12) == 6.0


def test_none_is_taken_before_its_time_and_what_came_counts_in_the_next() -> None:
    throughput = Throughput(2.0, now_s=0)
    throughput.record(KIB)
    assert throughput.at_renewal(now_s=1.9) is None
    throughput.record(KIB)
    assert throughput.at_renewal(now_s=4) == 0.5


def test_it_halves_with_each_idle_renewal() -> None:
    throughput = Throughput(2.0, now_s=8)
    throughput.record(20 * KIB)
    assert [throughput.at_renewal(now_s=now_s) for now_s in (10, 12, 14)] == [10.0, 5.0, 2.5]


def test_it_ends_at_zero() -> None:
    throughput = Throughput(2.0, now_s=0, stored_kbps=1024.0)
    throughput.begins()
    figures = [throughput.at_renewal(now_s=2.0 * n) for n in range(40)]
    assert figures[-1] == 0.0


def test_a_new_owner_goes_on_from_the_stored_figure_once_its_child_has_begun() -> None:
    throughput = Throughput(2.0, now_s=0, stored_kbps=100.0)
    assert throughput.at_renewal(now_s=8) is None
    throughput.record(20 * KIB)
    assert throughput.at_renewal(now_s=10) == 55.0


def test_a_sample_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Throughput(0, now_s=0)


@given(rate=st.integers(1, 10_000), stored=st.none() | st.floats(0, 10_000))
def test_a_steady_flow_is_soon_told_right(rate: int, stored: float | None) -> None:
    throughput, figure = Throughput(4.0, now_s=0, stored_kbps=stored), None
    for window in range(40):
        for _ in range(4):
            throughput.record(rate * KIB)
        figure = throughput.at_renewal(now_s=4.0 * window + 4)
    assert figure == pytest.approx(rate)


@given(steps=st.lists(st.tuples(st.floats(0.001, 20), st.integers(0, 2**20), st.booleans()), max_size=60))
def test_each_byte_counts_in_one_sample_whatever_the_times(steps: list[tuple[float, int, bool]]) -> None:
    """`steps`: a time that passes, what is delivered then, and whether the lease is renewed or checkpointed."""
    throughput, now_s, since_s, kbps, counted, delivered = Throughput(4.0, now_s=0.0), 0.0, 0.0, 0.0, 0.0, 0
    for passes_s, size_bytes, is_renewed in [*steps, (4.0, 0, True)]:
        now_s += passes_s
        throughput.record(size_bytes)
        delivered += size_bytes
        if is_renewed and (figure := throughput.at_renewal(now_s=now_s)) is not None:
            # The average tells the sample: half of each later one is new.
            sample = 2 * figure - kbps if kbps else figure
            counted += sample * KIB * (now_s - since_s)
            kbps = figure
        if is_renewed and now_s - since_s >= 4.0:
            since_s = now_s
    assert counted == pytest.approx(delivered, rel=1e-6, abs=1.0)
