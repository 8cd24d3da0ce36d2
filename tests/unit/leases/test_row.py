"""The lease row, attribute for attribute and condition for condition."""

from __future__ import annotations

from decimal import Decimal

import pytest

from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.leases.row import Absent, Equals, MalformedRowError, Row, RowUpdate, Value, lease_from_row
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.memory.updates import apply_update

A, B = WorkerId("w-a"), WorkerId("w-b")
KEY = LeaseKey("shardId-000000000007")


def stored(**changes: Value | None) -> dict[str, Value]:
    """A row as a Java worker leaves it, with an attribute that nobody of ours knows."""
    row: dict[str, Value | None] = {
        "leaseKey": KEY,
        "leaseCounter": 42,
        "leaseOwner": A,
        "ownerSwitchesSinceCheckpoint": 1,
        "checkpoint": "49640000000000000000000000000000000000000000000000000115",
        "checkpointSubSequenceNumber": 3,
        "startingHashKey": "0",
        "endingHashKey": "340282366920938463463374607431768211455",
        "throughputKBps": Decimal("12.5"),
        "somethingNew": ("a", Decimal(1)),
        **changes,
    }
    return {name: value for name, value in row.items() if value is not None}


def written(update: RowUpdate, row: Row | None) -> dict[str, Value]:
    outcome = apply_update(update, row, key_attribute="leaseKey")
    assert outcome.applied
    assert outcome.row is not None
    return dict(outcome.row)


def refused(update: RowUpdate, row: Row | None) -> bool:
    return not apply_update(update, row, key_attribute="leaseKey").applied


def test_a_java_row_is_read_whole() -> None:
    lease = lease_from_row(
        stored(parentShardId=frozenset({"shardId-1", "shardId-2"}), childShardIds=frozenset({"shardId-9"}))
    )
    assert lease == Lease(
        lease_key=KEY,
        lease_counter=42,
        checkpoint=ExtendedSequenceNumber("49640000000000000000000000000000000000000000000000000115", 3),
        lease_owner=A,
        owner_switches_since_checkpoint=1,
        parent_shard_ids=frozenset({ShardId("shardId-1"), ShardId("shardId-2")}),
        child_shard_ids=frozenset({ShardId("shardId-9")}),
        hash_range=HashRange(0, 2**128 - 1),
        throughput_kbps=12.5,
    )


def test_a_pending_checkpoint_is_read() -> None:
    lease = lease_from_row(
        stored(
            pendingCheckpoint="12", pendingCheckpointSubSequenceNumber=1, pendingCheckpointState=b"\x00\xff"
        )
    )
    assert lease.pending_checkpoint == ExtendedSequenceNumber("12", 1)
    assert lease.pending_checkpoint_state == b"\x00\xff"


def test_a_row_without_entity_type_is_a_lease_and_a_worker_row_is_not() -> None:
    assert lease_row.is_lease_row(stored())
    assert lease_row.is_lease_row(stored(entityType="LEASE"))
    assert not lease_row.is_lease_row({"leaseKey": "w-1", "entityType": "WORKER_METRIC_STATS"})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"leaseCounter": None}, "leaseCounter"),
        ({"leaseCounter": "42"}, "leaseCounter"),
        ({"leaseCounter": Decimal("1.5")}, "leaseCounter"),
        ({"ownerSwitchesSinceCheckpoint": "2"}, "ownerSwitchesSinceCheckpoint"),
        ({"checkpoint": None}, "checkpoint"),
        ({"checkpoint": "soon"}, "checkpoint"),
        ({"checkpoint": 12}, "checkpoint"),
        ({"checkpointSubSequenceNumber": "x"}, "checkpoint"),
        ({"checkpointSubSequenceNumber": -1}, "checkpoint"),
        ({"leaseOwner": 7}, "leaseOwner"),
        ({"parentShardId": "shardId-1"}, "parentShardId"),
        ({"startingHashKey": "9", "endingHashKey": "8"}, "startingHashKey"),
        ({"startingHashKey": "x"}, "startingHashKey"),
        ({"throughputKBps": "fast"}, "throughputKBps"),
        ({"pendingCheckpointState": 5}, "pendingCheckpointState"),
    ],
)
def test_a_row_that_cannot_be_a_lease_names_the_attribute(
    changes: dict[str, Value | None], named: str
) -> None:
    with pytest.raises(MalformedRowError, match=named) as caught:
        lease_from_row(stored(**changes))
    assert caught.value.key == KEY


