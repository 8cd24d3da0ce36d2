"""Segments of a snapshot as shards, and positions in them."""

from __future__ import annotations

import sys
from base64 import b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import HashRange, Lease, ShardId
from kcl_daemon.shards.lineage import (
    InitialPosition,
    Segment,
    Shard,
    awaited_segments,
    needed_since_ms,
    segment_of,
)
from kcl_daemon.shards.snapshot import (
    MOST_DIGITS,
    beginning,
    digits_in,
    digits_of,
    first_shards,
    hours_of,
    items_at,
    items_of,
    key_bytes,
    key_of,
    ordinal_of,
    position_number,
    position_of,
    segment_leases,
    segment_shards,
    segments_for,
    snapshot_in,
    units_for,
    with_segments,
)
from kcl_daemon.shards.sync import CleanupVerdict, judge_finished, missing_leases, new_lease
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber

BEGUN_MS = 1_760_000_000_000
MINUTE_MS = 60_000
KEYS = st.binary(max_size=600)


@given(st.lists(st.tuples(st.integers(0, 10**6), KEYS), min_size=2, max_size=20))
def test_numbers_grow_with_the_ordinal_whatever_the_keys(steps: list[tuple[int, bytes]]) -> None:
    ordinal, digits, numbers = 0, 0, list[int]()
    for step, key in steps:
        ordinal, digits = ordinal + 1 + step, max(digits, digits_of(key))
        number = position_number(ordinal, key, digits)
        assert position_of(number) == (ordinal, key)
        assert digits_in(number) == digits
        numbers.append(int(number))
    assert numbers == sorted(set(numbers))


@given(st.binary(max_size=1_774))
def test_a_key_that_fits_makes_a_number_that_python_reads(key: bytes) -> None:
    number = position_number(10**18 - 1, key, digits_of(key))
    assert digits_of(key) <= MOST_DIGITS
    assert ExtendedSequenceNumber(number).sequence_number == number
    assert len(number) <= sys.get_int_max_str_digits()


@given(st.integers(0, 10**9), st.integers(0, 10**17), st.integers(0, 10**8), st.integers(1, 10**6))
def test_a_resumed_scan_numbers_above_what_was_given_before(
    since_ms: int, last: int, items: int, later_ms: int
) -> None:
    first = ordinal_of(BEGUN_MS, BEGUN_MS + since_ms, last, items)
    assert first > last
    assert items_of(first) == items
    again = ordinal_of(BEGUN_MS, BEGUN_MS + since_ms + later_ms + 10, 0, 0)
    assert again > ordinal_of(BEGUN_MS, BEGUN_MS + since_ms, 0, 0)


@pytest.mark.parametrize(
    ("since_ms", "before", "items", "ordinal"),
    [
        (0, 0, 0, 1_000_000_000),
        (9, 0, 0, 1_000_000_000),
        (10, 0, 0, 2_000_000_000),
        (3_600_000, 0, 7, 360_001_000_000_007),
        (3_600_000, 999_999_999_999_999, 42, 1_000_000_000_000_042),
        (100 * 86_400_000, 0, 999_999_999, 864_000_001_999_999_999),
    ],
)
def test_a_reader_goes_on_at_the_hundredth_of_a_second_in_which_it_begins_with_nine_digits_for_items(
    since_ms: int, before: int, items: int, ordinal: int
) -> None:
    assert ordinal_of(BEGUN_MS, BEGUN_MS + since_ms, before, items) == ordinal
    assert items_of(ordinal) == items


@pytest.mark.parametrize(
    ("number", "position"),
    [
        ("1" + "000000001000000001" + "0000368", (1_000_000_001, b"p")),
        ("1" + "864000001999999999" + "368", (864_000_001_999_999_999, b"p")),
        ("1" + "000000001000000000" + "1", (1_000_000_000, b"")),
        ("1" + "000000001000000001" + "65536", (1_000_000_001, b"\0\0")),
    ],
    ids=["more digits than it needs", "just enough of them, and a hundred days", "no key", "zeros"],
)
def test_positions_in_checkpoints_of_earlier_versions_mean_what_they_meant(
    number: str, position: tuple[int, bytes]
) -> None:
    assert position_of(number) == position
    assert position_number(*position, digits_in(number)) == number


def test_the_longest_number_is_the_longest_that_python_reads() -> None:
    longest = position_number(10**18 - 1, b"", MOST_DIGITS)
    assert len(longest) == sys.int_info.default_max_str_digits
    assert position_of(longest) == (10**18 - 1, b"")


def test_of_keys_up_to_1_776_bytes_each_has_room_for_the_highest_and_no_longer_one_fits() -> None:
    highest = [b"\xff" * size for size in range(1_778)]
    assert [digits_of(key) <= MOST_DIGITS for key in highest] == [True] * 1_777 + [False]
    for key in highest[:-1]:
        assert digits_in(position_number(10**9, key, digits_of(key))) == digits_of(key)


def test_before_all_items_is_a_position_with_as_many_digits() -> None:
    number = position_number(ordinal_of(BEGUN_MS, BEGUN_MS, 0, 0), b"key", 40)
    assert position_of(beginning(number)) == (0, b"")
    assert len(beginning(number)) == len(number)


