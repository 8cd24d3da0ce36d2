"""What a micro-batch reads: fair ends, ranges without a gap, tasks that keep the order of a shard."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_landing.positions import START, Position, from_text, position, to_text
from kcl_spark.positions import QueryLog, from_offset, minimum, to_offset
from kcl_spark.segments import MissingRange, Segment, ends, is_covered, parse_name, pieces, tasks
from kcl_spark.stores import Grant, StoredShard
from tests.spark.parts import OTHER, SHARD, at, plan, positions, segment

NUMBERS = st.integers(0, 10**57)


@given(NUMBERS, st.integers(0, 500))
def test_a_position_survives_offset_and_file_name(sequence: int, sub: int) -> None:
    where = (sequence, sub)
    assert from_text(to_text(where)) == where
    assert from_offset(to_offset({SHARD: where})) == {SHARD: where}
    segment = Segment(SHARD, START, where, 7, 1000)
    assert parse_name(SHARD, segment.name) == segment
    assert len(segment.name) < 255


def test_a_sentinel_is_the_start_and_numbers_are_compared_as_numbers() -> None:
    assert position("TRIM_HORIZON", 0) == position(None, None) == START
    assert position("9", 0) < position("10", 0) < position("10", 3)


def test_offsets_of_other_sources_are_left_alone() -> None:
    assert from_offset({"topic": {"0": 5}}) is None
    assert from_offset(17) is None


def test_the_minimum_leaves_out_what_one_does_not_know() -> None:
    assert minimum([positions({SHARD: 5, OTHER: 9}), positions({SHARD: 3})]) == positions({SHARD: 3})
    assert minimum([]) == {}


def test_shards_take_turns_within_the_bytes_of_a_batch() -> None:
    spooled = {
        SHARD: [segment(-1, 10), segment(10, 20), segment(20, 30)],
        OTHER: [segment(-1, 5, shard_id=OTHER)],
    }
    assert ends({}, spooled, {}, 250) == positions({SHARD: 10, OTHER: 5})
    assert ends({}, spooled, {}, None) == positions({SHARD: 30, OTHER: 5})


def test_one_segment_is_taken_even_if_it_is_larger_than_a_batch() -> None:
    assert ends({}, {SHARD: [segment(-1, 10, 10_000)]}, {}, 1) == positions({SHARD: 10})


def test_an_end_never_jumps_over_records_that_are_missing() -> None:
    with pytest.raises(MissingRange, match="lacks the records between 10/0 and 15/0"):
        ends(positions({SHARD: 10}), {SHARD: [segment(15, 20)]}, {}, None)


def test_records_up_to_the_checkpoint_of_the_lease_may_be_missing() -> None:
    reached = ends(positions({SHARD: 10}), {SHARD: [segment(15, 20)]}, positions({SHARD: 15}), None)
    assert reached == positions({SHARD: 20})


def test_a_range_is_covered_only_without_a_gap() -> None:
    assert is_covered(SHARD, [segment(5, 10), segment(10, 20)], at(7), at(18))
    assert not is_covered(SHARD, [segment(5, 10)], at(7), at(18))
    assert not is_covered(SHARD, [], at(7), at(18))
    with pytest.raises(MissingRange):
        is_covered(SHARD, [segment(5, 10), segment(12, 20)], at(7), at(18))


def test_a_range_is_lost_when_it_is_not_here_and_no_lease_brings_it() -> None:
    half = [segment(5, 10)]
    assert StoredShard(half).is_lost(SHARD, at(7), at(18))
    assert StoredShard([*half, segment(15, 18)]).is_lost(SHARD, at(7), at(18))  # a hole that nobody fills
    assert not StoredShard(half).is_lost(SHARD, at(7), at(10))
    assert not StoredShard(half, Grant(held=True)).is_lost(SHARD, at(7), at(18))
    assert not StoredShard(half, Grant(held=False, after=at(18))).is_lost(SHARD, at(7), at(18))


def test_a_lost_range_leaves_the_plan_and_is_not_committed(tmp_path: Path) -> None:
    plan(tmp_path, 4, positions({SHARD: 5, OTHER: 7}), committed=True)
    plan(tmp_path, 5, positions({SHARD: 9, OTHER: 9, "new": 3}), committed=False)
    (tmp_path / "offsets" / ".5.crc").write_text("of what was there")
    log = QueryLog(tmp_path)
    assert log.read().planned == positions({SHARD: 9, OTHER: 9, "new": 3})
    asked: list[tuple[str, Position, Position]] = []

    def is_lost(shard_id: str, after: Position, last: Position) -> bool:
        asked.append((shard_id, after, last))
        return shard_id != OTHER

    assert log.leave(is_lost) == {SHARD: (at(5), at(9)), "new": (START, at(3))}
    assert sorted(asked) == sorted([(SHARD, at(5), at(9)), (OTHER, at(7), at(9)), ("new", START, at(3))])
    assert log.read().planned == {**positions({SHARD: 5, OTHER: 9}), "new": START}
    assert log.read().committed == positions({SHARD: 5, OTHER: 7})
    assert not (tmp_path / "offsets" / ".5.crc").exists()
    assert QueryLog(tmp_path).leave(lambda *_given: False) == {}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_the_pieces_of_a_range_are_the_range_whatever_the_borders(
    sizes: list[int], data: st.DataObject
) -> None:
    segments: list[Segment] = []
    last = -1
    for size in sizes:
        segments.append(segment(last, last + size))
        last += size
    low = data.draw(st.integers(-1, last - 1))
    high = data.draw(st.integers(low + 1, last))
    found = [
        number
        for piece in pieces(segments, at(low), at(high))
        for number in range(piece.after[0] + 1, piece.last[0] + 1)
    ]
    assert found == list(range(low + 1, high + 1))


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=9), st.integers(1, 4))
def test_tasks_hold_whole_shards_in_order(shards: list[list[int]], most: int) -> None:
    whole = [
        pieces([segment(n, n + 1, size, shard_id=str(name)) for n, size in enumerate(sizes)], at(-1), at(99))
        for name, sizes in enumerate(shards)
    ]
    planned = tasks(whole, most)
    assert len(planned) <= most
    found = [piece for task in planned for piece in task]
    for shard in whole:
        assert [each for each in found if each.segment.shard_id == shard[0].segment.shard_id] == shard
        assert sum(any(each in task for each in shard) for task in planned) == 1