def test_a_row_by_hand_may_lack_what_java_does_without() -> None:
    lease = lease_from_row(stored(ownerSwitchesSinceCheckpoint=None, pendingCheckpoint=""))
    assert (lease.owner_switches_since_checkpoint, lease.pending_checkpoint) == (0, None)


def test_a_row_without_a_usable_key_is_malformed_not_a_crash() -> None:
    with pytest.raises(MalformedRowError, match="leaseCounter"):
        lease_from_row({"leaseKey": 5})


def test_a_new_lease_is_the_row_of_the_reference() -> None:
    lease = Lease(
        KEY, 0, TRIM_HORIZON, parent_shard_ids=frozenset({ShardId("shardId-1")}), hash_range=HashRange(0, 99)
    )
    row, conditions = lease_row.creation(lease)
    assert row == {
        "leaseKey": KEY,
        "entityType": "LEASE",
        "leaseCounter": 0,
        "ownerSwitchesSinceCheckpoint": 0,
        "checkpoint": "TRIM_HORIZON",
        "checkpointSubSequenceNumber": 0,
        "parentShardId": frozenset({"shardId-1"}),
        "startingHashKey": "0",
        "endingHashKey": "99",
    }
    assert type(row["checkpoint"]) is str  # not an enum member: adapters look at exact types
    assert conditions == (Absent("leaseKey"),)


def test_a_lease_without_parents_has_no_parent_attribute() -> None:
    row, _ = lease_row.creation(Lease(KEY, 0, TRIM_HORIZON))
    assert "parentShardId" not in row
    assert "leaseOwner" not in row


def test_a_lease_that_was_written_is_read_back() -> None:
    lease = Lease(
        KEY,
        0,
        ExtendedSequenceNumber("77", 2),
        lease_owner=A,
        parent_shard_ids=frozenset({ShardId("p")}),
        child_shard_ids=frozenset({ShardId("c")}),
        hash_range=HashRange(5, 6),
    )
    assert lease_from_row(lease_row.new_lease_row(lease)) == lease


def test_a_renewal_moves_the_counter_and_nothing_else() -> None:
    row = stored()
    assert written(lease_row.renewal(lease_from_row(row), None), row) == {**row, "leaseCounter": 43}


def test_a_renewal_writes_the_throughput_with_six_places() -> None:
    row = stored()
    after = written(lease_row.renewal(lease_from_row(row), 1.23456789), row)
    assert after["throughputKBps"] == Decimal("1.234568")


def test_a_renewal_is_refused_once_another_write_moved_the_counter() -> None:
    assert refused(lease_row.renewal(lease_from_row(stored()), None), stored(leaseCounter=43))


def test_a_renewal_notices_a_handoff_it_did_not_know_of() -> None:
    assert refused(lease_row.renewal(lease_from_row(stored()), None), stored(leaseOwner=B, checkpointOwner=A))


def test_a_renewal_goes_on_during_a_known_handoff() -> None:
    row = stored(leaseOwner=B, checkpointOwner=A)
    after = written(lease_row.renewal(lease_from_row(row), None), row)
    assert after == {**row, "leaseCounter": 43}


def test_a_checkpoint_clears_what_was_pending_and_the_owner_switches() -> None:
    row = stored(pendingCheckpoint="9", pendingCheckpointSubSequenceNumber=0, pendingCheckpointState=b"x")
    after = written(lease_row.checkpoint(lease_from_row(row), SHARD_END), row)
    assert after == stored(
        leaseCounter=43,
        ownerSwitchesSinceCheckpoint=0,
        checkpoint="SHARD_END",
        checkpointSubSequenceNumber=0,
        throughputKBps=Decimal("0.000000"),
    )


def test_a_finished_lease_weighs_nothing_for_leaders_that_count_it() -> None:
    after = written(lease_row.checkpoint(lease_from_row(stored()), SHARD_END, 12.5), stored())
    assert after["throughputKBps"] == 0


