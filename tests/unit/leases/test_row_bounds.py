"""Lease rows at the edge of what is read, and what a write requires at least and at most."""

from __future__ import annotations

from decimal import Decimal

import pytest

from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import HashRange, WorkerId
from kcl_daemon.leases.row import (
    Equals,
    MalformedRowError,
    RowUpdate,
    Value,
    is_lease_row,
    lease_from_row,
    readable_lease,
)
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.memory.updates import apply_update
from tests.unit.leases.rows import held_row

A, B = WorkerId("w-a"), WorkerId("w-b")
LONG = 2**63 - 1


def written(update: RowUpdate, row: dict[str, Value]) -> dict[str, Value]:
    outcome = apply_update(update, row, key_attribute="leaseKey")
    assert outcome.applied
    assert outcome.row is not None
    return dict(outcome.row)


@pytest.mark.parametrize("entity", ["A_NEW_KIND", "WORKER_METRIC_STATS", "LEASES"])
def test_a_row_of_another_kind_is_no_lease(entity: str) -> None:
    row = held_row(entityType=entity)
    assert not is_lease_row(row)
    assert readable_lease(row) is None


def test_only_a_whole_lease_row_is_readable() -> None:
    assert readable_lease(held_row()) == lease_from_row(held_row())
    assert readable_lease(None) is None
    assert readable_lease(held_row(leaseCounter="x")) is None


def test_whole_numbers_are_those_of_a_java_long() -> None:
    lease = lease_from_row(held_row(leaseCounter=LONG, checkpointSubSequenceNumber=LONG))
    assert lease.lease_counter == LONG
    assert lease.checkpoint == ExtendedSequenceNumber("49640", LONG)
    for name in ("leaseCounter", "checkpointSubSequenceNumber"):
        with pytest.raises(MalformedRowError):
            lease_from_row(held_row(**{name: LONG + 1}))


def test_a_position_without_a_sub_sequence_number_is_its_first() -> None:
    lease = lease_from_row(held_row(checkpointSubSequenceNumber=None))
    assert lease.checkpoint == ExtendedSequenceNumber("49640", 0)


@pytest.mark.parametrize(
    ("value", "kbps"),
    [(0, 0.0), (Decimal("0.5"), 0.5), (10**12 - 1, 10.0**12 - 1), (10**12, None), (10**13, None), (-1, None)],
)
def test_a_throughput_that_nobody_measures_is_none(value: Value, kbps: float | None) -> None:
    assert lease_from_row(held_row(throughputKBps=value)).throughput_kbps == kbps


def test_a_hash_range_may_be_one_key_and_have_a_hundred_digits() -> None:
    one = lease_from_row(held_row(startingHashKey="5", endingHashKey="5".zfill(100)))
    assert one.hash_range == HashRange(5, 5)
    with pytest.raises(MalformedRowError, match="startingHashKey"):
        lease_from_row(held_row(startingHashKey="5", endingHashKey="5".zfill(101)))


def test_the_creation_of_a_stream_is_a_whole_number_or_not_recorded() -> None:
    assert lease_from_row(held_row(daemonStreamCreated=7)).stream_created_s == 7
    assert lease_from_row(held_row(daemonStreamCreated="7")).stream_created_s is None


def test_notes_beside_a_checkpoint_are_ignored_beside_another_one() -> None:
    lanes: Value = {"checkpoint": "49640/3", "lanes": ("49641",)}
    row = held_row(daemonLanes=lanes, daemonReached="1000 49640/3")
    read = lease_from_row(row)
    assert (read.lanes, read.reached_ms) == ((ExtendedSequenceNumber("49641"),), 1000)
    for checkpoint in ("1", "49639", "49641", "TRIM_HORIZON"):
        moved = lease_from_row({**row, "checkpoint": checkpoint})
        assert (moved.lanes, moved.reached_ms) == ((), None)


@pytest.mark.parametrize(("text", "reached_ms"), [("9" * 15, 10**15 - 1), ("9" * 16, None), ("soon", None)])
def test_the_time_that_a_run_has_reached_has_fifteen_digits_at_most(
    text: str, reached_ms: int | None
) -> None:
    assert lease_from_row(held_row(daemonReached=f"{text} 49640/3")).reached_ms == reached_ms


def test_of_a_long_wrong_value_only_the_beginning_is_shown() -> None:
    with pytest.raises(MalformedRowError) as wrong:
        lease_from_row(held_row(leaseCounter="x" * 1_000))
    assert wrong.value.problem.endswith(f"found '{'x' * 79}")


def test_a_handoff_requires_the_counter_only_if_it_is_asked_to() -> None:
    lease, counter = lease_from_row(held_row()), Equals("leaseCounter", 42)
    assert counter not in lease_row.handoff(lease, B).require
    assert counter in lease_row.handoff(lease, B, only_if_untouched=True).require


def test_a_lease_that_is_moved_by_hand_has_a_new_counter_and_no_owner() -> None:
    moved = written(lease_row.reposition(lease_from_row(held_row()), ExtendedSequenceNumber("7")), held_row())
    assert moved == held_row(
        leaseCounter=43,
        leaseOwner=None,
        ownerSwitchesSinceCheckpoint=0,
        checkpoint="7",
        checkpointSubSequenceNumber=0,
    )


@pytest.mark.parametrize(("owner", "to"), [(A, B), (B, A)])
def test_each_change_of_the_owner_counts_as_a_switch(owner: WorkerId, to: WorkerId) -> None:
    row = held_row(leaseOwner=owner)
    assert written(lease_row.assignment(lease_from_row(row), to), row)["ownerSwitchesSinceCheckpoint"] == 2
