"""How loaded a worker is, in figures: shares, costs, weights, and what a move changes."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from kcl_daemon.assignment.load import (
    BalanceOptions,
    LeaseWeights,
    WorkerLoad,
    measure_fleet,
    metric_title,
    smoothed,
)
from kcl_daemon.assignment.plan import LeaseLimits
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.worker_row import CPU, MEMORY, NETWORK_IN, THROUGHPUT, MetricName, WorkerRow
from tests.unit.assignment.fleets import A, B, C, fleet, lease, on_one_host, reports


def load(**values: float) -> WorkerLoad:
    """CPU has a fair share of 80 %, memory one of 20 %; a unit of weight costs 2 points of each."""
    names = {MetricName(name): value for name, value in values.items()}
    shares = {CPU: 80.0, MEMORY: 20.0}
    fair, ceilings = {name: shares[name] for name in names}, {CPU: 90.0, MEMORY: 60.0}
    return WorkerLoad(A, names, fair, ceilings, dict.fromkeys(names, 2.0), limits=LeaseLimits())


def test_the_metric_that_leads_is_the_one_furthest_above_its_share() -> None:
    worker = load(C=72.0, M=19.0)
    assert (worker.leading, worker.excess_points) == (MEMORY, -1.0)
    assert worker.relative == pytest.approx(0.95)
    assert worker.relative_with(4.0) == pytest.approx(27 / 20)
    assert load(C=76.0, M=18.0).leading == CPU


def test_the_operating_range_itself_is_not_above_it() -> None:
    assert not load(C=90.0, M=60.0).is_above_ceiling
    assert load(C=90.5, M=60.0).is_above_ceiling


def test_load_of_a_worker_follows_the_leases_that_it_drops_and_is_given() -> None:
    worker = load(C=30.0, M=3.0)
    worker.add(lease(0), 5.0, 100.0)
    worker.add(lease(1), 2.0, 50.0)
    assert (worker.leases, worker.weight, worker.throughput_kbps) == (2, 7.0, 150.0)
    assert worker.values == {CPU: 44.0, MEMORY: 17.0}
    worker.drop(lease(0), 5.0, 100.0)
    assert (worker.leases, worker.weight, worker.throughput_kbps) == (1, 2.0, 50.0)
    assert worker.values == {CPU: 34.0, MEMORY: 7.0}
    worker.shift(-10.0)
    assert worker.values == {CPU: 14.0, MEMORY: 0.0}


def test_throughput_is_told_in_kib_and_all_else_in_percent() -> None:
    worker = load(C=72.4)
    worker.throughput_kbps = 1234.5
    assert worker.describe(CPU) == "72 %"
    worker.values[MetricName("Z")] = 3.0
    assert (worker.describe(THROUGHPUT), worker.describe(MetricName("Z"))) == ("1234 KiB/s", "3 %")
    names = (CPU, NETWORK_IN, THROUGHPUT, MetricName("A"), MetricName("Z"))
    assert [metric_title(name) for name in names] == ["cpu", "network in", "throughput", "A", "Z"]


def test_a_lease_weighs_at_least_a_tenth_of_the_average_and_one_where_nothing_is_read() -> None:
    scale = LeaseWeights(100.0, measured=True)
    rows = [lease(0, A, 250.0), lease(1, A, 10.0), lease(2, A, 9.0), lease(3, A)]
    assert [scale.weight(each) for each in rows] == [250.0, 10.0, 10.0, 100.0]
    assert [scale.is_felt(each) for each in rows] == [True, True, False, False]
    idle = LeaseWeights(0.0, measured=True)
    assert (idle.weight(rows[3]), idle.is_felt(rows[3])) == (1.0, True)


def test_an_idle_capture_counts_and_a_failed_one_does_not() -> None:
    assert smoothed([0.0], 0.5) == 0.0
    assert smoothed([0.5, -1.0], 0.5) == 0.5
    assert smoothed([8.0, 0.0], 0.25) == 6.0
    assert smoothed([-1.0], 0.5) is None


@pytest.mark.parametrize(("percent", "quiet"), [(5.0, False), (4.9, True)])
def test_figures_mean_something_from_five_percent(percent: float, quiet: bool) -> None:
    seen = measure_fleet(fleet([lease(0, A, 10.0)], A, stats=reports(a=percent)), alpha=0.5)
    assert seen.quiet is quiet
    assert seen.loads[A].leading == (THROUGHPUT if quiet else CPU)


def test_a_fair_share_counts_what_waits_and_what_is_on_its_way() -> None:
    leases = [
        lease(0, A, 100.0),
        lease(1, None, 100.0),
        lease(2, B, 40.0, old_owner=A),
        lease(3, WorkerId("x"), 900.0),
    ]
    seen = measure_fleet(fleet(leases, A, B, C), alpha=0.5)
    assert seen.target_weight == pytest.approx((100 + 100 + seen.scale.weight(leases[2])) / 3)
    assert [each.lease_key for each in seen.waiting] == [leases[1].lease_key]
    assert {worker: each.leases for worker, each in seen.loads.items()} == {A: 1, B: 1, C: 0}
    assert measure_fleet(fleet([], A), alpha=0.5).target_weight == 1.0


def test_only_workers_that_share_a_host_are_named_and_have_its_mean() -> None:
    rows = reports(a=20.0, b=40.0, c=60.0)
    shared = {
        **on_one_host({A: rows[A], B: rows[B]}),
        C: WorkerRow(C, 1, {CPU: (60.0,)}, {CPU: 100}, host="boot-2"),
    }
    seen = measure_fleet(
        fleet([lease(n, each, 50.0) for n, each in enumerate((A, B, C))], A, B, C, stats=shared), alpha=0.5
    )
    assert seen.hosts == ((A, B),)
    assert [seen.loads[each].values[CPU] for each in (A, B, C)] == [30.0, 30.0, 60.0]


def test_a_worker_that_reads_nothing_is_charged_what_the_fleet_pays_for_a_unit() -> None:
    leases = [lease(0, A, 30.0), lease(1, B, 45.0)]
    seen = measure_fleet(fleet(leases, A, B, C, stats=reports(a=50.0, b=40.0, c=15.0)), alpha=0.5)
    assert seen.loads[C].costs[CPU] == pytest.approx((50 + 40 + 15) / (30 + 45))
    assert seen.loads[A].costs[CPU] == pytest.approx(50 / 30)
    assert {each.shares[CPU] for each in seen.loads.values()} == {35.0}
    waits = measure_fleet(fleet([lease(0, None, 30.0)], A, B, stats=reports(a=50.0, b=41.0)), alpha=0.5)
    assert waits.loads[A].costs[CPU] == pytest.approx(45.5 / 15)


def test_throughput_has_no_operating_range() -> None:
    seen = measure_fleet(fleet([lease(0, A, 30.0)], A, B), alpha=0.5)
    assert seen.loads[A].values == {THROUGHPUT: pytest.approx(200.0)}
    assert seen.loads[A].ceilings == {THROUGHPUT: inf}


def test_few_leases_show_the_host_more_than_what_a_lease_costs() -> None:
    """The worker has a tenth of a fair share: 16 % of what it says is believed."""
    leases = [lease(0, A, 10.0), lease(1, B, 190.0)]
    seen = measure_fleet(fleet(leases, A, B, stats=reports(a=20.0, b=80.0)), alpha=0.5)
    weight, fleet_cost = seen.scale.weight(leases[0]), 100 / 200
    trust = (weight / 25.0) ** 2
    assert seen.loads[A].costs[CPU] == pytest.approx(fleet_cost * (1 - trust) + 20 / weight * trust)
    assert seen.loads[B].costs[CPU] == pytest.approx(80 / 190)


@pytest.mark.parametrize(("giver", "taker"), [(A, B), (B, A)])
def test_a_handoff_under_way_is_taken_off_the_giver_and_put_on_the_taker(
    giver: WorkerId, taker: WorkerId
) -> None:
    leases = [lease(0, giver, 60.0), lease(1, taker, 60.0, old_owner=giver), lease(2, taker, 60.0)]
    rows = reports(**{giver: 80.0, taker: 40.0})
    seen = measure_fleet(fleet(leases, A, B, stats=rows), alpha=0.5)
    assert seen.loads[giver].values[CPU] == pytest.approx(40.0)
    assert seen.loads[taker].values[CPU] == pytest.approx(80.0)
    assert (seen.loads[giver].leases, seen.loads[taker].leases) == (1, 2)


def test_cpu_per_unit_of_throughput_is_known_below_one_kib_a_second() -> None:
    leases = [lease(0, A, 0.5), lease(1, B, 0.25)]
    seen = measure_fleet(fleet(leases, A, B, stats=reports(a=50.0, b=40.0)), alpha=0.5)
    assert [seen.loads[each].costs[CPU] for each in (A, B)] == [pytest.approx(100.0), pytest.approx(160.0)]


def test_without_a_capture_there_is_no_figure_and_reported_throughput_is_none() -> None:
    rows = {each: WorkerRow(each, 1, {CPU: (-1.0,), THROUGHPUT: (90.0,)}, {CPU: 100}) for each in (A, B)}
    seen = measure_fleet(fleet([lease(0, A, 10.0)], A, B, stats=rows), alpha=0.5)
    assert not seen.quiet
    assert [seen.loads[each].values for each in (A, B)] == [{THROUGHPUT: 200.0}, {THROUGHPUT: 0.0}]


def test_the_threshold_is_given_in_percent() -> None:
    assert BalanceOptions(rebalance_threshold_percentage=10).threshold == 0.1


def test_there_is_room_up_to_the_limits_and_none_above_them() -> None:
    options, worker = BalanceOptions(max_throughput_per_host_kbps=100.0), load(C=1.0)
    worker.leases, worker.throughput_kbps = 3, 100.0
    limited = [replace(worker, limits=LeaseLimits(most)) for most in (2, 3, 4)]
    assert [options.is_full(each) for each in limited] == [True, True, False]
    assert [options.has_room_for(each, lease(3), 0.0) for each in limited] == [False, False, True]
    assert not options.has_room_for(limited[2], lease(3), 0.5)
    limited[2].throughput_kbps = 100.5
    assert options.is_full(limited[2])