def test_a_checkpoint_passes_during_a_handoff_but_not_after_a_change_of_hands() -> None:
    lease = lease_from_row(stored())
    update = lease_row.checkpoint(lease, SHARD_END)
    assert written(update, stored(leaseOwner=B, checkpointOwner=A))["checkpoint"] == "SHARD_END"
    assert refused(update, stored(leaseOwner=B, leaseCounter=43))


def test_the_first_assignment_counts_no_switch() -> None:
    row = stored(leaseOwner=None)
    after = written(lease_row.assignment(lease_from_row(row), B), row)
    assert after == {**row, "leaseOwner": B, "leaseCounter": 43}


def test_taking_from_another_owner_counts_a_switch() -> None:
    row = stored()
    after = written(lease_row.assignment(lease_from_row(row), B), row)
    assert after == {**row, "leaseOwner": B, "leaseCounter": 43, "ownerSwitchesSinceCheckpoint": 2}


def test_the_end_of_a_handoff_counts_no_switch_and_clears_the_old_owner() -> None:
    row = stored(leaseOwner=B, checkpointOwner=A)
    after = written(lease_row.assignment(lease_from_row(row), B), row)
    assert after == {**stored(leaseOwner=B), "leaseCounter": 43}


def test_giving_a_lease_back_to_the_one_who_hands_it_off_counts_a_switch() -> None:
    row = stored(leaseOwner=B, checkpointOwner=A)
    assert written(lease_row.assignment(lease_from_row(row), A), row)["ownerSwitchesSinceCheckpoint"] == 2


@pytest.mark.parametrize(
    "now",
    [stored(leaseOwner=B), stored(leaseOwner=None), stored(leaseOwner=B, checkpointOwner=A), None],
)
def test_an_assignment_is_refused_when_the_owners_are_not_those_that_were_read(now: Row | None) -> None:
    assert refused(lease_row.assignment(lease_from_row(stored()), B), now)


def test_taking_an_abandoned_lease_is_refused_when_its_owner_stirred() -> None:
    update = lease_row.assignment(lease_from_row(stored()), B, only_if_untouched=True)
    assert refused(update, stored(leaseCounter=43))
    assert not refused(update, stored())


def test_a_handoff_names_both_and_leaves_the_counter() -> None:
    row = stored()
    after = written(lease_row.handoff(lease_from_row(row), B), row)
    assert after == {**row, "leaseOwner": B, "checkpointOwner": A}


def test_a_handoff_may_ask_the_next_owner_to_start_its_child_first() -> None:
    row = stored()
    asked = written(lease_row.handoff(lease_from_row(row), B, standby=True), row)
    assert asked == {**row, "leaseOwner": B, "checkpointOwner": A, "daemonStandby": f"asked {B}"}
    assert lease_from_row(asked).awaits_standby
    ready = written(lease_row.ready(lease_from_row(asked)), asked)
    assert ready == {**asked, "daemonStandby": f"ready {B}"}
    assert not lease_from_row(ready).awaits_standby


def test_only_a_next_owner_that_was_asked_says_that_it_is_ready() -> None:
    asked = stored(leaseOwner=B, checkpointOwner=A, daemonStandby=f"asked {B}")
    update = lease_row.ready(lease_from_row(asked))
    assert refused(update, stored(leaseOwner=B, checkpointOwner=A))
    assert refused(update, stored(leaseOwner=B, checkpointOwner=A, daemonStandby=f"asked {A}"))
    assert refused(update, stored(leaseOwner=B, daemonStandby=f"asked {B}"))
    assert refused(update, stored(leaseOwner=A, checkpointOwner=B, daemonStandby=f"asked {B}"))


def test_each_write_that_ends_a_handoff_or_begins_the_next_removes_the_standby() -> None:
    row = stored(leaseOwner=B, checkpointOwner=A, daemonStandby=f"ready {B}")
    lease = lease_from_row(row)
    ends = (
        lease_row.assignment(lease, B),
        lease_row.release(lease),
        lease_row.steal_or_take(lease, A),
        lease_row.reposition(lease, lease.checkpoint),
    )
    for update in ends:
        assert "daemonStandby" not in written(update, row)
    # Java has ended a hand-off, and left it.
    row = stored(daemonStandby=f"asked {B}")
    assert "daemonStandby" not in written(lease_row.handoff(lease_from_row(row), B), row)
    assert not lease_from_row(row).awaits_standby


