"""What is full for one lease only: the strategies ask for each lease, so a limit may look at its stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.assignment.load import BalanceOptions
from kcl_daemon.assignment.plan import Fleet, LeaseLimits, LeaseMove, Strategy, WorkerLeases, by_lease_count
from kcl_daemon.assignment.utilization import by_utilization
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity, WorkerId
from tests.unit.assignment import fleets
from tests.unit.assignment.fleets import A, B, C, fleet

ORDERS, CLICKS = StreamIdentity("111122223333", "orders", 1), StreamIdentity("111122223333", "clicks", 1)
STRATEGIES = pytest.mark.parametrize("strategy", [by_lease_count, by_utilization(BalanceOptions())])


@dataclass(frozen=True, slots=True)
class Excluding(LeaseLimits):
    """Some workers have no room for a stream."""

    excluded: frozenset[tuple[WorkerId, StreamIdentity | None]] = field(default=frozenset(), kw_only=True)

    def has_room(self, worker: WorkerLeases, *leases: Lease) -> bool:
        excluded = any((worker.worker_id, lease.stream) in self.excluded for lease in leases)
        return not worker.is_full and not excluded


def lease(number: int, stream: StreamIdentity, owner: WorkerId | None = None) -> Lease:
    each = fleets.lease(number, owner, 10.0)
    return replace(each, lease_key=LeaseKey(f"{stream}:{each.lease_key}"), stream=stream)


def limited(leases: list[Lease], most: int, *excluded: tuple[WorkerId, StreamIdentity]) -> Fleet:
    return replace(fleet(leases, A, B, C), limits=Excluding(most, excluded=frozenset(excluded)))


def given_to(moves: Iterable[LeaseMove], stream: StreamIdentity) -> Counter[WorkerId]:
    return Counter(move.to for move in moves if move.lease.stream == stream)


@STRATEGIES
def test_a_worker_without_room_for_one_stream_gets_leases_of_another(strategy: Strategy) -> None:
    leases = [lease(number, stream) for number in range(6) for stream in (ORDERS, CLICKS)]
    plan = strategy(limited(leases, 1000, (A, ORDERS), (B, ORDERS)))
    assert not plan.unplaced
    assert given_to(plan.moves, ORDERS) == {C: 6}
    assert given_to(plan.moves, CLICKS) == {A: 2, B: 2, C: 2}


@STRATEGIES
def test_a_lease_that_no_worker_has_room_for_keeps_none_back(strategy: Strategy) -> None:
    leases = [lease(0, CLICKS), lease(1, ORDERS), lease(2, ORDERS)]
    plan = strategy(limited(leases, 1, (A, CLICKS), (B, CLICKS), (C, CLICKS)))
    assert plan.unplaced == (leases[0].lease_key,)
    assert given_to(plan.moves, ORDERS) == {A: 1, B: 1}


@STRATEGIES
def test_an_avoided_worker_gets_a_lease_if_the_others_have_no_room_for_it(strategy: Strategy) -> None:
    refused = replace(lease(0, ORDERS), degraded_by=A)
    plan = strategy(limited([refused, lease(1, CLICKS)], 1000, (B, ORDERS), (C, ORDERS)))
    assert given_to(plan.moves, ORDERS) == {A: 1}
    assert given_to(strategy(limited([refused], 1000, (B, ORDERS))).moves, ORDERS) == {C: 1}


@given(
    owners=st.lists(
        st.tuples(st.sampled_from([ORDERS, CLICKS]), st.sampled_from([None, A, B, C])), max_size=20
    ),
    excluded=st.sets(st.tuples(st.sampled_from([A, B, C]), st.sampled_from([ORDERS, CLICKS]))),
    most=st.sampled_from([2, 5, 1000]),
    strategy=st.sampled_from([by_lease_count, by_utilization(BalanceOptions())]),
)
def test_no_lease_moves_to_a_worker_without_room_for_it(
    owners: list[tuple[StreamIdentity, WorkerId | None]],
    excluded: set[tuple[WorkerId, StreamIdentity]],
    most: int,
    strategy: Strategy,
) -> None:
    leases = [lease(number, stream, owner) for number, (stream, owner) in enumerate(owners)]
    state = limited(leases, most, *excluded)
    plan = strategy(state)
    assert not [move for move in plan.moves if (move.to, move.lease.stream) in excluded]
    waits = {each.lease_key: each for each in leases if each.lease_owner is None}
    for key in plan.unplaced:
        room = [each for each in (A, B, C) if (each, waits[key].stream) not in excluded]
        assert all(plan.counts[each] >= most for each in room)


def test_evening_out_goes_on_with_the_leases_that_another_worker_has_room_for() -> None:
    leases = [lease(number, ORDERS, A) for number in range(3)]
    leases += [lease(number, CLICKS, A) for number in range(3)]
    moves = by_lease_count(limited(leases, 1000, (B, CLICKS), (C, CLICKS))).moves
    assert given_to(moves, ORDERS) == {B: 2, C: 1}
    assert not given_to(moves, CLICKS)
