"""Lease taking as KCL 2.x does it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.assignment.plan import LeaseLimits
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import lease_from_row, new_lease_row, steal_or_take
from kcl_daemon.migrations.kcl2_rules import java_random
from kcl_daemon.migrations.kcl2_taking import (
    CounterHistory,
    Pick,
    TakingOptions,
    TakingPlan,
    if_still_takeable,
    plan_taking,
)
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.memory.updates import apply_update

ME, A, B, C = WorkerId("me"), WorkerId("a"), WorkerId("b"), WorkerId("c")
OPTIONS = TakingOptions()


def first(_: int) -> int:
    return 0


def seeded(seed: int) -> Pick:
    return java_random(seed)


def leases(*owners: WorkerId | None) -> list[Lease]:
    return [
        Lease(LeaseKey(f"s-{number:03d}"), 5, TRIM_HORIZON, lease_owner=owner)
        for number, owner in enumerate(owners)
    ]


def aged(table: list[Lease], ages_s: dict[int, float] | None = None, *, scan_s: float = 0) -> CounterHistory:
    """Sightings in which leases have the given ages, by number; the others have just moved."""
    ages = ages_s or {}
    counters = {
        lease.lease_key: (lease.lease_counter, 1000.0 - ages.get(number, 0))
        for number, lease in enumerate(table)
    }
    return CounterHistory(counters, 1000.0, scan_s)


def plan(
    table: list[Lease],
    ages_s: dict[int, float] | None = None,
    *,
    options: TakingOptions = OPTIONS,
    scan_s: float = 0,
) -> TakingPlan:
    return plan_taking(ME, table, aged(table, ages_s, scan_s=scan_s), options, first)


def victims(decision: TakingPlan) -> Counter[WorkerId | None]:
    return Counter(take.stolen_from for take in decision.takes)


# Ages


def test_a_lease_seen_first_is_new_where_it_is_owned_and_infinitely_old_where_it_is_not() -> None:
    owned, unowned = table = leases(A, None)
    seen = CounterHistory().poll(table, began_s=10, ended_s=12)
    assert seen.age_s(owned) == -2  # the scan began before it was seen
    assert seen.age_s(unowned) == inf
    assert seen.scan_s == 2


def test_a_lease_ages_while_its_counter_stands_still() -> None:
    table = leases(A, None)
    seen = CounterHistory().poll(table, began_s=10, ended_s=10)
    later = seen.poll(table, began_s=25, ended_s=26)
    assert [later.age_s(lease) for lease in table] == [15, inf]


def test_a_counter_that_moved_starts_the_age_anew_even_of_a_released_lease() -> None:
    seen = CounterHistory().poll(leases(A, None), began_s=10, ended_s=10)
    moved = [replace(lease, lease_counter=6, lease_owner=None) for lease in leases(A, None)]
    assert [seen.poll(moved, began_s=25, ended_s=25).age_s(lease) for lease in moved] == [0, 0]


def test_a_lease_that_vanished_is_forgotten() -> None:
    seen = CounterHistory().poll(leases(A, A), began_s=10, ended_s=10)
    assert len(seen.poll(leases(A), began_s=11, ended_s=11).counters) == 1


# Target


@pytest.mark.parametrize(
    ("owners", "target", "workers"),
    [
        ((), 1, 1),
        ((A,), 1, 2),
        ((A, B), 1, 3),
        ((A, A, B), 1, 3),
        ((A, A, A, B), 2, 3),
        ((A, A, A, A, ME), 3, 2),
        ((None, None, None), 3, 1),
    ],
)
def test_the_target_is_a_fair_share_rounded_up(
    owners: tuple[WorkerId | None, ...], target: int, workers: int
) -> None:
    decision = plan(leases(*owners))
    assert (decision.target, decision.workers) == (target, workers)


def test_leases_above_the_workers_maximum_spill_over() -> None:
    decision = plan(leases(*[None] * 9), options=TakingOptions(limits=LeaseLimits(4)))
    assert (decision.target, decision.spill_over) == (4, 5)
    assert len(decision.takes) == 4


def test_a_silent_owner_counts_as_no_worker() -> None:
    decision = plan(leases(A, A, B, B), {0: 10.5, 1: 10.5})
    assert (decision.workers, decision.target, decision.free) == (2, 2, 2)


# Free leases


def test_free_leases_are_taken_up_to_the_target_and_nothing_is_stolen_beside() -> None:
    decision = plan(leases(A, A, A, A, None, B), {4: 0})
    assert decision.target == 2
    assert victims(decision) == {None: 1}  # needs two, one is free
    assert "this worker has 0 leases of 2" in decision.takes[0].reason


def test_a_lease_is_free_only_after_more_than_the_failover_time() -> None:
    assert plan(leases(A, A, ME), {0: 10.0}).free == 0
    assert plan(leases(A, A, ME), {0: 10.1}).free == 1


def test_a_worker_that_has_its_share_takes_nothing() -> None:
    decision = plan(leases(ME, ME, A, A))
    assert decision.takes == ()
    assert decision.mine == 2


def test_a_lease_of_ones_own_that_expired_is_free_like_any_other() -> None:
    decision = plan(leases(ME), {0: 20})
    assert (decision.mine, decision.free, len(decision.takes)) == (0, 1, 1)


def test_chance_chooses_among_free_leases() -> None:
    table = leases(*[None] * 30, *[A] * 10)
    seen = aged(table)
    chosen = {
        frozenset(take.lease.lease_key for take in plan_taking(ME, table, seen, OPTIONS, seeded(seed)).takes)
        for seed in range(5)
    }
    assert len(chosen) > 1


# Very old leases


def test_very_old_leases_are_all_taken_whatever_the_target() -> None:
    decision = plan(leases(A, A, B, ME, ME), {0: 30.5, 1: 31})
    assert decision.very_old == 2
    assert {take.lease.lease_key for take in decision.takes} == {"s-000", "s-001"}


def test_a_lease_is_very_old_only_after_more_than_three_failover_times() -> None:
    assert [plan(leases(A), {0: age_s}).very_old for age_s in (30.0, 30.1, inf)] == [0, 1, 1]


def test_where_there_are_very_old_leases_the_others_wait() -> None:
    decision = plan(leases(A, A, A, A, B), {0: 30.5, 1: 20, 2: 20})
    assert [take.lease.lease_key for take in decision.takes] == ["s-000"]


def test_a_full_worker_takes_no_very_old_lease_and_none_else() -> None:
    options = TakingOptions(limits=LeaseLimits(1))
    for owners in ((A, A, A, ME), (A, A, A, ME, ME)):
        assert plan(leases(*owners), {0: 31}, options=options).takes == ()


def test_priority_can_be_turned_off() -> None:
    decision = plan(leases(A, A, A, ME), {0: 31, 1: 31}, options=TakingOptions(priority=False))
    assert (decision.very_old, len(decision.takes)) == (0, 1)


# Stealing


def test_one_lease_is_stolen_from_the_worker_with_the_most() -> None:
    decision = plan(leases(A, A, A, A, B, B))
    assert victims(decision) == {A: 1}
    assert decision.takes[0].reason == "s-000: a has 4 leases, this worker 0, 2 is the target"


def test_more_are_stolen_in_one_run_where_that_is_allowed_but_never_below_the_target() -> None:
    options = TakingOptions(max_leases_to_steal=10)
    assert victims(plan(leases(*[A] * 6, B, B), options=options)) == {A: 3}
    assert victims(plan(leases(*[A] * 4, *[B] * 4, *[C] * 4), options=options)) == {A: 1}


def test_one_who_lacks_two_takes_one_from_a_worker_that_has_just_its_share() -> None:
    decision = plan(leases(A, A, B, B))
    assert (decision.target, victims(decision)) == (2, {A: 1})


def test_one_who_lacks_one_takes_nothing_from_a_worker_that_has_just_its_share() -> None:
    assert plan(leases(A, A, B, B, ME)).takes == ()
    assert plan(leases(A, B)).takes == ()


def test_a_worker_does_not_steal_its_own_leases() -> None:
    assert plan(leases()).takes == ()


def test_a_theft_is_checked_again_where_the_scan_took_long() -> None:
    assert plan(leases(A, A, A), scan_s=1.7).read_again
    assert not plan(leases(A, A, A), scan_s=1.6).read_again
    assert not plan(leases(None, None), {0: 5, 1: 5}, scan_s=5).read_again  # nothing is stolen


def test_a_theft_goes_on_with_the_present_counter_while_the_owner_is_the_same() -> None:
    take = plan(leases(A, A, A)).takes[0]
    now = replace(take.lease, lease_counter=9)
    again = if_still_takeable(take, now, ME)
    assert again is not None
    assert (again.lease, again.update) == (now, steal_or_take(now, ME))


@pytest.mark.parametrize("owner", [None, B, ME])
def test_a_theft_is_dropped_when_the_owner_has_changed(owner: WorkerId | None) -> None:
    take = plan(leases(A, A, A)).takes[0]
    assert if_still_takeable(take, replace(take.lease, lease_owner=owner), ME) is None
    assert if_still_takeable(take, None, ME) is None


def test_the_write_is_the_one_of_kcl_2() -> None:
    take = plan(leases(None), {0: inf}).takes[0]
    assert take.update == steal_or_take(take.lease, ME)


def test_a_run_follows_two_failover_times_after_the_last() -> None:
    assert OPTIONS.period_s == pytest.approx(20.05)


# Fleets


def run_fleet(table: list[Lease], workers: list[WorkerId], pick: Pick, options: TakingOptions) -> list[Lease]:
    """Every worker renews what it holds and takes in its turn, until in a whole round nobody takes anything, for so
    long that dead owners are noticed."""
    books = dict.fromkeys(workers, CounterHistory())
    now_s, quiet = 0.0, 0
    for _ in range(40 + 2 * len(table) * len(workers)):
        moved = False
        for me in workers:
            now_s += options.period_s / len(workers)
            table = [
                replace(each, lease_counter=each.lease_counter + 1) if each.lease_owner in workers else each
                for each in table
            ]
            books[me] = books[me].poll(table, began_s=now_s, ended_s=now_s)
            decision = plan_taking(me, table, books[me], options, pick)
            writes = {take.lease.lease_key: take.update for take in decision.takes}
            moved = moved or bool(writes) or decision.free > 0
            table = [written(each, me) if each.lease_key in writes else each for each in table]
        quiet = 0 if moved else quiet + 1
        if quiet == 3:
            return table
    raise AssertionError(f"no rest: {Counter(each.lease_owner for each in table)}")


def written(lease: Lease, me: WorkerId) -> Lease:
    outcome = apply_update(steal_or_take(lease, me), new_lease_row(lease), key_attribute="leaseKey")
    assert outcome.applied
    assert outcome.row is not None
    return lease_from_row(outcome.row)


WORKERS = [WorkerId(f"w-{number}") for number in range(5)]


@given(
    owners=st.lists(st.sampled_from([None, WorkerId("dead"), *WORKERS]), max_size=12),
    workers=st.integers(1, 5),
    seed=st.integers(0, 2**47),
    steal=st.integers(1, 3),
    priority=st.booleans(),
)
def test_a_fleet_comes_to_rest_with_every_lease_read_and_the_numbers_even(
    *, owners: list[WorkerId | None], workers: int, seed: int, steal: int, priority: bool
) -> None:
    options = TakingOptions(max_leases_to_steal=steal, priority=priority)
    alive = WORKERS[:workers]
    table = run_fleet(leases(*owners), alive, seeded(seed), options)
    counts = Counter(dict.fromkeys(alive, 0))
    counts.update(each.lease_owner for each in table if each.lease_owner is not None)
    assert set(counts) == set(alive)
    target = -(-len(owners) // workers)
    assert max(counts.values()) <= target
    assert min(counts.values()) >= target - 1