@pytest.mark.parametrize("value", ["", "asked", f"asked {A}", f"ready {B}", 7])
def test_nobody_waits_for_what_the_next_owner_was_not_asked(value: Value) -> None:
    row = stored(leaseOwner=B, checkpointOwner=A, daemonStandby=value)
    assert not lease_from_row(row).awaits_standby


@pytest.mark.parametrize(
    ("before", "now_ms", "after"),
    [(None, 500, 500), (400, 500, 500), (500, 500, 501), (900, 500, 901), ("damaged", 500, 500)],
)
def test_each_claim_has_a_larger_token(before: Value | None, now_ms: int, after: int) -> None:
    row = stored() if before is None else stored(daemonFence=before)
    lease = lease_from_row(row)
    for update in (lease_row.renewal(lease, None), lease_row.assignment(lease, B, only_if_untouched=True)):
        claim = lease_row.claimed(update, lease, now_ms)
        assert written(claim, row)["daemonFence"] == after
        assert claim.require == update.require


def test_a_claim_that_does_not_require_the_counter_requires_the_token() -> None:
    lease = lease_from_row(stored(daemonFence=400))
    claim = lease_row.claimed(lease_row.assignment(lease, B), lease, 500)
    assert refused(claim, stored(leaseCounter=43, daemonFence=401))
    assert not refused(claim, stored(leaseCounter=43, daemonFence=400))
    first = lease_row.claimed(
        lease_row.assignment(lease_from_row(stored()), B), lease_from_row(stored()), 500
    )
    assert refused(first, stored(daemonFence=400))


def test_no_other_write_touches_the_token() -> None:
    row = stored(daemonFence=400)
    lease = lease_from_row(row)
    for update in (
        lease_row.renewal(lease, None),
        lease_row.checkpoint(lease, lease.checkpoint),
        lease_row.assignment(lease, B),
        lease_row.release(lease),
        lease_row.reposition(lease, lease.checkpoint),
    ):
        assert written(update, row)["daemonFence"] == 400


def test_a_lease_without_owner_or_in_a_handoff_cannot_be_handed_off() -> None:
    for row in (stored(leaseOwner=None), stored(leaseOwner=B, checkpointOwner=A)):
        with pytest.raises(ValueError, match="cannot be handed off"):
            lease_row.handoff(lease_from_row(row), B)


def test_a_released_lease_has_no_owner_and_a_new_counter() -> None:
    row = stored()
    assert written(lease_row.release(lease_from_row(row)), row) == {
        **stored(leaseOwner=None),
        "leaseCounter": 43,
    }


def test_a_lease_can_be_marked_as_degraded_and_the_next_checkpoint_takes_the_mark_away() -> None:
    row = stored()
    after = written(lease_row.release(lease_from_row(row), degraded_by=A), row)
    assert after == {**stored(leaseOwner=None), "leaseCounter": 43, "daemonDegraded": A}
    taken = written(lease_row.assignment(lease_from_row(after), B), after)
    assert taken is not None
    assert lease_from_row(taken).degraded_by == A
    renewed = written(lease_row.renewal(lease_from_row(taken), None), taken)
    assert renewed is not None
    for update in (lease_row.checkpoint, lease_row.reposition):
        gone = written(update(lease_from_row(renewed), ExtendedSequenceNumber("77")), renewed)
        assert gone is not None
        assert "daemonDegraded" not in gone
    assert not {"daemonDegraded"} & set(lease_row.checkpoint(lease_from_row(row), SHARD_END).remove)


LANES = (ExtendedSequenceNumber("77"), ExtendedSequenceNumber("81", 3))


def test_progress_of_lanes_counts_until_somebody_else_moves_the_checkpoint() -> None:
    row = stored()
    renewed = written(lease_row.renewal(lease_from_row(row), None, LANES), row)
    assert renewed is not None
    assert lease_from_row(renewed).lanes == LANES
    moved = written(
        lease_row.checkpoint(lease_from_row(renewed), ExtendedSequenceNumber("77"), None, LANES), renewed
    )
    assert moved is not None
    assert lease_from_row(moved).lanes == LANES
    assert lease_from_row({**moved, "checkpoint": "78"}).lanes == (), "by a worker that knows no lanes"
    for update in (lease_row.checkpoint, lease_row.reposition):
        plain = written(update(lease_from_row(moved), ExtendedSequenceNumber("80")), moved)
        assert plain is not None
        assert "daemonLanes" not in plain
        foreign = {**moved, "checkpoint": "78"}
        back = written(update(lease_from_row(foreign), ExtendedSequenceNumber("77")), foreign)
        assert back is not None
        assert lease_from_row(back).lanes == (), "it was of another time"
    ended = lease_row.checkpoint(lease_from_row(moved), SHARD_END, None, LANES)
    assert "daemonLanes" in ended.remove


