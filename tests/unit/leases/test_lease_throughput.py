"""Throughput of a lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import Throughput

KIB = 1024


def test_nothing_is_known_before_the_first_delivery() -> None:
    assert Throughput(2.0).at_renewal(now_s=10) is None


def test_the_first_figure_is_taken_as_it_is() -> None:
    throughput = Throughput(2.0)
    throughput.record(6 * KIB, now_s=9)
    throughput.record(4 * KIB, now_s=9.5)
    assert throughput.at_renewal(now_s=10) == 5.0


def test_half_of_each_later_figure_is_new() -> None:
    throughput = Throughput(2.0)
    throughput.record(20 * KIB, now_s=9)
    assert throughput.at_renewal(now_s=10) == 10.0
    throughput.record(4 * KIB, now_s=11)
    assert throughput.at_renewal(now_s=12) == 6.0


def test_a_delivery_counts_for_one_window_only() -> None:
    throughput = Throughput(2.0)
    throughput.record(100 * KIB, now_s=8)
    throughput.record(4 * KIB, now_s=8.001)
    assert throughput.at_renewal(now_s=10) == 2.0


def test_it_halves_with_each_idle_window() -> None:
    throughput = Throughput(2.0)
    throughput.record(20 * KIB, now_s=9)
    assert [throughput.at_renewal(now_s=now_s) for now_s in (10, 12, 14)] == [10.0, 5.0, 2.5]


def test_a_delivery_older_than_the_window_begins_at_nothing() -> None:
    throughput = Throughput(2.0)
    throughput.record(20 * KIB, now_s=1)
    assert throughput.at_renewal(now_s=10) == 0.0


def test_it_ends_at_zero() -> None:
    throughput = Throughput(2.0, stored_kbps=1024.0)
    figures = [throughput.at_renewal(now_s=2.0 * n) for n in range(40)]
    assert figures[-1] == 0.0


def test_a_new_owner_goes_on_from_the_stored_figure() -> None:
    throughput = Throughput(2.0, stored_kbps=100.0)
    throughput.record(20 * KIB, now_s=9)
    assert throughput.at_renewal(now_s=10) == 55.0


def test_what_counts_no_more_is_forgotten_while_nobody_asks_for_a_figure() -> None:
    throughput = Throughput(2.0)
    for second in range(10_000):
        throughput.record(KIB, now_s=second)
    assert len(throughput._deliveries) <= 2
    assert throughput.at_renewal(now_s=9_999) == 1.0


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Throughput(0)


@given(rate=st.integers(1, 10_000), stored=st.none() | st.floats(0, 10_000))
def test_a_steady_flow_is_soon_told_right(rate: int, stored: float | None) -> None:
    throughput, figure = Throughput(4.0, stored_kbps=stored), None
    for window in range(40):
        for second in range(4):
            throughput.record(rate * KIB, now_s=4.0 * window + second + 0.5)
        figure = throughput.at_renewal(now_s=4.0 * window + 4)
    assert figure == pytest.approx(rate)
