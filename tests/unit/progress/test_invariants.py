"""The checks themselves, each with what it lets pass and what it does not."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from kcl_daemon.errors import Invariant, InvariantViolated
from kcl_daemon.progress.invariants import EVENTS_MOST, Invariants, LiveChildren
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_protocol.messages import LeaseLost, ProcessRecords, ShardEnded, Shutdown
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from kcl_protocol.sequence import ExtendedSequenceNumber as Position
from tests.unit.fakes import LoopClock


def at(number: int, sub: int = 0) -> Position:
    return Position(str(number), sub)


@pytest.fixture(autouse=True)
def known(violations: list[InvariantViolated]) -> Generator[None]:
    """These tests want them."""
    yield
    violations.clear()


def begun(after: Position = TRIM_HORIZON) -> Invariants:
    invariants = Invariants()
    invariants.begins(after)
    return invariants


def given(*lasts: int) -> Invariants:
    """To one child, each batch with one record and answered."""
    invariants = begun()
    for last in lasts:
        invariants.gives(at(last), at(last), 1)
        invariants.answers("processRecords")
    return invariants


def test_batches_follow_each_other() -> None:
    invariants = given(5, 7)
    invariants.gives(at(7, 1), at(9), 3)
    invariants.answers("processRecords")
    invariants.gives(None, None, 0)
    assert invariants.violation is None


@pytest.mark.parametrize(("first", "last"), [(7, 9), (6, 9), (9, 8)])
def test_a_batch_goes_forward(first: int, last: int) -> None:
    with pytest.raises(InvariantViolated, match="expected records after 7, seen"):
        given(5, 7).gives(at(first), at(last), 2)


def test_a_child_begins_after_its_position() -> None:
    with pytest.raises(InvariantViolated, match="positions_grow"):
        begun(at(7)).gives(at(7), at(8), 2)


def test_giving_records_that_were_passed_violates_the_invariant() -> None:
    invariants = given(5)
    invariants.passed(at(8))
    with pytest.raises(InvariantViolated, match="expected records after 8"):
        invariants.gives(at(7), at(9), 2)


def test_the_next_child_may_be_given_the_same_again() -> None:
    invariants = given(5, 7)
    invariants.begins(at(5))
    invariants.gives(at(7), at(7), 1)
    assert invariants.violation is None


def test_a_batch_waits_for_the_answer_to_the_one_before() -> None:
    invariants = given(5)
    invariants.gives(at(6), at(6), 1)
    with pytest.raises(InvariantViolated, match="expected 2 batches answered, seen 1 answers"):
        invariants.gives(at(7), at(7), 1)


def test_a_batch_has_one_answer() -> None:
    with pytest.raises(InvariantViolated, match="expected 1 answers, seen 2 answers"):
        given(5).answers("processRecords")


def test_records_as_a_message_count_as_well() -> None:
    invariants = begun()
    invariants.sent(ProcessRecords((), None))
    invariants.answers("processRecords")
    invariants.sent(LeaseLost())
    invariants.answers("leaseLost")
    assert invariants.violation is None


@pytest.mark.parametrize("position", [at(6), at(7)])
def test_a_checkpoint_is_in_the_window(position: Position) -> None:
    invariants = given(5, 7)
    invariants.stores(position, at(5))
    assert invariants.violation is None


@pytest.mark.parametrize("position", [at(4), at(8), SHARD_END])
def test_no_checkpoint_is_outside_of_the_window(position: Position) -> None:
    with pytest.raises(InvariantViolated, match="checkpoint_window"):
        given(5, 7).stores(position, at(5))


@pytest.mark.parametrize("end", [ShardEnded(), Shutdown("TERMINATE")])
def test_the_end_is_stored_after_it_was_told(end: ShardEnded | Shutdown) -> None:
    invariants = given(5, 7)
    invariants.sent(Shutdown("ZOMBIE"))
    invariants.sent(end)
    invariants.stores(SHARD_END, at(5))
    assert invariants.violation is None


def test_nothing_is_stored_after_a_violation() -> None:
    invariants = given(5, 7)
    invariants.violated(Invariant.MEMORY, "this", "that")
    with pytest.raises(InvariantViolated, match="memory"):
        invariants.stores(at(6), at(5))


def test_the_first_violation_is_told_once() -> None:
    called: list[str] = []
    invariants = begun()
    invariants.on_violation = lambda: called.append("stop")
    first = invariants.violated(Invariant.MEMORY, "this", "that")
    invariants.violated(Invariant.ONE_CHILD, "this", "that")
    assert (invariants.violation, called) == (first, ["stop"])


def lanes() -> tuple[Invariants, Invariants, Invariants]:
    """A shard whose two lanes were given the records 1 and 3, and 2."""
    shard = begun()
    zero, one = (Invariants(lane=number, shard=shard) for number in (0, 1))
    for lane, last in ((zero, 1), (one, 2), (zero, 3)):
        if lane.reached is None:
            lane.begins(TRIM_HORIZON)
        lane.gives(at(last), at(last), 1)
        lane.answers("processRecords")
    return shard, zero, one


def test_a_mark_is_below_what_no_lane_has_checkpointed() -> None:
    shard, zero, one = lanes()
    zero.stores(at(3), TRIM_HORIZON)
    shard.stores(at(1), TRIM_HORIZON)
    with pytest.raises(InvariantViolated, match="before 2, which lane 1 has not checkpointed"):
        shard.stores(at(2), at(1))
    assert one.violation is None


def test_with_all_lanes_done_the_mark_is_the_last_record() -> None:
    shard, zero, one = lanes()
    zero.stores(at(3), TRIM_HORIZON)
    one.stores(at(2), TRIM_HORIZON)
    shard.stores(at(3), TRIM_HORIZON)
    assert shard.violation is None


def test_a_shard_ends_with_the_last_of_its_lanes() -> None:
    shard, zero, one = lanes()
    for lane in (zero, one):
        lane.sent(ShardEnded())
        lane.stores(SHARD_END, TRIM_HORIZON)
    shard.stores(SHARD_END, TRIM_HORIZON)
    one.ended = False
    with pytest.raises(InvariantViolated, match="shardEnded before SHARD_END"):
        shard.stores(SHARD_END, TRIM_HORIZON)


def test_a_violation_of_a_lane_is_one_of_its_shard() -> None:
    shard, zero, one = lanes()
    with pytest.raises(InvariantViolated):
        zero.gives(at(3), at(3), 1)
    assert shard.violation is not None
    with pytest.raises(InvariantViolated):
        one.stores(at(2), TRIM_HORIZON)


def test_a_counter_stays_or_grows() -> None:
    invariants = begun()
    for counter in (7, 8):
        invariants.moved(7, counter, at(5))
    with pytest.raises(InvariantViolated, match="lease_counter does not hold: expected 7 or more, seen 6"):
        invariants.moved(7, 6, at(5))


def test_one_child_lives() -> None:
    children, invariants = LiveChildren(), begun()
    one, two = object(), object()
    children.begins("lease", 0, one, invariants)
    children.begins("lease", 1, two, invariants)
    children.begins("other", 0, two, invariants)
    children.ended("lease", 0, two)
    with pytest.raises(InvariantViolated, match="one_child"):
        children.begins("lease", 0, two, invariants)
    children.ended("lease", 0, one)
    children.begins("lease", 0, two, begun())


def test_memory_is_given_back_at_the_end() -> None:
    invariants, budget = begun(), ByteBudget(LoopClock())
    budget.take(100, invariants=invariants).release()
    invariants.ends()
    budget.take(100, invariants=invariants)
    budget.take(23, invariants=invariants)
    with pytest.raises(InvariantViolated, match="expected nothing held, seen 123 bytes in 2 parts"):
        invariants.ends()
    assert (budget.reserved_bytes, invariants.memory) == (0, set())


def test_memory_is_never_below_nothing() -> None:
    invariants, budget = begun(), ByteBudget(LoopClock())
    reservation = budget.take(100, invariants=invariants)
    budget.change(-60)
    reservation.release()
    assert budget.reserved_bytes == 0
    assert invariants.violation is not None
    assert invariants.violation.seen == "-60 bytes reserved by all, 100 by one"


def test_a_reservation_has_no_negative_size() -> None:
    invariants, budget = begun(), ByteBudget(LoopClock())
    budget.take(500)
    budget.take(100, invariants=invariants).resize(-1)
    assert invariants.violation is not None
    assert invariants.violation.invariant is Invariant.MEMORY


def test_the_last_events_are_kept() -> None:
    now_s = 0.0
    invariants = Invariants(lambda: now_s)
    invariants.begins(at(1))
    for _ in range(2 * EVENTS_MOST):
        now_s += 0.5
        invariants.note("wait", "kinesis", "")
    lane = Invariants(lambda: now_s, lane=3, shard=invariants)
    lane.note("status", "processRecords")
    now_s += 0.25
    lane.violated(Invariant.ANSWERED_ONCE, 1, 2)
    first, *events = invariants.evidence(worker_id="me")
    assert first == {"invariant": "answered_once", "expected": "1", "seen": "2", "worker_id": "me"}
    assert len(events) == EVENTS_MOST
    assert events[-2:] == [
        {"s": -0.25, "event": "wait", "for": "kinesis", "detail": ""},
        {"s": -0.25, "lane": 3, "event": "status", "of": "processRecords"},
    ]