def test_items_are_told_of_checkpoints_in_segments_only() -> None:
    segment = segment_shards(BEGUN_MS, 1)[0].shard_id
    number = position_number(ordinal_of(BEGUN_MS, BEGUN_MS + MINUTE_MS, 0, 77), b"key", 40)
    assert items_at(segment, number) == 77
    assert items_at(segment, "TRIM_HORIZON") is None
    assert items_at("shardId-000000000001", number) is None


@pytest.mark.parametrize(
    "number", ["", "1", "1" * 19, "2" + "0" * 30, "1" + "0" * 30, "49590338", "1x" + "0" * 30]
)
def test_other_numbers_are_no_positions(number: str) -> None:
    with pytest.raises(ValueError, match="not a position"):
        position_of(number)


@given(st.text(min_size=1), st.integers(), st.binary(min_size=1))
def test_keys_come_back(text: str, number: int, data: bytes) -> None:
    for key in (
        {"id": {"S": text}},
        {"id": {"N": str(number)}, "at": {"S": text}},
        {"id": {"B": b64encode(data).decode()}, "at": {"B": b64encode(data).decode()}},
    ):
        packed = key_bytes(key, tuple(key))
        assert key_of(packed, tuple(key)) == key
        with pytest.raises(ValueError, match="key"):
            key_of(packed + b"S\0\0", tuple(key))


def test_a_key_whose_end_is_missing_is_refused() -> None:
    packed = key_bytes({"id": {"S": "order-1"}}, ["id"])
    with pytest.raises(ValueError, match="another key"):
        key_of(packed[:-1], ["id"])


def test_names_of_segments() -> None:
    segments = segment_shards(BEGUN_MS, 3)
    assert [each.shard_id for each in segments] == [
        f"snapshot-{BEGUN_MS}-0000-0003",
        f"snapshot-{BEGUN_MS}-0001-0003",
        f"snapshot-{BEGUN_MS}-0002-0003",
    ]
    assert [segment_of(each.shard_id) for each in segments] == [Segment(BEGUN_MS, n, 3) for n in range(3)]
    assert segment_of("shardId-00000001760000000000-abcdef01") is None


def shard(minutes: int, *parents: Shard, is_open: bool = True) -> Shard:
    """Created so many minutes after the beginning."""
    name = ShardId(f"shardId-{BEGUN_MS + minutes * MINUTE_MS:020}-{abs(minutes):08x}")
    ids = frozenset(each.shard_id for each in parents)
    return Shard(name, HashRange(0, 1), ids, 10**20 + minutes, None if is_open else 10**21)


OLDER = shard(-600, is_open=False)
OLD = shard(-300, OLDER, is_open=False)
JUST_CLOSED = shard(-200, OLD, is_open=False)
OPEN = shard(-5, JUST_CLOSED)
OTHER = shard(-100)
SHARDS = (OLDER, OLD, JUST_CLOSED, OPEN, OTHER)


@pytest.mark.parametrize(("early_ms", "counts"), [(600_000, True), (600_001, False)])
def test_a_shard_counts_that_was_open_up_to_ten_minutes_before_the_beginning(
    early_ms: int, counts: bool
) -> None:
    child = Shard(
        ShardId(f"shardId-{BEGUN_MS - early_ms:020}-0a1b2c3d"),
        HashRange(0, 1),
        frozenset({OLD.shard_id}),
        10**20,
    )
    listed = with_segments((OLD, child), segment_leases(BEGUN_MS, 1))
    assert (OLD.shard_id in {each.shard_id for each in listed}) is counts


def finished(lease: Lease) -> Lease:
    return replace(lease, checkpoint=SHARD_END)


def test_shards_that_can_hold_changes_since_then_follow_the_segments() -> None:
    leases = segment_leases(BEGUN_MS, 2)
    listed = with_segments(SHARDS, leases)
    names = frozenset(each.shard_id for each in segment_shards(BEGUN_MS, 2))
    assert [each.shard_id for each in listed[:2]] == sorted(names)
    assert {each.shard_id: each.parent_shard_ids for each in listed[2:]} == {
        JUST_CLOSED.shard_id: names,
        OPEN.shard_id: {JUST_CLOSED.shard_id},
        OTHER.shard_id: names,
    }
    roots = first_shards(SHARDS, Segment(BEGUN_MS, 1, 2))
    assert {each.shard_id for each in roots} == {JUST_CLOSED.shard_id, OTHER.shard_id}


def test_a_shard_whose_name_has_no_time_is_kept() -> None:
    odd = Shard(ShardId("shardId-odd"), HashRange(0, 1), frozenset({OLD.shard_id}), 10**20)
    listed = with_segments((OLDER, OLD, odd), segment_leases(BEGUN_MS, 1))
    assert [each.shard_id for each in listed[1:]] == [OLD.shard_id, odd.shard_id]


def test_without_leases_of_segments_the_list_is_as_it_is() -> None:
    assert with_segments(SHARDS, [new_lease(OTHER, TRIM_HORIZON)]) == SHARDS
    assert with_segments(SHARDS, []) == SHARDS