@pytest.mark.parametrize(
    ("checkpoint", "lanes", "first"),
    [(LATEST, LANES[:1], "77"), (LATEST, LANES, None), (TRIM_HORIZON, LANES[:1], None), (LATEST, (), None)],
)
def test_where_reading_began_is_known_at_latest(
    checkpoint: ExtendedSequenceNumber, lanes: tuple[ExtendedSequenceNumber, ...], first: str | None
) -> None:
    row = stored(checkpoint=str(checkpoint))
    renewed = written(lease_row.renewal(lease_from_row(row), None, lanes), row)
    assert renewed is not None
    assert lease_from_row(renewed).first_read == first


@pytest.mark.parametrize(
    "wrong",
    ["", 7, {"checkpoint": "x", "lanes": ()}, {"lanes": ("1",)}, {"checkpoint": "1", "lanes": ("x",)}],
)
def test_a_malformed_record_of_lanes_only_costs_repeats(wrong: Value) -> None:
    assert lease_from_row(stored(daemonLanes=wrong)).lanes == ()


def test_the_mark_of_a_bounded_run_counts_until_the_checkpoint_moves() -> None:
    row = stored()
    marked = written(lease_row.renewal(lease_from_row(row), None, (), 1_000), row)
    lease = lease_from_row(marked)
    assert marked["leaseCounter"] == 43
    assert lease.reached_ms == 1_000
    assert [lease.is_at(until_ms) for until_ms in (999, 1_000, 1_001)] == [True, True, False]
    kept = written(lease_row.renewal(lease, None), marked)
    assert lease_from_row(kept).reached_ms == 1_000
    released = written(lease_row.release(lease), marked)
    assert lease_from_row(released).reached_ms == 1_000
    assert lease_from_row({**marked, "checkpoint": "78"}).reached_ms is None, (
        "by a worker that knows no marks"
    )
    for update in (lease_row.checkpoint, lease_row.reposition):
        moved = written(update(lease, ExtendedSequenceNumber("9" * 56)), marked)
        assert "daemonReached" not in moved
    assert lease_from_row({**row, "checkpoint": "SHARD_END", "checkpointSubSequenceNumber": 0}).is_at(9)


@pytest.mark.parametrize("wrong", ["", 7, "soon", "x 1", "5"])
def test_a_malformed_mark_only_costs_another_look_at_the_shard(wrong: Value) -> None:
    assert lease_from_row(stored(daemonReached=wrong)).reached_ms is None


def test_a_lease_that_changed_hands_cannot_be_released() -> None:
    assert refused(lease_row.release(lease_from_row(stored())), stored(leaseOwner=B, leaseCounter=43))


def test_children_are_written_only_on_a_row_that_exists() -> None:
    update = lease_row.child_ids_update(lease_from_row(stored()), frozenset({ShardId("c-1"), ShardId("c-2")}))
    assert written(update, stored()) == {**stored(), "childShardIds": frozenset({"c-1", "c-2"})}
    assert refused(update, None)
    assert Equals("leaseKey", KEY) in update.require


@pytest.mark.parametrize("digits", ["9" * 5_000, "9" * 400_000, "0" * 5_000])
def test_digits_that_are_no_hash_key_are_malformed_not_a_crash(digits: str) -> None:
    for changes in ({"endingHashKey": digits}, {"startingHashKey": "0" * 5_000, "endingHashKey": digits}):
        with pytest.raises(MalformedRowError, match="startingHashKey"):
            lease_from_row(stored(**changes))


@pytest.mark.parametrize("name", ["checkpoint", "pendingCheckpoint"])
def test_digits_without_end_are_no_position(name: str) -> None:
    with pytest.raises(MalformedRowError, match=name):
        lease_from_row(stored(**{name: "9" * 5_000}))
