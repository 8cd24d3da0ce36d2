"""The mark is never above a record that its lane has not checkpointed, and nothing is given out of order or left out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.records.batch import Batch, ReadFacts, nothing
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.records.lane_window import LaneWindow, NotOfThisLane, key_hash
from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES, AnyRecord, Payload, raw_record
from kcl_protocol.messages import Record
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber

LANES = 3
ALL = (1 << 30, 1 << 30)
NOT_KNOWN = nothing(None).facts


def record(number: int, key: str = "") -> AnyRecord:
    return raw_record(Record("AAAA", key or f"key-{number % 7}", str(number), None))


def position(number: int) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number))


def lane_of(number: int) -> int:
    return key_hash(record(number)) % LANES


def batch(records: Iterable[AnyRecord], facts: ReadFacts = NOT_KNOWN) -> Batch:
    return Batch(Payload(list(records), 0), facts)


def numbers(taken: Batch | None) -> list[int]:
    return [] if taken is None else [int(each.sequence_number) for each in taken.records]


def test_earlier_positions_of_lanes_do_not_count_where_reading_begins_at_latest() -> None:
    window = LaneWindow(2, LATEST, done=(LATEST, position(7)))
    assert [window.checkpoint_of(lane) for lane in range(2)] == [LATEST, LATEST], (
        "a child that is told 7 would miss what came between"
    )


def test_as_long_as_nothing_but_latest_can_be_stored_the_first_record_is_told() -> None:
    window = LaneWindow(LANES, LATEST)
    assert window.done() == ()
    window.add(batch(map(record, range(5, 20))))
    first_lane = next(lane for lane in range(LANES) if 5 in numbers(window.take(lane, *ALL)))
    for lane in range(LANES):
        taken = numbers(window.take(lane, *ALL))
        if lane != first_lane and taken:
            window.checkpoint(lane, position(taken[-1]))
    assert window.mark == LATEST
    assert [window.done(remembers=remembers) for remembers in (True, False)] == [(position(5),)] * 2
    window.checkpoint(first_lane, position(5))
    assert window.mark >= position(5)
    assert len(window.done()) == LANES
    assert window.done(remembers=False) == ()


def test_each_key_has_one_lane_and_keeps_its_order() -> None:
    window = LaneWindow(LANES, TRIM_HORIZON)
    given_to = window.add(batch(map(record, range(1, 50))))
    assert given_to == {lane_of(number) for number in range(1, 50)}
    for lane in given_to:
        assert numbers(window.take(lane, *ALL)) == [
            number for number in range(1, 50) if lane_of(number) == lane
        ]


def test_a_key_in_other_letters_of_json_has_the_same_lane() -> None:
    escaped = Record("AAAA", "caf\u00e9", "1", None)
    plain = raw_record(escaped)
    plain.partition_key = type(plain.partition_key)('"caf\u00e9"'.encode())
    assert plain.partition_key != raw_record(escaped).partition_key
    assert key_hash(plain) == key_hash(raw_record(escaped)) == 2561491637


def test_the_mark_stops_before_the_first_record_that_is_not_done() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    window.add(batch(map(record, range(1, 7))))  # 1 3 5 and 2 4 6
    assert (numbers(window.take(0, *ALL)), numbers(window.take(1, *ALL))) == ([1, 3, 5], [2, 4, 6])
    window.checkpoint(1, position(6))
    assert window.mark == TRIM_HORIZON
    window.checkpoint(0, position(3))
    assert window.mark == position(4), "the one before 5, whoever had it"
    assert window.slowest == 0
    window.checkpoint(0, position(5))
    assert window.mark == position(6)
    assert [window.slowest] == [None]
    assert window.size_bytes == 0


def test_records_done_by_the_lanes_of_another_worker_are_not_given_again() -> None:
    first = LaneWindow(LANES, TRIM_HORIZON)
    first.add(batch(map(record, range(1, 50))))
    slow, quick, idle = 0, 1, 2
    for lane, last in ((slow, 3), (quick, 30), (idle, 49)):
        mine = [number for number in numbers(first.take(lane, *ALL)) if number <= last]
        first.checkpoint(lane, position(mine[-1]))
    second = LaneWindow(LANES, first.mark, done=first.done())
    second.add(batch(map(record, range(int(first.mark.sequence_number) + 1, 60))))
    for lane in range(LANES):
        done = int(first.done()[lane].sequence_number)
        assert numbers(second.take(lane, *ALL)) == [n for n in range(done + 1, 60) if lane_of(n) == lane]
        second.checkpoint(lane, SHARD_END)
    assert second.mark == position(59)
    assert [int(each.sequence_number) for each in second.done()] == [59, 59, 59]


@pytest.mark.parametrize("done", [(), (position(9),) * 2, (position(9),) * 8])
def test_the_lanes_of_another_number_are_not_those_of_this(done: tuple[ExtendedSequenceNumber, ...]) -> None:
    window = LaneWindow(LANES, TRIM_HORIZON, done=done)
    assert window.add(batch(map(record, range(1, 9)))) == {lane_of(number) for number in range(1, 9)}
    assert LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE, done).done() == (TRIM_HORIZON, TRIM_HORIZON)


def test_records_not_done_are_counted_by_lane_and_the_first_holds_the_mark_back() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    assert (window.lane_count, window.held_back, window.not_done(0)) == (2, None, (0, 0))
    window.add(batch(map(record, range(1, 7))))  # 1 3 5 and 2 4 6
    window.take(0, *ALL)
    window.answered(0)
    window.checkpoint(0, position(1))
    assert window.held_back == (position(1), 1)
    window.checkpoint(1, position(2))
    assert window.held_back == (position(2), 0)
    each_bytes = window.size_bytes // 4
    assert [window.not_done(lane) for lane in (0, 1)] == [(2, 2 * each_bytes)] * 2
    window.shed(0)
    assert window.not_done(0) == (2, 0), "their data is gone, they are not done"
    window.checkpoint(0, position(5))
    assert [window.not_done(lane) for lane in (0, 1)] == [(0, 0), (2, window.size_bytes)]


def test_a_checkpoint_in_the_middle_of_an_aggregate_leaves_the_rest_of_it_to_be_done() -> None:
    def part(number: int, index: int) -> AnyRecord:
        return raw_record(Record("AAAA", "key", str(number), sub_sequence_number=index))

    window = LaneWindow(1, TRIM_HORIZON)
    window.add(batch([part(1, 0), part(1, 1), part(1, 2), part(2, 0)]))
    window.take(0, *ALL)
    middle = ExtendedSequenceNumber("1", 1)
    window.checkpoint(0, middle)
    assert (window.mark, window.not_done(0)[0]) == (middle, 2)
    window.rewind(0)
    taken = window.take(0, *ALL)
    assert taken is not None
    again = [(each.sequence_number, each.sub_sequence_number) for each in taken.records]
    assert again == [("1", 2), ("2", 0)]


def test_a_lane_cannot_checkpoint_a_record_of_another() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    window.add(batch(map(record, range(1, 7))))
    window.take(0, *ALL)
    with pytest.raises(NotOfThisLane, match="2 is a record of another lane"):
        window.checkpoint(0, position(2))
    assert window.checkpoint_of(0) == TRIM_HORIZON


def test_a_lane_whose_child_is_gone_gets_its_records_again_and_no_other() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    window.add(batch(map(record, range(1, 7))))
    window.take(0, *ALL)
    window.take(1, *ALL)
    window.checkpoint(0, position(1))
    assert window.rewind(0) is False
    assert numbers(window.take(0, *ALL)) == [3, 5]
    assert window.take(1, *ALL) is None


def test_at_the_end_of_the_shard_a_lane_is_done_with_everything() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    window.add(batch(map(record, range(1, 4))))
    window.take(0, *ALL)
    window.checkpoint(0, SHARD_END)
    assert (window.mark, window.checkpoint_of(0)) == (position(3), SHARD_END)


def test_processed_records_are_forgotten_where_room_is_needed_and_read_again_where_a_child_fails() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    window.add(batch(map(record, range(1, 401))))
    for lane in (0, 1):
        window.take(lane, *ALL)
        window.answered(lane)
    window.checkpoint(0, position(201))
    window.checkpoint(1, position(300))
    window.shed(0)
    assert (window.size_bytes, window.answered_bytes) == (0, 0)
    assert window.mark == position(202)
    assert window.rewind(0)
    assert window.reread_from() == position(202)
    assert window.mark == position(202)
    assert window.add(batch(map(record, range(203, 300)))) == {0}
    assert window.add(batch(map(record, range(300, 403)))) == {0, 1}
    assert numbers(window.take(0, *ALL)) == [*range(203, 400)]
    assert numbers(window.take(1, *ALL)) == [401, 402]
    assert window.mark == position(202)


def test_an_answer_that_arrives_after_a_rewind_is_read_again() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    window.add(batch(map(record, range(1, 6))))
    window.take(0, *ALL)
    window.answered(0)
    window.shed(0)
    assert window.rewind(0)
    assert window.add(batch([record(6)])) == set()
    window.passed(position(9))
    window.shard_ended()
    assert window.is_rereading(0)
    assert window.reread_from() == TRIM_HORIZON
    assert window.add(batch(map(record, range(1, 8)))) == {0}
    assert numbers(window.take(0, *ALL)) == [1, 2, 3, 4, 5, 6, 7]
    assert not window.is_rereading(0)


def test_many_forgotten_records_take_little_memory_and_still_move_the_mark() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    window.add(batch(map(record, range(1, 30_001))))
    window.take(0, *ALL)
    window.answered(0)
    window.shed(0)
    assert len(window._lanes[0].ranges) <= 256
    window.checkpoint(0, position(20_000))
    assert 15_000 < int(window.mark.sequence_number) <= 20_000
    window.checkpoint(0, position(30_000))
    assert window.mark == position(30_000)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "take", "answer", "checkpoint", "part", "fail", "shed"]),
        st.integers(0, LANES - 1),
        st.integers(1, 12),
    ),
    max_size=80,
)


@given(STEPS, st.sampled_from(ShardOrder))
def test_whatever_happens_the_mark_covers_only_what_is_done(
    steps: list[tuple[str, int, int]], order: ShardOrder
) -> None:
    window, next_number, done = LaneWindow(LANES, TRIM_HORIZON, order), 1, set[int]()
    with_child: list[list[int]] = [[] for _ in range(LANES)]
    marks = [window.mark]
    for step, lane, amount in steps:
        if step == "read":
            window.add(batch(map(record, range(next_number, next_number + amount))))
            next_number += amount
        elif step == "take":
            with_child[lane] += numbers(window.take(lane, amount * 400, 7))
        elif step == "answer":
            window.answered(lane)
        elif step in {"checkpoint", "part"} and with_child[lane]:
            count = len(with_child[lane]) if step == "checkpoint" else min(amount, len(with_child[lane]))
            window.checkpoint(lane, position(with_child[lane][count - 1]))
            done.update(with_child[lane][:count])
            del with_child[lane][:count]
        elif step == "fail":
            with_child[lane] = []
            if window.rewind(lane):
                start = window.reread_from()
                assert start is not None
                next_number = 1 if start.is_sentinel else int(start.sequence_number) + 1
        elif step == "shed":
            window.shed(amount * 400)
        marks.append(window.mark)
        mark = window.mark
        assert mark.is_sentinel or done >= set(range(1, int(mark.sequence_number) + 1))
    assert marks == sorted(marks)
    _finish(window, with_child, next_number)
    assert window.mark == window.high
    assert (window.size_bytes, window.answered_bytes) == (0, 0)


def _finish(window: LaneWindow, with_child: list[list[int]], next_number: int) -> None:
    high = 0 if window.high.is_sentinel else int(window.high.sequence_number)
    window.add(batch(map(record, range(next_number, max(high, next_number) + 2))))
    for lane, before in enumerate(with_child):
        had = [*before, *numbers(window.take(lane, *ALL))]
        if had:
            window.checkpoint(lane, position(had[-1]))


@given(STEPS)
def test_each_lane_gets_its_records_in_order_without_a_gap(steps: list[tuple[str, int, int]]) -> None:
    window, next_number = LaneWindow(LANES, TRIM_HORIZON), 1
    had: list[list[int]] = [[] for _ in range(LANES)]
    for step, lane, amount in steps:
        if step == "read":
            window.add(batch(map(record, range(next_number, next_number + amount))))
            next_number += amount
        elif step == "take":
            had[lane] += numbers(window.take(lane, amount * 400, 7))
        elif step == "answer":
            window.answered(lane)
        elif step == "checkpoint" and had[lane]:
            window.checkpoint(lane, position(had[lane][-1]))
        elif step == "fail":
            own = window.checkpoint_of(lane)
            had[lane] = [] if own.is_sentinel else [n for n in had[lane] if n <= int(own.sequence_number)]
            if window.rewind(lane):
                start = window.reread_from()
                assert start is not None
                next_number = 1 if start.is_sentinel else int(start.sequence_number) + 1
        elif step == "shed":
            window.shed(amount * 400)
        last = had[lane][-1] if had[lane] else 0
        assert had[lane] == [number for number in range(1, last + 1) if lane_of(number) == lane]


def test_records_of_a_lane_have_the_read_facts_of_their_answers() -> None:
    """A lane that reads again is far behind; what another lane still has is not."""
    window, early, late = (
        LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE),
        ReadFacts(5.0, 1, 0),
        ReadFacts(90.0, 1, 3),
    )
    window.add(batch(map(record, range(1, 5)), early))  # 1 3 and 2 4
    first = window.take(0, *ALL)
    assert first is not None
    assert (window.oldest_s, first.facts) == (5.0, early)
    window.answered(0)
    window.add(batch(map(record, range(5, 9)), late))  # 5 6 7 and 8
    again, other = window.take(0, *ALL), window.take(1, 10**9, 1)
    assert again is not None
    assert other is not None
    assert (window.oldest_s, again.facts, other.facts) == (5.0, late, early)
    window.rewind(1)
    both = window.take(1, *ALL)
    assert both is not None
    assert both.facts == late, "of several answers: as young as one of them says"


def read_by(window: LaneWindow, last: int) -> None:
    """All lanes are given the records up to there, and have processed them."""
    window.add(batch(map(record, range(1, last + 1))))
    for lane in range(window.lane_count):
        window.take(lane, *ALL)
        window.answered(lane)


def test_earlier_positions_of_lanes_count_where_reading_begins_at_trim_horizon() -> None:
    window = LaneWindow(2, TRIM_HORIZON, done=(TRIM_HORIZON, position(30)))
    window.add(batch(map(record, range(1, 30))))
    assert (window.take(1, *ALL), window.is_behind(0)) == (None, True)


def test_a_lane_is_behind_until_its_child_has_processed_all_that_it_was_sent() -> None:
    window = LaneWindow(3, TRIM_HORIZON, ShardOrder.NONE)
    window.add(batch(map(record, range(1, 3))))
    assert [window.is_behind(lane) for lane in range(3)] == [True, True, False]
    assert [window.first_key_hash(lane) for lane in range(3)] == [
        *(key_hash(record(number)) for number in (1, 2)),
        None,
    ]
    assert (window.slowest, window.all_taken) == (0, False)
    window.take(0, *ALL)
    window.answered(0)
    assert (window.is_behind(0), window.first_key_hash(0)) == (False, None)
    assert (window.holds_mark, window.slowest, window.all_taken) == (0, 1, False)
    window.take(1, *ALL)
    assert (window.is_behind(1), window.all_taken) == (True, True)


def test_a_lane_that_reads_again_is_behind_and_has_not_been_given_all() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    read_by(window, 3)
    window.shed(0)
    assert (window.is_behind(0), window.all_taken) == (False, True)
    window.rewind(0)
    assert (window.is_behind(0), window.all_taken) == (True, False)


def test_waiting_records_are_counted_with_the_bytes_of_their_data() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    assert window.waiting == (0, 0)
    rows = [raw_record(Record("A" * 40, "key" + "y" * number, str(number), None)) for number in range(1, 5)]
    sizes = [len(row.data) + len(row.partition_key) for row in rows]
    window.add(batch(rows))  # 1 3 and 2 4
    assert window.size_bytes == sum(sizes) + 4 * RECORD_OVERHEAD_BYTES
    assert window.waiting == (4, 3 * sum(sizes) // 4)
    window.take(0, *ALL)
    assert window.waiting[0] == 4, "taken is not processed"
    window.answered(0)
    assert window.waiting == (2, 3 * (sizes[1] + sizes[3]) // 4)
    window.rewind(0)
    assert (window.answered_bytes, window.waiting[0]) == (0, 4)


def test_without_order_by_key_the_lane_with_the_fewest_to_process_gets_the_next_record() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    window.add(batch(map(record, range(1, 5))))  # 1 3 and 2 4
    window.take(0, *ALL)
    window.answered(0)
    assert window.add(batch([record(5)])) == {0}


def test_a_window_whose_records_are_processed_has_no_oldest_record() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    window.add(batch(map(record, range(1, 3)), ReadFacts(5.0, 1, 0)))
    window.take(0, *ALL)
    window.answered(0)
    assert window.oldest_s == 5.0
    window.take(1, *ALL)
    window.answered(1)
    assert window.oldest_s is None


def test_a_batch_ends_before_the_record_that_is_too_much_and_has_one_in_any_case() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    window.add(batch(map(record, range(1, 7))))
    each_bytes = window.size_bytes // 6
    assert numbers(window.take(0, 2 * each_bytes, 9)) == [1, 2]
    assert numbers(window.take(0, 2 * each_bytes - 1, 9)) == [3]
    assert numbers(window.take(0, 1, 9)) == [4]
    assert numbers(window.take(0, 9 * each_bytes, 1)) == [5]


def test_after_a_large_record_that_has_no_room_no_small_one_comes_before_it() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    sizes = {1: 4, 2: 4_000, 3: 4}
    window.add(
        batch(raw_record(Record("A" * size, "key", str(number), None)) for number, size in sizes.items())
    )
    assert numbers(window.take(0, 2_000, 9)) == [1]
    assert numbers(window.take(0, 2_000, 9)) == [2]


def test_a_checkpoint_that_comes_again_or_goes_back_changes_nothing() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    read_by(window, 5)
    window.checkpoint(0, position(4))
    for number in (4, 3):
        window.checkpoint(0, position(number))
        assert (window.checkpoint_of(0), window.mark) == (position(4), position(4))


def test_a_record_checkpointed_before_its_child_got_it_is_not_given() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    window.add(batch(map(record, range(1, 6))))
    window.checkpoint(0, position(2))
    assert numbers(window.take(0, *ALL)) == [3, 4, 5]
    window.checkpoint(0, position(3))
    assert window.take(0, *ALL) is None, "4 and 5 are with the child"


def test_two_lanes_that_read_again_get_each_record_once() -> None:
    window = LaneWindow(LANES, TRIM_HORIZON)
    read_by(window, 40)
    window.shed(0)
    window.rewind(0)
    assert window.reread_from() is not None
    window.add(batch(map(record, range(1, 21))))
    had = numbers(window.take(0, *ALL))
    window.rewind(1)
    start = window.reread_from()
    assert start is not None
    assert start <= position(1)
    window.add(batch(map(record, range(1, 43))))
    had += numbers(window.take(0, *ALL))
    assert [had, numbers(window.take(1, *ALL))] == [
        [number for number in range(1, 43) if lane_of(number) == lane] for lane in (0, 1)
    ]


def test_a_lane_has_all_again_at_its_last_record_and_not_before() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    read_by(window, 3)
    window.passed(position(9))
    window.shed(0)
    window.rewind(0)
    window.reread_from()
    window.add(batch(map(record, range(1, 3))))
    assert window.is_rereading(0)
    window.add(batch([record(3)]))
    assert not window.is_rereading(0)


@pytest.mark.parametrize("is_passed", [False, True])
def test_a_record_that_is_gone_from_the_stream_is_not_waited_for(is_passed: bool) -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    read_by(window, 4)  # 1 3 and 2 4
    window.checkpoint(1, position(4))
    window.shed(0)
    window.rewind(0)
    assert window.reread_from() == TRIM_HORIZON
    window.passed(position(2))
    assert window.is_rereading(0)
    if is_passed:
        window.passed(position(4))
    else:
        window.add(batch([record(4)]))
    assert (window.is_rereading(0), window.all_taken) == (False, True)
    assert window.mark == window.high == position(4)


def test_a_new_record_of_a_lane_whose_last_one_is_gone_comes_again_where_it_fails_again() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    read_by(window, 3)
    window.shed(0)
    window.rewind(0)
    window.reread_from()
    window.add(batch([record(1), record(2), record(5)]))
    assert numbers(window.take(0, *ALL)) == [1, 2, 5]
    window.answered(0)
    window.shed(0)
    window.rewind(0)
    window.reread_from()
    window.add(batch(map(record, (1, 2, 5))))
    assert numbers(window.take(0, *ALL)) == [1, 2, 5]


def test_a_passed_position_moves_the_mark_only_if_no_record_holds_it_back() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    window.passed(position(7))
    assert (window.mark, window.high) == (position(7), position(7))
    window.add(batch([record(9)]))
    window.passed(position(12))
    assert (window.mark, window.high) == (position(7), position(12))


def test_a_position_passed_between_rewind_and_reread_does_not_count() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    read_by(window, 3)
    window.shed(0)
    window.rewind(0)
    window.passed(position(9))
    assert (window.high, window.is_rereading(0)) == (position(3), True)
    window.reread_from()
    window.passed(position(9))
    assert (window.high, window.is_rereading(0)) == (position(9), False)


def test_a_lane_that_reads_again_can_be_done_with_a_record_that_is_not_here() -> None:
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    read_by(window, 6)  # 1 3 5 and 2 4 6
    window.shed(0)
    window.rewind(0)
    window.reread_from()
    window.checkpoint(0, position(3))
    assert (window.mark, window.checkpoint_of(0)) == (TRIM_HORIZON, position(3))
    with pytest.raises(NotOfThisLane):
        window.checkpoint(0, position(6))
    window.add(batch(map(record, range(1, 7))))
    given = numbers(window.take(0, *ALL))
    assert given == [4, 5], "whose 4 was is not known without order by key; 3 is done"
    assert window.rewind(0) is False
    assert numbers(window.take(0, *ALL)) == given


def test_a_record_done_by_one_rereading_lane_does_not_hide_those_another_lane_lost() -> None:
    """Without order by key it is not known who had a record."""
    window = LaneWindow(2, TRIM_HORIZON, ShardOrder.NONE)
    read_by(window, 6)  # 1 3 5 and 2 4 6
    window.shed(0)
    for lane in (0, 1):
        window.rewind(lane)
    window.reread_from()
    window.checkpoint(0, position(3))
    window.add(batch(map(record, range(1, 7))))
    had = {number for lane in (0, 1) for number in numbers(window.take(lane, *ALL))}
    assert had >= {2, 4, 5, 6}


def test_a_lane_that_reads_again_can_be_done_with_its_last_record() -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    read_by(window, 3)
    window.shed(0)
    window.rewind(0)
    window.reread_from()
    window.checkpoint(0, position(3))
    assert window.add(batch(map(record, range(1, 5)))) == {0}
    assert numbers(window.take(0, *ALL)) == [4]


@pytest.mark.parametrize(("last", "done"), [(101, 100), (256 * 100, 100), (256 * 100 + 1, 200)])
def test_forgotten_records_are_known_by_hundreds_and_by_more_only_where_there_are_too_many(
    last: int, done: int
) -> None:
    window = LaneWindow(1, TRIM_HORIZON)
    read_by(window, last)
    window.shed(0)
    assert window.not_done(0) == (last, 0)
    window.checkpoint(0, position(done - 1))
    assert window.mark == TRIM_HORIZON
    window.checkpoint(0, position(done))
    assert (window.mark, window.not_done(0)[0]) == (position(done), last - done)
