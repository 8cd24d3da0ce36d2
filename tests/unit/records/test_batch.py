"""Whatever is done to batches, in whatever order: records stay in order, and each fact is true of what it stands beside."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.records.batch import Batch, Limits, ReadFacts, nothing
from kcl_daemon.records.batch_text import FRAMINGS, BatchEncoder
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import AnyRecord, Payload, raw_record
from kcl_protocol.messages import FRAMES_VERSION, Record
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.examples import examples
from tests.unit.records.aggregates import aggregate, silent

SPLIT: Final = Deaggregator(None, silent)
AGGREGATED: Final = 3
FRAMING_VERSIONS: Final = (None, FRAMES_VERSION)


class Truth:
    """A shard whose answers follow each other, and what is true of every record of it."""

    def __init__(self, answers: Sequence[tuple[int, list[tuple[int, bool]]]]) -> None:
        """`answers`: how wrong our clock is; of each record the milliseconds after the one before it, and if it holds others."""
        self.batches = list[Batch]()
        self.arrived_s = dict[str, float]()
        self.dated_ms = dict[str, int]()
        self.answer = dict[str, int]()
        date_ms = 0
        for number, (wrong_ms, rows) in enumerate(answers):
            records, first_ms = list[Record](), date_ms + (rows[0][0] if rows else 0)
            for gap_ms, holds_others in rows:
                date_ms += gap_ms
                name = str(100 + len(self.dated_ms))
                data = aggregate([("k", b"x", None)] * AGGREGATED) if holds_others else b"y"
                records.append(Record(b64encode(data).decode(), "k", name, date_ms))
                self.dated_ms[name], self.answer[name] = date_ms, number
                self.arrived_s[name] = (date_ms + wrong_ms) / 1000
            facts = ReadFacts((first_ms + wrong_ms) / 1000, first_ms if rows else None, number)
            self.batches.append(Batch(Payload.of(records), facts, 10_000 * (number + 1)))
        self.wrong_s = [wrong_ms / 1000 for wrong_ms, _ in answers]

    def check(self, batch: Batch) -> None:
        positions = [each.position for each in batch.records]
        assert all(before < after for before, after in pairwise(positions))
        assert len(batch) == len(positions)
        if not batch:
            assert batch.arrived_s is None
            return
        first, last = batch.records[0].sequence_number, batch.records[-1].sequence_number
        assert batch.behind_ms == self.answer[last]
        arrived_s = batch.arrived_s
        assert arrived_s is not None
        assert arrived_s >= self.arrived_s[first] - 1e-6, "no record is older than its answer said"
        assert arrived_s <= self.dated_ms[first] / 1000 + max(self.wrong_s) + 1e-6
        if batch.complete_ms is not None:
            assert self.ends_in(batch) is not None, "only where an answer ends"

    def ends_in(self, batch: Batch) -> int | None:
        number = batch.complete_ms and batch.complete_ms // 10_000 - 1
        assert number is None or number >= self.answer[batch.records[-1].sequence_number]
        return number


ANSWERS = st.lists(
    st.tuples(
        st.integers(0, 5_000),
        st.lists(st.tuples(st.integers(0, 90_000), st.booleans()), max_size=5),
    ),
    min_size=1,
    max_size=4,
)
Row = tuple[ExtendedSequenceNumber, bytes]


def rows(batches: Sequence[Batch]) -> list[Row]:
    return [(each.position, bytes(each.data)) for batch in batches for each in batch.records]


def encoded(batch: Batch, version: int | None) -> Batch:
    return BatchEncoder(FRAMINGS[version]).encode(batch).decoded()


def opened(batches: list[Batch], at: int, _by: int) -> list[Batch]:
    return [*batches[:at], *batches[at].opened(SPLIT), *batches[at + 1 :]]


def cut(batches: list[Batch], at: int, by: int) -> list[Batch]:
    whole = batches[at]
    head, tail = whole.cut(Limits.of(by, 10_000))
    assert head.complete_ms is None
    assert tail.complete_ms == whole.complete_ms
    return [*batches[:at], head, tail, *batches[at + 1 :]]


def in_pieces(batches: list[Batch], at: int, by: int) -> list[Batch]:
    *others, last = parts = list(batches[at].pieces(Limits.of(by + 1, 10_000)))
    assert [each.complete_ms for each in others] == [None] * len(others)
    assert last.complete_ms == batches[at].complete_ms
    return [*batches[:at], *parts, *batches[at + 1 :]]


def in_two(batches: list[Batch], at: int, by: int) -> list[Batch]:
    whole = batches[at]
    place = min(by, len(whole))
    return [*batches[:at], whole.part(0, place), whole.part(place, len(whole)), *batches[at + 1 :]]


def joined(batches: list[Batch], at: int, by: int) -> list[Batch]:
    return [*batches[:at], Batch.joined(batches[at : at + by + 1]), *batches[at + by + 1 :]]


def as_text(batches: list[Batch], at: int, by: int) -> list[Batch]:
    whole = batches[at]
    again = encoded(whole, FRAMING_VERSIONS[by % 2])
    assert (again.facts, again.earlier, again.complete_ms, again.arrived_s) == (
        whole.facts,
        whole.earlier,
        whole.complete_ms,
        whole.arrived_s,
    )
    return [*batches[:at], again, *batches[at + 1 :]]


Step = Callable[[list[Batch], int, int], list[Batch]]
KEEPING: tuple[Step, ...] = (cut, in_pieces, in_two, joined, as_text)


def after(batches: list[Batch], at: int, by: int) -> list[Batch]:
    whole = batches[at]
    if len(whole) <= by:
        return batches
    rest = whole.after(whole.records[by].position)
    assert rest.complete_ms == whole.complete_ms
    return [*batches[:at], rest, *batches[at + 1 :]]


def before(batches: list[Batch], at: int, by: int) -> list[Batch]:
    whole = batches[at]
    if len(whole) <= by:
        return batches
    dates = [each.approximate_arrival_timestamp or 0 for each in whole.records]
    head = whole.before(dates[by])
    assert all(date_ms < dates[by] for date_ms in dates[: len(head)])
    assert head.complete_ms is None, "what follows is left out"
    return [*batches[:at], head, *batches[at + 1 :]]


def dropped(batches: list[Batch], at: int, by: int) -> list[Batch]:
    """As a filter does, also the last records: the position is beyond them."""
    whole = batches[at]
    kept = whole.holding(Payload.only([each for place, each in enumerate(whole.records) if place % 3 != by]))
    assert kept.complete_ms == whole.complete_ms
    return [*batches[:at], kept, *batches[at + 1 :]]


def steps(kinds: Sequence[Step]) -> st.SearchStrategy[list[tuple[Step, int, int]]]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 9), st.integers(0, 4)), max_size=8)


@settings(max_examples=examples(300), deadline=None)
@given(answers=ANSWERS, done=steps(KEEPING), opens=st.booleans())
def test_nothing_is_lost_or_told_wrong_by_any_sequence_that_keeps_all(
    answers: list[tuple[int, list[tuple[int, bool]]]], done: list[tuple[Step, int, int]], opens: bool
) -> None:
    truth = Truth(answers)
    batches = truth.batches
    if opens:
        for at in reversed(range(len(batches))):
            batches = opened(batches, at, 0)
        assert len(rows(batches)) == sum(
            AGGREGATED if other else 1 for _, each in answers for _, other in each
        )
    all_rows, told = rows(batches), batches[-1].complete_ms
    for step, at, by in done:
        batches = step(batches, at % len(batches), by)
        assert rows(batches) == all_rows, "no record, and no sub-sequence number"
        for batch in batches:
            truth.check(batch)
        assert Batch.joined(batches).complete_ms == told, "the end of all is told until when it is complete"


@settings(max_examples=examples(300), deadline=None)
@given(answers=ANSWERS, done=steps((*KEEPING, opened, after, before, dropped)))
def test_every_sequence_leaves_records_in_order_with_true_facts(
    answers: list[tuple[int, list[tuple[int, bool]]]], done: list[tuple[Step, int, int]]
) -> None:
    truth = Truth(answers)
    batches, left = truth.batches, set(rows(truth.batches))
    for step, at, by in done:
        batches = step(batches, at % len(batches), by)
        if step is opened:
            left |= set(rows(batches))
        assert set(rows(batches)) <= left
        left = set(rows(batches))
        for batch in batches:
            truth.check(batch)


def test_an_end_without_records_makes_what_it_follows_complete_and_one_that_knows_nothing_does_not() -> None:
    record: AnyRecord = raw_record(Record("YQ==", "k", "1", 5))
    read = Batch(Payload([record], 0), ReadFacts(1.0, 5, 7), 10)
    assert Batch.joined([read, nothing(0, 20)]) == Batch(read.payload, read.facts, 20)
    assert Batch.joined([read, nothing(0)]) == read
    assert Batch.joined([nothing(3), nothing(4)]).behind_ms == 4
    assert (len(read.end), read.end.complete_ms, read.end.behind_ms) == (0, 10, 7)


@pytest.mark.parametrize("version", FRAMING_VERSIONS)
def test_a_form_keeps_sub_sequence_numbers_and_facts(version: int | None) -> None:
    data = b64encode(aggregate([("k", b"x", None)] * AGGREGATED)).decode()
    read = Batch(Payload.of([Record(data, "k", "7", 5)]), ReadFacts(1.0, 5, 7), 10)
    (part,) = read.opened(SPLIT)
    again = encoded(part, version)
    assert [each.sub_sequence_number for each in again.records] == list(range(AGGREGATED))
    assert (again.facts, again.complete_ms) == (read.facts, 10)


def test_an_aggregate_that_was_cut_and_joined_again_has_the_facts_of_its_answer_once() -> None:
    data = b64encode(aggregate([("k", b"x", None)] * AGGREGATED)).decode()
    (whole,) = Batch(Payload.of([Record(data, "k", "7", 5)]), ReadFacts(1.0, 5, 7), 10).opened(SPLIT)
    other = Batch(Payload.of([Record("YQ==", "k", "8", 6)]), ReadFacts(2.0, 6, 0), 20)
    joined = Batch.joined([*whole.cut(Limits.of(2, 10_000)), other])
    assert (joined.earlier, joined.read, joined.complete_ms) == (((7, whole.read),), other.read, 20)
    head, tail = joined.cut(Limits.of(1, 10_000))
    assert (head.read, head.earlier, tail.earlier) == (whole.read, (), joined.earlier)
    assert Batch.joined([head, tail]).earlier == joined.earlier
