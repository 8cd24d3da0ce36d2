"""How much sooner records come with `idleTimeBetweenReadsInMillis=auto`; the whole table is `make bench-latency`."""

from __future__ import annotations

from tests.benchmarks.latency import measured


def test_with_auto_records_come_in_a_fraction_of_the_time_that_the_default_takes() -> None:
    default = measured("polling, default", busy_s=6.0, silent_s=0.0)
    auto = measured("polling, auto", busy_s=6.0, silent_s=0.0)
    assert len(auto.latencies_s) > 200
    assert auto.p50_s < default.p50_s / 2
    assert default.calls_busy < auto.calls_busy <= 4 * 5 * 60
