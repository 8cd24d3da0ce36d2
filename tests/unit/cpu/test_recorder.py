"""Samples become averages: `kcl_daemon.cpu.sources`."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.cpu.sources import FAILED, CpuRecorder


def _recorder(*samples: float | None) -> CpuRecorder:
    recorder = CpuRecorder()
    for sample in samples:
        recorder.add(sample)
    return recorder


def test_a_window_is_the_mean_of_its_samples() -> None:
    recorder = _recorder(10, 20, 60)
    assert recorder.drain() == 30
    assert recorder.averages == (Decimal(30),)


@pytest.mark.parametrize(
    ("percent", "average"),
    [
        (12.3456785, "12.345679"),
        (12.3456784999, "12.345678"),
        (0.0000005, "0.000001"),
        (0, "0.000000"),
        (100, "100.000000"),
    ],
)
def test_averages_have_six_decimals_rounded_half_up(percent: float, average: str) -> None:
    assert str(_recorder(percent).drain()) == average


def test_failed_captures_do_not_count_in_the_mean() -> None:
    assert _recorder(None, 40, None).drain() == 40


@pytest.mark.parametrize("percent", [-0.1, 100.1, float("nan"), float("inf"), None])
def test_a_figure_that_is_no_percentage_is_a_failed_capture(percent: float | None) -> None:
    recorder = _recorder(50)
    recorder.drain()
    recorder.add(percent)
    assert recorder.drain() == FAILED == -1
    assert recorder.averages == (Decimal(50), Decimal(-1))


def test_a_worker_that_could_never_measure_has_no_averages() -> None:
    recorder = _recorder(None, None)
    assert recorder.drain() is None
    assert recorder.averages == ()


def test_a_window_in_which_nothing_was_tried_adds_nothing() -> None:
    recorder = _recorder(50, None)
    recorder.drain()
    assert recorder.drain() is None
    assert recorder.averages == (Decimal(50),)


def test_a_window_starts_without_the_samples_of_the_one_before() -> None:
    recorder = _recorder(90, None)
    recorder.drain()
    recorder.add(10)
    assert recorder.drain() == 10


def test_of_more_than_300_samples_the_last_count() -> None:
    recorder = _recorder(*[100.0] * 50, *[10.0] * 299)
    assert recorder.drain() == Decimal("10.3")
    assert _recorder(*[100.0] * 50, *[10.0] * 300).drain() == 10


def test_the_last_ten_averages_are_kept_oldest_first() -> None:
    recorder = CpuRecorder()
    for percent in range(13):
        recorder.add(percent)
        recorder.drain()
    assert recorder.averages == tuple(Decimal(percent) for percent in range(3, 13))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=400))
def test_an_average_lies_between_the_samples(samples: list[float]) -> None:
    average = _recorder(*samples).drain()
    assert average is not None
    micro = Decimal("0.000001")
    assert Decimal(min(samples)) - micro <= average <= Decimal(max(samples)) + micro
    assert 0 <= average <= 100


def test_only_so_many_averages_are_kept() -> None:
    recorder = CpuRecorder(max_averages=2)
    for percent in (10, 20, 30):
        recorder.add(percent)
        recorder.drain()
    assert recorder.averages == (Decimal(20), Decimal(30))
