"""Who leads by the shuffle of the lease owners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.migrations.kcl2_rules import elect_by_shuffle, next_poll_after_s, shuffle_leader
from kcl_protocol.sequence import TRIM_HORIZON

A, B, C = WorkerId("w-a"), WorkerId("w-b"), WorkerId("w-c")


def leases(*owners: WorkerId | None) -> list[Lease]:
    return [
        Lease(LeaseKey(f"shard-{number}"), 1, TRIM_HORIZON, lease_owner=owner)
        for number, owner in enumerate(owners)
    ]


def test_of_two_the_first_in_order_leads_and_of_three_the_last() -> None:
    assert shuffle_leader(leases(B, A)) == A
    assert shuffle_leader(leases(B, A, C)) == C


def test_an_owner_of_many_leases_counts_once_and_one_without_owner_not() -> None:
    assert shuffle_leader(leases(B, B, None, A, B)) == A


def test_only_the_one_that_the_shuffle_names_leads() -> None:
    mine, others = elect_by_shuffle(A, leases(A, B)), elect_by_shuffle(B, leases(A, B))
    assert (mine.leads, mine.leader) == (True, A)
    assert (others.leads, others.leader) == (False, A)
    assert A in others.reason


def test_without_owners_every_worker_leads() -> None:
    for table in (leases(), leases(None, None)):
        answer = elect_by_shuffle(B, table)
        assert (answer.leads, answer.leader) == (True, None)
        assert "every worker" in answer.reason


def test_it_is_looked_at_again_after_a_minute_and_then_every_five() -> None:
    assert [next_poll_after_s(polls) for polls in (1, 2, 3, 99)] == [60, 300, 300, 300]


@given(owners=st.lists(st.text(max_size=4), min_size=1))
def test_the_order_of_the_rows_does_not_matter(owners: list[str]) -> None:
    table = leases(*(WorkerId(owner) for owner in owners))
    leader = shuffle_leader(table)
    assert leader in owners
    assert shuffle_leader(list(reversed(table))) == leader
    assert sum(elect_by_shuffle(WorkerId(owner), table).leads for owner in set(owners)) == 1
