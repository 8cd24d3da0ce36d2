"""Taking a lease as KCL 2.x does, attribute for attribute."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

import pytest

from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Equals, Row, lease_from_row
from tests.simulator.memory.updates import apply_update
from tests.unit.leases.rows import held_row

A, B, C = WorkerId("w-a"), WorkerId("w-b"), WorkerId("w-c")
stored = partial(held_row, throughputKBps=Decimal("12.5"), somethingNew="kept")


def taken(row: Row, me: WorkerId) -> Row | None:
    outcome = apply_update(lease_row.steal_or_take(lease_from_row(row), me), row, key_attribute="leaseKey")
    assert outcome.applied
    return outcome.row


def test_taking_from_another_counts_a_switch_and_leaves_the_rest() -> None:
    assert taken(stored(), B) == stored(leaseOwner=B, leaseCounter=43, ownerSwitchesSinceCheckpoint=2)


def test_taking_what_nobody_owns_counts_no_switch() -> None:
    assert taken(stored(leaseOwner=None), B) == stored(leaseOwner=B, leaseCounter=43)


def test_taking_an_expired_lease_of_ones_own_counts_no_switch() -> None:
    assert taken(stored(), A) == stored(leaseCounter=43)


def test_the_next_owner_that_takes_ends_the_handoff_without_a_switch() -> None:
    assert taken(stored(leaseOwner=B, checkpointOwner=A), B) == stored(leaseOwner=B, leaseCounter=43)


@pytest.mark.parametrize("me", [A, C])
def test_a_take_by_another_worker_ends_the_handoff_and_counts_a_switch(me: WorkerId) -> None:
    after = stored(leaseOwner=me, leaseCounter=43, ownerSwitchesSinceCheckpoint=2)
    assert taken(stored(leaseOwner=B, checkpointOwner=A), me) == after


def test_a_take_is_fenced_by_the_lease_counter_alone() -> None:
    update = lease_row.steal_or_take(lease_from_row(stored()), B)
    assert update.require == (Equals("leaseCounter", 42),)
    assert apply_update(update, stored(leaseOwner=C, checkpointOwner=A), key_attribute="leaseKey").applied
    for moved in (stored(leaseCounter=43), None):
        assert not apply_update(update, moved, key_attribute="leaseKey").applied
