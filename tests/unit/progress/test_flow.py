"""Rates of a shard, from what is counted once a batch."""

from __future__ import annotations

import pytest

from kcl_daemon.progress.flow import FlowMeter, FlowRates, FlowSample


def sample(at_s: float, **counted: float) -> FlowSample:
    """`records` and so on; `busy` is of the only child."""
    whole = {
        name: int(counted.get(name, 0)) for name in ("read_records", "read_bytes", "records", "data_bytes")
    }
    busy_s: dict[int | None, float] = {None: counted.get("busy", 0.0)}
    return FlowSample(
        at_s,
        **whole,
        busy_s=busy_s,
        refused_s=counted.get("refused", 0.0),
        memory_s=counted.get("memory", 0.0),
    )


def test_rates_are_of_the_last_ten_seconds() -> None:
    meter = FlowMeter()
    assert meter.rates(waiting=True) == FlowRates()
    for at_s in range(0, 100, 5):
        assert meter.is_due(float(at_s))
        quick = max(0, at_s - 50)
        meter.add(
            sample(
                at_s, read_records=10 * at_s, read_bytes=1000 * at_s, records=4 * at_s, data_bytes=400 * quick,
                busy=0.5 * at_s, refused=0.25 * at_s, memory=0.125 * at_s,
            ),
            finished_s=float(at_s),
            newest_s=1000.0 + 3 * at_s,
        )  # fmt: skip
        assert not meter.is_due(at_s + 4.9)
    assert meter.rates(waiting=True) == FlowRates(10, 1000, 4, 400, 3.0, 0.5, 0.25, 0.125)


def test_busy_is_that_of_the_busiest_lane_and_never_more_than_all_the_time() -> None:
    meter = FlowMeter()
    before: dict[int | None, float] = {0: 100.0, 1: 5.0}
    for at_s, busy_s in ((0.0, before), (10.0, before | {0: 101.0, 1: 25.0, 2: 3.0})):
        meter.add(FlowSample(at_s, 0, 0, 0, 0, busy_s, 0.0, 0.0), finished_s=0.0, newest_s=0.0)
    assert meter.rates(waiting=True).busy == 1.0


def test_the_speed_of_long_batches_is_steady() -> None:
    """Every 60 s a batch of 120 s of the stream; between them nothing is finished."""
    meter, speeds = FlowMeter(), list[float | None]()
    for at_s in range(0, 600, 5):
        finished = at_s // 60
        meter.add(sample(at_s), finished_s=60.0 * finished, newest_s=120.0 * finished)
        speeds.append(meter.rates(waiting=True).speed)
    assert speeds[0] is None
    assert speeds[30:] == [2.0] * 90


def test_a_child_that_stops_gets_slower_and_one_without_records_has_no_speed() -> None:
    meter = FlowMeter()
    for at_s in range(0, 60, 5):
        meter.add(sample(at_s), finished_s=float(at_s), newest_s=float(at_s))
    assert meter.rates(waiting=True).speed == 1.0
    for at_s in range(60, 400, 5):
        meter.add(sample(at_s), finished_s=55.0, newest_s=55.0)
    assert meter.rates(waiting=True).speed == pytest.approx(30 / 340, rel=0.2)
    assert meter.rates(waiting=False).speed is None


def test_records_that_come_again_are_no_speed() -> None:
    meter = FlowMeter()
    for at_s in range(0, 60, 5):
        meter.add(sample(at_s), finished_s=float(at_s), newest_s=1000.0)
    assert meter.rates(waiting=True).speed == 0.0
