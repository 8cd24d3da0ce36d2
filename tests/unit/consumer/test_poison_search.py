"""Which records are set aside: exactly those at which children fail, whatever batches they come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.consumer.poison import BisectResult, BisectState, BisectStep, Delivery, Suspects
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.examples import examples


@cache
def at(number: int) -> ExtendedSequenceNumber:
    """The position of a record; three user records share a sequence number, as in an aggregate."""
    return TRIM_HORIZON if number < 0 else ExtendedSequenceNumber(str(100 + number // 3), number % 3)


class When(Enum):
    """When the child of a test checkpoints."""

    EACH_RECORD = auto()
    EACH_DELIVERY = auto()
    NEVER = auto()


@dataclass
class Shard:
    """Records 0 to `count` - 1, read by one child after the other, each of which dies where it must.

    Args:
        count: of records.
        batch_sizes: of the batches that are read, over and over; each child begins anew somewhere in it.
        when: the child checkpoints.
        dies_at: whether a child dies at this record, asked each time.
        tries: of the rule.
    """

    count: int
    batch_sizes: Sequence[int]
    when: When
    dies_at: Callable[[int], bool]
    tries: int
    state: BisectState = field(default_factory=BisectState)
    checkpoint: int = -1
    processed: list[list[int]] = field(default_factory=list[list[int]])
    set_aside: list[int] = field(default_factory=list[int])
    lone_failures: list[int] = field(default_factory=list[int])
    failures: int = 0
    is_through: bool = False

    def run(self, failures_most: int) -> None:
        """One child after the other until one has reached the end."""
        while not self.is_through:
            assert self.failures <= failures_most, "it comes to an end"
            self._child()

    def _child(self) -> None:
        self.processed.append([])
        self.state = self.state.checkpointed(at(self.checkpoint))
        done = self.checkpoint
        numbers = list(range(self.checkpoint + 1, self.count))
        turn = self.failures
        while numbers:
            size = self.batch_sizes[turn % len(self.batch_sizes)]
            turn += 1
            batch, numbers = numbers[:size], numbers[size:]
            while batch:
                step = (
                    BisectStep(0, len(batch))
                    if self.state.is_clear(at(done))
                    else self.state.next([at(each) for each in batch])
                )
                alone = step.take == 1 and not self.state.is_clear(at(done))
                taken, batch = batch[: step.skip + step.take], batch[step.skip + step.take :]
                if step.take:
                    delivery = Delivery(at(done), at(taken[-1]), step.take, alone)
                    if not self._deliver(taken, delivery):
                        return
                else:
                    assert set(taken) <= set(self.set_aside)
                done = taken[-1]
        self.is_through = True

    def _deliver(self, numbers: list[int], delivery: Delivery) -> bool:
        assert numbers, "nobody is called for nothing"
        for number in numbers:
            if self.dies_at(number):
                self._failed(numbers, delivery)
                return False
            self.processed[-1].append(number)
            if self.when is When.EACH_RECORD:
                self.checkpoint = number
        if self.when is When.EACH_DELIVERY:
            self.checkpoint = numbers[-1]
        self.state = self.state.delivered(delivery)
        return True

    def _failed(self, numbers: list[int], delivery: Delivery) -> None:
        self.failures += 1
        self.state, verdict = self.state.failed(delivery, tries=self.tries)
        if delivery.alone:
            self.lone_failures.append(numbers[0])
        if verdict is BisectResult.GUILTY:
            (number,) = numbers
            assert self.lone_failures[-self.tries :] == [number] * self.tries
            self.set_aside.append(number)
            self.state = self.state.with_set_aside(at(number))

    def assert_nothing_lost(self) -> None:
        """Every record was processed or set aside, and each child got them in order without a gap."""
        done = {number for each in self.processed for number in each}
        assert done | set(self.set_aside) == set(range(self.count))
        for each in self.processed:
            assert each == sorted(set(each))
            if each:
                gaps = set(range(each[0], each[-1])) - set(each)
                assert gaps <= set(self.set_aside)


shards = st.tuples(
    st.integers(1, 120),
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
    st.sampled_from(When),
    st.integers(1, 4),
)


@settings(deadline=None)
@given(shards, st.sets(st.integers(0, 119), max_size=12))
def test_exactly_the_poisonous_records_are_set_aside(
    drawn: tuple[int, list[int], When, int], poison: set[int]
) -> None:
    count, sizes, when, tries = drawn
    poison = {number for number in poison if number < count}
    shard = Shard(count, sizes, when, poison.__contains__, tries)
    # For each one: the batch, then half of it again and again, then it alone; where batches change it begins anew.
    shard.run((len(poison) + 1) * 3 * (ceil(log2(count + 1)) + tries + 2))
    assert sorted(shard.set_aside) == sorted(poison)
    assert len(shard.set_aside) == len(poison)
    shard.assert_nothing_lost()


@settings(deadline=None)
@given(shards, st.integers(0, 119), st.lists(st.integers(0, 119), max_size=20))
def test_other_failures_cost_repeats_and_not_records(
    drawn: tuple[int, list[int], When, int], bad: int, moments: list[int]
) -> None:
    count, sizes, when, tries = drawn
    chance = list(moments)

    def dies_at(number: int) -> bool:
        """At the bad one always, at others at most once for each moment that was drawn."""
        if number != bad and chance and chance[-1] % count == number:
            chance.pop()
            return True
        return number == bad

    shard = Shard(count, sizes, when, dies_at, tries)
    shard.run((len(moments) + 2) * 3 * (ceil(log2(count + 1)) + tries + 2))
    # A good one only where a child died at it, alone, as often as is asked for (asserted in `_failed`).
    assert (bad in shard.set_aside) == (bad < count)
    shard.assert_nothing_lost()


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(2, 2_000), st.floats(0, 1, exclude_max=True))
def test_one_among_many_is_found_by_halving(count: int, place: float) -> None:
    bad = int(place * count)
    shard = Shard(count, [count], When.EACH_DELIVERY, lambda number: number == bad, tries=3)
    shard.run(1 + ceil(log2(count)) + 3)
    assert shard.set_aside == [bad]


def test_a_batch_that_fails_once_is_only_suspected() -> None:
    state, verdict = BisectState().failed(Delivery(at(-1), at(9), 10), tries=1)
    assert verdict is BisectResult.SUSPECTED
    assert state.suspects == Suspects(at(-1), at(9), 10, attempts=1)
    assert not state.is_clear(at(-1))


def test_a_batch_of_one_record_is_no_trial_of_it_alone() -> None:
    state, verdict = BisectState().failed(Delivery(at(-1), at(0), 1), tries=1)
    assert verdict is BisectResult.SUSPECTED
    assert state.suspects == Suspects(at(-1), at(0), 1, failures=0, attempts=1)


@pytest.mark.parametrize("between", [Delivery(at(0), at(1), 1, alone=True), Delivery(at(0), at(4), 4)])
def test_failures_count_only_in_a_row(between: Delivery) -> None:
    single = Delivery(at(4), at(5), 1, alone=True)
    state, _ = BisectState().failed(single, tries=2)
    state, _ = state.failed(between, tries=2)
    state, verdict = state.failed(single, tries=2)
    assert verdict is not BisectResult.GUILTY
    _, verdict = state.failed(single, tries=2)
    assert verdict is BisectResult.GUILTY


def test_a_success_in_between_clears_the_record() -> None:
    single = Delivery(at(4), at(5), 1, alone=True)
    state, _ = BisectState().failed(single, tries=2)
    state = state.delivered(single)
    assert state.is_clear(at(5))
    _, verdict = state.failed(single, tries=2)
    assert verdict is not BisectResult.GUILTY


def test_a_record_that_could_not_be_stored_is_found_guilty_again() -> None:
    single = Delivery(at(4), at(5), 1, alone=True)
    state, first = BisectState().failed(single, tries=1)
    assert state.next([at(5), at(6)]) == BisectStep(0, 1)
    _, second = state.failed(single, tries=1)
    assert (first, second) == (BisectResult.GUILTY, BisectResult.GUILTY)


def test_a_record_set_aside_is_passed_over_until_a_checkpoint_covers_it() -> None:
    state = BisectState().with_set_aside(at(3)).with_set_aside(at(2)).with_set_aside(at(7))
    rest = [at(number) for number in range(1, 9)]
    assert state.next(rest) == BisectStep(0, 1)
    assert state.next(rest[1:]) == BisectStep(2, 0)
    assert state.next(rest[3:]) == BisectStep(0, 3)
    assert state.checkpointed(at(6)).set_aside == (at(7),)
    assert state.checkpointed(at(7)).set_aside == ()
    assert not state.is_clear(at(6))
    assert state.is_clear(at(7))
