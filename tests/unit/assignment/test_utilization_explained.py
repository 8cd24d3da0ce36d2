"""What people are shown of a plan."""

from __future__ import annotations

from kcl_daemon.assignment.utilization import BalanceOptions, by_utilization
from kcl_daemon.cli.leases.show import explain_plan
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.worker_row import FAILED, MetricName, WorkerRow
from tests.unit.assignment.fleets import A, B, C, fleet, lease, on_one_host, reports

DEAD, MUTE = WorkerId("dead"), WorkerId("mute")


def test_workers_moves_and_leases_without_a_place_are_listed() -> None:
    leases = [
        lease(0, A, 100.0),
        lease(1, A, 40.0),
        lease(2, A, 60.0),
        lease(3, B, 40.0),
        lease(4, C, 20.0),
        lease(5, DEAD, 10.0),
        lease(6, MUTE, 10.0),
    ]
    state = fleet(
        leases,
        A,
        B,
        C,
        stats=reports(a=80.0, b=40.0, c=(50.0, FAILED), dead=12.0),
        abandoned=frozenset({leases[5].lease_key}),
        most=2,
    )
    text = explain_plan(state, by_utilization(BalanceOptions(balance_this_run=False))(state))
    assert [line.split() for line in text] == [
        ["worker", "leases", "cpu", "throughput", "headroom"],
        ["a", "3", "80", "%", "200", "KiB/s", "-33", "%", "of", "its", "share", "of", "cpu"],
        ["b", "1", "40", "%", "40", "KiB/s", "+33", "%", "of", "its", "share", "of", "cpu"],
        ["c", "1", "failed", "could", "not", "measure", "itself"],
        ["dead", "0", "12", "%", "is", "silent"],
        ["mute", "1", "-", "does", "not", "report"],
        [],
        ["balanced", "by", "cpu", "(80", "%", "and", "40", "%),", "then", "by", "number", "of", "leases"],
        [],
        ["take:", "shard-000005:", "dead", "->", "b,", "its", "owner", "is", "silent"],
    ]
    assert text[1].index("80 %") == text[2].index("40 %")


def test_without_figures_headroom_is_that_of_throughput() -> None:
    state = fleet([lease(0, A, 30.0), lease(1, B, 10.0)], A, B)
    text = explain_plan(state, by_utilization(BalanceOptions())(state))
    assert text[1].endswith("-50 % of its share of throughput")
    assert text[-1] == "nothing to move"


def test_leases_that_find_no_place_are_named() -> None:
    state = fleet([lease(0, A), lease(1)], A, most=1)
    assert (
        explain_plan(state, by_utilization(BalanceOptions())(state))[-1]
        == "shard-000001: no worker has room for it"
    )


def test_an_unknown_metric_goes_by_its_short_name() -> None:
    stats = {A: WorkerRow(A, 1, {MetricName("X"): (50.0,)}, {MetricName("X"): 100})}
    state = fleet([lease(0, A, 10.0)], A, stats=stats)
    assert explain_plan(state, by_utilization(BalanceOptions())(state))[1].endswith("+0 % of its share of X")


def test_the_explanation_names_the_figure_that_the_fleet_is_balanced_by() -> None:
    leases = [lease(0, A, 10.0), lease(1, B, 10.0)]
    state = fleet(leases, A, B, stats=on_one_host(reports(a=98.0, b=98.0)))
    text = explain_plan(state, by_utilization(BalanceOptions())(state))
    assert "balanced by cpu (98 % and 98 %), then by number of leases" in text
    assert "a and b report the CPU of one host, so they share by number of leases" in text
    apart = fleet(leases, A, B)
    assert "balanced by throughput (10 KiB/s and 10 KiB/s), then by number of leases" in explain_plan(
        apart, by_utilization(BalanceOptions())(apart)
    )
