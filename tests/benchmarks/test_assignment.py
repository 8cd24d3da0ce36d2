"""How long one decision takes, on one core; figures are printed (`pytest -s`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, Strategy, by_lease_count
from kcl_daemon.assignment.utilization import BalanceOptions, by_utilization
from kcl_daemon.leases.lease import WorkerId
from tests.unit.assignment.fleets import fleet, lease, reports

SMALL, MIDDLE, LARGE = (1_000, 100), (10_000, 1_000), (100_000, 1_000)
BY_UTILIZATION = by_utilization(BalanceOptions())


def names(workers: int) -> list[WorkerId]:
    return [WorkerId(f"w-{n:04d}") for n in range(workers)]


def fresh(leases: int, workers: int) -> Fleet:
    """Nobody reads anything, there are no figures."""
    return fleet([lease(n) for n in range(leases)], *names(workers))


def lopsided(leases: int, workers: int) -> Fleet:
    """Everything is read, half of the workers read three quarters of it, shards and hosts differ."""
    everybody = names(workers)
    half = everybody[: workers // 2]
    rows = [
        lease(
            n,
            (half if n % 2 else everybody)[n * 7919 % (len(half) if n % 2 else workers)],
            float(1 + n * 31 % 97),
        )
        for n in range(leases)
    ]
    cpu = {name: (85.0 if n < len(half) else 30.0) - n * 13 % 17 for n, name in enumerate(everybody)}
    return fleet(rows, *everybody, stats=reports(**cpu))


def decided(
    strategy: Strategy, make: Callable[[int, int], Fleet], size: tuple[int, int]
) -> tuple[float, AssignmentPlan]:
    """The best of three, in seconds of CPU."""
    state = make(*size)
    best_s, plan = math.inf, AssignmentPlan()
    for _ in range(3):
        began_s = time.process_time()
        plan = strategy(state)
        best_s = min(best_s, time.process_time() - began_s)
    return best_s, plan


def shown(strategy: Strategy, make: Callable[[int, int], Fleet], size: tuple[int, int], name: str) -> float:
    seconds, plan = decided(strategy, make, size)
    leases, workers = size
    print(f"{name}: {leases} leases, {workers} workers: {seconds * 1000:.0f} ms, {len(plan.moves)} moves")  # noqa: T201  # the figures are the point
    assert plan.moves
    return seconds


CASES = [
    pytest.param(BY_UTILIZATION, fresh, id="utilization-fresh"),
    pytest.param(BY_UTILIZATION, lopsided, id="utilization-lopsided"),
    pytest.param(by_lease_count, fresh, id="count-fresh"),
    pytest.param(by_lease_count, lopsided, id="count-lopsided"),
]


@pytest.mark.parametrize(("strategy", "make"), CASES)
def test_ten_thousand_leases_on_a_thousand_workers_take_less_than_a_second(
    strategy: Strategy, make: Callable[[int, int], Fleet], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    shown(strategy, make, SMALL, name)
    assert shown(strategy, make, MIDDLE, name) < 1.0


@pytest.mark.prove
@pytest.mark.parametrize(("strategy", "make"), CASES)
def test_time_grows_no_worse_than_n_log_n(
    strategy: Strategy, make: Callable[[int, int], Fleet], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    times_s = [shown(strategy, make, size, name) for size in (SMALL, MIDDLE, LARGE)]
    for (smaller, larger), (before_s, after_s) in zip(
        ((SMALL[0], MIDDLE[0]), (MIDDLE[0], LARGE[0])),
        ((times_s[0], times_s[1]), (times_s[1], times_s[2])),
        strict=True,
    ):
        bound = larger * math.log(larger) / (smaller * math.log(smaller))
        assert after_s / before_s < 1.5 * bound  # the rest is the caches
