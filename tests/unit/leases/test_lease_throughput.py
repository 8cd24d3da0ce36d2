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
    throughput.record(6 * KIB, now_s=9)
    throughput.record(4 * KIB, now_s=10)
    assert throughput.at_renewal(now_s=10) == 5.0


def test_the_time_before_the_first_delivery_does_not_make_the_first_figure_small() -> None:
    throughput = Throughput(2.0, now_s=0)
    for now_s in range(2, 3_600, 2):
        assert throughput.at_renewal(now_s=now_s) is None
    throughput.record(10 * KIB, now_s=3_600)
    assert throughput.at_renewal(now_s=3_600) == 5.0


def test_the_throughput_of_a_lease_is_half_that_of_the_last_interval() -> None:
    throughput = Throughput(2.0, now_s=8)
    throughput.record(20 * KIB, now_s=10)
    assert throughput.at_renewal(now_s=10) == 10.0
    throughput.record(4 * KIB, now_s=12)
    assert throughput.at_renewal(now_s=12) == 6.0
    throughput.record(8 * KIB, now_s=16)
    assert throughput.at_renewal(now_s=16) == 3.0, "of twice the time: three quarters"


def test_none_is_taken_before_its_time_and_what_came_counts_in_the_next() -> None:
    throughput = Throughput(2.0, now_s=0)
    throughput.record(KIB, now_s=1.9)
    assert throughput.at_renewal(now_s=3) is None
    throughput.record(KIB, now_s=4)
    assert throughput.at_renewal(now_s=5) == 0.5


def test_bursts_are_told_alike_whenever_it_is_asked() -> None:
    throughput, figures = Throughput(4.0, now_s=0), list[float | None]()
    for tenth in range(1, 2_000):
        if not tenth % 50:
            throughput.record(500 * KIB, now_s=tenth / 10)
        if not tenth % 41:
            figures.append(throughput.at_renewal(now_s=tenth / 10))
    told = [figure for figure in figures if figure is not None]
    assert len(told) > 30
    assert told[8:] == [pytest.approx(100, rel=0.01)] * len(told[8:])


def test_it_falls_once_nothing_has_come_for_some_time_and_ends_at_zero() -> None:
    throughput = Throughput(2.0, now_s=0, stored_kbps=1024.0)
    throughput.begins()
    figures = [throughput.at_renewal(now_s=2.0 * number) for number in range(200)]
    assert figures[:7] == [None, None, None, 128.0, None, None, 16.0]

    assert [figure for figure in figures if figure is not None][-1] == 0.0


def test_a_new_owner_goes_on_from_the_stored_figure_once_its_child_has_begun() -> None:
    throughput = Throughput(2.0, now_s=0, stored_kbps=100.0)
    assert throughput.at_renewal(now_s=8) is None
    throughput.record(20 * KIB, now_s=10)
    assert throughput.at_renewal(now_s=10) == 55.0


@pytest.mark.parametrize("least_s", [0, -1])
def test_a_sample_of_no_time_is_refused(least_s: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Throughput(least_s, now_s=0)


def test_it_falls_after_three_samples_without_a_byte_however_short_they_are() -> None:
    idle = Throughput(0.25, now_s=0, stored_kbps=8.0)
    idle.begins()
    assert idle.at_renewal(now_s=0.5) is None
    assert idle.at_renewal(now_s=0.75) == 1.0
    busy = Throughput(0.25, now_s=0)
    for now_s in (0.25, 0.5):
        busy.record(KIB, now_s=now_s)
        assert busy.at_renewal(now_s=now_s) == 4.0
    assert busy.at_renewal(now_s=1.0) is None
    assert busy.at_renewal(now_s=1.25) == 0.5


def test_a_flow_with_pauses_is_not_idle_before_twice_the_longest_pause_of_its_last_sample() -> None:
    throughput = Throughput(2.0, now_s=0)
    throughput.record(10 * KIB, now_s=10)
    assert throughput.at_renewal(now_s=10) == 1.0
    assert throughput.at_renewal(now_s=29) is None
    throughput.record(10 * KIB, now_s=29)
    assert throughput.at_renewal(now_s=29) is not None
    throughput.record(KIB, now_s=31)
    assert throughput.at_renewal(now_s=31) is not None
    assert throughput.at_renewal(now_s=36) is None
    assert throughput.at_renewal(now_s=37) is not None, "the last pause was short"


def test_a_throughput_that_the_last_decimal_of_a_row_still_shows_is_not_rounded_to_zero() -> None:
    throughput = Throughput(2.0, now_s=0, stored_kbps=0.000004)
    throughput.begins()
    assert throughput.at_renewal(now_s=6) == 0.0000005
    assert throughput.at_renewal(now_s=12) == 0.0


@given(rate=st.integers(1, 10_000), stored=st.none() | st.floats(0, 10_000))
def test_a_steady_flow_is_soon_told_right(rate: int, stored: float | None) -> None:
    throughput, figure = Throughput(4.0, now_s=0, stored_kbps=stored), None
    for second in range(1, 161):
        throughput.record(rate * KIB, now_s=second)
        figure = throughput.at_renewal(now_s=second) or figure
    assert figure == pytest.approx(rate)


@given(steps=st.lists(st.tuples(st.floats(0.001, 20), st.integers(0, 2**20), st.booleans()), max_size=60))
def test_each_byte_counts_in_one_sample_whatever_the_times(steps: list[tuple[float, int, bool]]) -> None:
    """`steps`: a time that passes, what is delivered then, and whether the lease is renewed or checkpointed."""
    throughput, now_s, counted, delivered = Throughput(4.0, now_s=0.0), 0.0, 0.0, 0
    for passes_s, size_bytes, is_renewed in [*steps, (4.0, 0, False), (20.0, 0, True), (20.0, 0, True)]:
        now_s += passes_s
        if size_bytes:
            throughput.record(size_bytes, now_s=now_s)
            delivered += size_bytes
        began_s, kbps = throughput._since_s, throughput._kbps
        if is_renewed and (figure := throughput.at_renewal(now_s=now_s)) is not None:
            took_s = throughput._since_s - began_s
            assert took_s >= 4.0
            old = 0.0 if kbps is None else 0.5 ** (took_s / 4.0)
            counted += (figure - old * (kbps or 0.0)) / (1 - old) * KIB * took_s
    assert counted == pytest.approx(delivered, rel=1e-6, abs=2.0)
