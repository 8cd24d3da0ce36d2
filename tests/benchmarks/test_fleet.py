"""What a fleet costs and how quickly it recovers, in virtual time; figures are printed (`pytest -s`)."""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.benchmarks.fleet import (
    Convergence,
    Deploy,
    Spread,
    Victim,
    converging,
    fail_over,
    idle_requests,
    joining,
    rolling_deploy,
)
from tests.benchmarks.java import requests_per_minute
from tests.benchmarks.tables import requests_table, table

SEEDS: Final = int(os.environ.get("FLEET_SEEDS", "4"))
SEEDS_PROVEN: Final = max(25, SEEDS)
# Bounds in seconds; each is from one kill, start or stop until every shard concerned delivers again.
WORKER_S, LEADER_S, QUICK_S, JOINING_S, DEPLOY_GAP_S = 16.0, 45.0, 5.0, 20.0, 3.0
RUNS_MOST: Final = 6


def shown(text: str) -> None:
    print(f"\n{text}")  # noqa: T201  # the figures are the point


def show_spread(name: str, spread: Spread, bound_s: float) -> None:
    cells = (name, len(spread.seconds), f"{spread.median_s:.1f}", f"{spread.worst_s:.1f}", spread.worst_seed)
    shown(table(("what", "seeds", "median s", "worst s", "worst seed", "bound s"), [(*cells, bound_s)]))


# --- requests of idle fleets


def count_requests(sizes: list[tuple[int, int]], minutes: float) -> None:
    rows = [
        (
            shards,
            workers,
            idle_requests(shards, workers, minutes=minutes),
            requests_per_minute(shards, workers),
        )
        for shards, workers in sizes
    ]
    shown(requests_table(rows))
    for shards, workers, ours, java in rows:
        assert sum(ours.values()) < sum(java.values()), f"{shards} shards, {workers} workers"


def test_idle_fleets_ask_less_than_the_java_worker() -> None:
    count_requests([(1, 1), (100, 1), (1, 10), (100, 10)], minutes=2)


@pytest.mark.prove
def test_requests_of_idle_fleets_of_all_sizes() -> None:
    count_requests([(shards, workers) for workers in (1, 10) for shards in (1, 10, 100, 1_000)], minutes=10)


# --- fail-over

FAIL_OVERS: Final = [
    pytest.param(2, Victim.OTHER, 10_000, WORKER_S, id="worker-of-2"),
    pytest.param(3, Victim.OTHER, 10_000, WORKER_S, id="worker-of-3"),
    pytest.param(3, Victim.LEADER, 10_000, LEADER_S, id="leader-of-3"),
    pytest.param(3, Victim.OTHER, 2_000, QUICK_S, id="worker-of-3-with-2000-ms"),
]


def check_fail_over(workers: int, victim: Victim, failover_ms: int, bound_s: float, seeds: int) -> None:
    spread = fail_over(workers=workers, victim=victim, failover_ms=failover_ms, seeds=seeds)
    show_spread(f"kill -9, {victim.name} of {workers}, failoverTimeMillis={failover_ms}", spread, bound_s)
    assert spread.worst_s <= bound_s, f"seed {spread.worst_seed}"


@pytest.mark.parametrize(("workers", "victim", "failover_ms", "bound_s"), FAIL_OVERS)
def test_the_shards_of_a_killed_worker_deliver_again_in_time(
    workers: int, victim: Victim, failover_ms: int, bound_s: float
) -> None:
    check_fail_over(workers, victim, failover_ms, bound_s, SEEDS)


@pytest.mark.prove
@pytest.mark.parametrize(("workers", "victim", "failover_ms", "bound_s"), FAIL_OVERS)
def test_the_shards_of_a_killed_worker_deliver_again_in_time_with_each_of_many_seeds(
    workers: int, victim: Victim, failover_ms: int, bound_s: float
) -> None:
    check_fail_over(workers, victim, failover_ms, bound_s, SEEDS_PROVEN)


# --- a third worker


def check_joining(*, with_cpu: bool, seeds: int) -> None:
    spread = joining(seeds=seeds, with_cpu=with_cpu)
    show_spread(f"third worker joins, by {'CPU' if with_cpu else 'throughput'}", spread, JOINING_S)
    assert spread.worst_s <= JOINING_S, f"seed {spread.worst_seed}"


@pytest.mark.parametrize("with_cpu", [False, True])
def test_a_third_worker_is_given_its_share_in_time(*, with_cpu: bool) -> None:
    check_joining(with_cpu=with_cpu, seeds=max(1, SEEDS // 4))


@pytest.mark.prove
@pytest.mark.parametrize("with_cpu", [False, True])
def test_a_third_worker_is_given_its_share_in_time_with_each_of_many_seeds(*, with_cpu: bool) -> None:
    check_joining(with_cpu=with_cpu, seeds=SEEDS_PROVEN)


# --- rolling deploy


def check_deploys(seeds: int) -> None:
    deploys: list[Deploy] = [rolling_deploy(seed) for seed in range(1, seeds + 1)]
    head = ("rolling deploy, seed", "gap before s", "worst gap s", "bound s", "repeats", "moves", "took s")
    rows = [
        (seed, f"{each.quiet_gap_s:.1f}", f"{each.worst_gap_s:.1f}", DEPLOY_GAP_S, each.repeats, each.moves, f"{each.took_s:.0f}")
        for seed, each in enumerate(deploys, start=1)
    ]  # fmt: skip
    shown(table(head, rows))
    assert all(each.repeats == 0 for each in deploys)
    assert max(each.worst_gap_s for each in deploys) < DEPLOY_GAP_S


def test_a_rolling_deploy_makes_no_long_gap_and_repeats_no_record() -> None:
    check_deploys(1)


@pytest.mark.prove
def test_rolling_deploys_make_no_long_gap_and_repeat_no_record_with_each_of_many_seeds() -> None:
    check_deploys(20)


# --- convergence


def check_convergence(shards: int, seeds: int) -> None:
    found: list[Convergence] = [converging(seed, shards=shards) for seed in range(1, seeds + 1)]
    head = ("convergence, seed", "shards", "balanced after s", "runs with moves", "moves", "moves in the hour after", "CPU %")  # fmt: skip
    rows = [
        (seed, shards, f"{each.seconds:.0f}", each.runs, each.moves, each.later_moves, each.percents)
        for seed, each in enumerate(found, start=1)
    ]
    shown(table(head, rows))
    assert all(each.runs <= RUNS_MOST and each.later_moves == 0 for each in found)


# Every day `tests/unit/assignment/test_utilization_moves.py` shows the same of the rules alone.
@pytest.mark.prove
def test_workers_of_unequal_speed_on_skewed_shards_come_to_rest_with_each_of_some_seeds() -> None:
    check_convergence(24, 1)