def test_nothing_follows_before_a_segment_has_ended_and_all_after_the_last() -> None:
    leases = segment_leases(BEGUN_MS, 2)

    def missing(leases: list[Lease]) -> dict[ShardId, ExtendedSequenceNumber]:
        found = missing_leases(with_segments(SHARDS, leases), leases, InitialPosition())
        return {each.shard_id: each.checkpoint for each in found}

    assert missing(leases) == {}
    assert missing([finished(leases[0]), leases[1]]) == {}
    assert missing(list(map(finished, leases))) == {
        JUST_CLOSED.shard_id: TRIM_HORIZON,
        OTHER.shard_id: TRIM_HORIZON,
    }


def test_a_segment_stays_until_the_shards_after_it_have_begun() -> None:
    over = list(map(finished, segment_leases(BEGUN_MS, 2)))
    roots = [new_lease(each, TRIM_HORIZON) for each in first_shards(SHARDS, Segment(BEGUN_MS, 0, 2))]

    def verdicts(leases: list[Lease]) -> set[CleanupVerdict]:
        return {each.verdict for each in judge_finished(leases, with_segments(SHARDS, leases))}

    assert verdicts(over) == {CleanupVerdict.WAITS}
    begun = [replace(each, checkpoint=ExtendedSequenceNumber("1" + "0" * 20)) for each in roots]
    assert verdicts([*over, begun[0], roots[1]]) == {CleanupVerdict.WAITS}
    assert verdicts([*over, *begun]) == {CleanupVerdict.COMPLETED}


def test_a_deleted_segment_does_not_come_back_while_the_others_are_there() -> None:
    first, second = map(finished, segment_leases(BEGUN_MS, 2))
    roots = [new_lease(each, TRIM_HORIZON) for each in first_shards(SHARDS, Segment(BEGUN_MS, 0, 2))]
    listed = with_segments(SHARDS, [second, *roots])
    assert first.shard_id not in {each.shard_id for each in listed}
    assert missing_leases(listed, [second, *roots], InitialPosition()) == []


def test_segments_whose_leases_are_still_being_made_are_all_there() -> None:
    second = segment_leases(BEGUN_MS, 3)[1]
    listed = with_segments(SHARDS, [second])
    assert [each.shard_id for each in listed[:3]] == [each.shard_id for each in segment_shards(BEGUN_MS, 3)]


def test_of_two_snapshots_the_later_one_counts_by_its_first_segment() -> None:
    leases = [*segment_leases(BEGUN_MS, 2), *segment_leases(BEGUN_MS + 1, 3), new_lease(OTHER, TRIM_HORIZON)]
    for each in (leases, leases[::-1]):
        assert snapshot_in(each) == Segment(BEGUN_MS + 1, 0, 3)
    assert snapshot_in(leases[-1:]) is None


def test_a_shard_waits_for_leases_of_segments_that_are_not_made_yet() -> None:
    first, second = segment_leases(BEGUN_MS, 2)
    parents: dict[ShardId, Lease | None] = {first.shard_id: first, second.shard_id: None, OLD.shard_id: None}
    assert awaited_segments(parents) == {second.shard_id}


GIB = 2**30


@pytest.mark.parametrize(
    ("size_bytes", "units", "segments"),
    [
        (0, 500, 1),
        (5 * GIB, 500, 5),
        (5 * GIB + 1, 500, 6),
        (100 * GIB, 500, 31),
        (1000 * GIB, 10**6, 32),
        (100 * GIB, 5, 1),
    ],
)
def test_a_segment_for_each_gib_begun_as_far_as_read_units_go(
    size_bytes: int, units: int, segments: int
) -> None:
    found = segments_for(size_bytes, units)
    assert (found, type(found)) == (segments, int)


def test_a_read_unit_reads_eight_kib_in_a_second() -> None:
    assert hours_of(8_192 * 3_600 * 500, 500) == 1.0
    assert hours_of(4_096, 2) == pytest.approx(0.25 / 3_600, rel=1e-9)
    assert hours_of(100 * GIB, 500) == pytest.approx(7.28, abs=0.01)


def test_a_scan_in_six_hours_takes_so_many_units_and_one_byte_more_takes_another() -> None:
    six_hours_of_100 = 6 * 3_600 * 8_192 * 100
    assert [units_for(six_hours_of_100 + more) for more in (0, 1)] == [100, 101]


def test_records_of_a_shard_are_needed_from_its_beginning_or_that_of_the_scan_before_it() -> None:
    shard = ShardId(f"shardId-{BEGUN_MS:020}-0a1b2c3d")
    parent = ShardId(f"shardId-{BEGUN_MS - MINUTE_MS:020}-0a1b2c3d")
    assert needed_since_ms(shard, ()) is None
    assert needed_since_ms(ShardId("shardId-000000000001"), [parent]) is None
    assert needed_since_ms(shard, [parent]) == BEGUN_MS
    later = BEGUN_MS + MINUTE_MS
    assert needed_since_ms(shard, [each.shard_id for each in segment_shards(later, 2)]) == later
