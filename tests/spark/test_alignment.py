"""No shard runs ahead of another in time: where batches end, who holds whom, and for how long."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_landing.control import pause
from kcl_landing.positions import START, Position
from kcl_spark.alignment import SETTLE_S, TIP_REACH_MS, Alignment, ShardPace, SkewLimits, decide
from kcl_spark.conversation import ShardState
from kcl_spark.positions import from_offset, to_offset
from kcl_spark.segments import CLOSED_MS, OPEN_MS, Arrivals, Segment, ends, read_arrivals
from kcl_spark.source import KclStreamReader
from kcl_spark.spool import Spool
from kcl_spark.stores import FolderStore
from tests.spark.parts import ME, OTHER, SHARD, Told, at, no_tell, positions, record, rows_of

ROW_BYTES = 10


@dataclass(frozen=True)
class Spooled:
    """What there is of one shard: the arrival time of each of its records, cut into segments."""

    shard_id: str
    arrived_ms: tuple[int, ...]
    cuts: tuple[int, ...]

    def segments(self) -> list[Segment]:
        borders = [0, *self.cuts, len(self.arrived_ms)]
        found: list[Segment] = []
        latest = 0
        for low, high in pairwise(borders):
            if high > low:
                first = max(latest, self.arrived_ms[low])
                latest = max(latest, *self.arrived_ms[low:high])
                found.append(
                    Segment(
                        self.shard_id,
                        at(low - 1),
                        at(high - 1),
                        high - low,
                        (high - low) * ROW_BYTES,
                        first,
                        latest,
                    )
                )
        return found

    def times(self, segment: Segment) -> list[Arrivals]:
        latest, found = 0, list[Arrivals]()
        for number in range(segment.after[0] + 1, segment.last[0] + 1):
            latest = max(latest, self.arrived_ms[number])
            found.append(Arrivals(latest, at(number), 1))
        return found

    def latest_ms(self, low: int, high: int) -> int:
        """When the latest of all up to `high` arrived, as the shard's order is what counts."""
        return max(self.arrived_ms[:high], default=0) if high > low else CLOSED_MS


@st.composite
def a_shard(draw: st.DrawFn, name: str) -> Spooled:
    arrived = tuple(
        draw(st.lists(st.integers(1, 60), max_size=30))
    )  # not in order: the service promises none
    cuts = sorted(draw(st.sets(st.integers(0, len(arrived)), max_size=4)))
    return Spooled(name, tuple(sorted(arrived)) if draw(st.booleans()) else arrived, tuple(cuts))


@st.composite
def a_spool(draw: st.DrawFn) -> list[Spooled]:
    return [draw(a_shard(f"shardId-{number}")) for number in range(draw(st.integers(1, 5)))]


def plan(
    shards: Sequence[Spooled], start: dict[str, Position], most: int | None, horizon_ms: int
) -> dict[str, Position]:
    by_name = {each.shard_id: each for each in shards}
    return ends(
        start,
        {each.shard_id: each.segments() for each in shards},
        {},
        most,
        horizon_ms=horizon_ms,
        times=lambda segment: by_name[segment.shard_id].times(segment),
    )


@given(a_spool(), st.integers(1, 400), st.integers(0, 61))
def test_batch_after_batch_takes_everything_within_the_horizon_in_the_order_of_time(
    shards: list[Spooled], most: int, horizon_ms: int
) -> None:
    """The newest record of a batch is never newer than the oldest that was left, and bytes are kept to."""
    reached: dict[str, Position] = {}
    for _ in range(200):
        before, reached = reached, plan(shards, reached, most, horizon_ms)
        if reached == before:
            break
        taken = [
            (each, before.get(each.shard_id, START)[0] + 1, reached.get(each.shard_id, START)[0] + 1)
            for each in shards
        ]
        newest_ms = max(each.latest_ms(low, high) for each, low, high in taken)
        left_ms = [max(each.arrived_ms[: high + 1]) for each, _, high in taken if high < len(each.arrived_ms)]
        assert newest_ms <= min(left_ms, default=newest_ms)
        count = sum(high - low for _, low, high in taken)
        assert count * ROW_BYTES <= most or count == 1 or _one_step(taken)
    for each in shards:
        high = reached.get(each.shard_id, START)[0] + 1
        assert each.latest_ms(0, high) <= horizon_ms
        assert high == len(each.arrived_ms) or max(each.arrived_ms[: high + 1]) > horizon_ms


def _one_step(taken: Sequence[tuple[Spooled, int, int]]) -> bool:
    """More than the bytes allow is one step only: records of a segment that arrived together."""
    return sum(high > low for _, low, high in taken) == 1


def test_shards_end_at_one_time_although_their_bytes_differ() -> None:
    """The heavy shard has ten records a millisecond, the light one a single one."""
    heavy = Spooled(SHARD, tuple(number // 10 for number in range(1_000)), (500,))
    light = Spooled(OTHER, tuple(range(100)), (50,))
    reached = plan([heavy, light], {}, 200 * ROW_BYTES, OPEN_MS)
    assert heavy.arrived_ms[reached[SHARD][0]] == light.arrived_ms[reached[OTHER][0]] == 17


def test_segments_that_fit_are_taken_without_a_look_inside() -> None:
    shard = Spooled(SHARD, tuple(range(100)), (50,))

    def never(_segment: Segment) -> list[Arrivals]:
        raise AssertionError("looked inside")

    assert ends({}, {SHARD: shard.segments()}, {}, 10**6, times=never) == {SHARD: at(99)}


def test_the_shard_furthest_behind_sets_the_horizon_and_one_at_an_untold_tip_does_not() -> None:
    slow, fast, idle = ShardPace("slow", 100), ShardPace("fast", 5_000), ShardPace("idle", 7, reach_ms=None)
    assert decide([slow, fast, idle], SkewLimits()).horizon_ms == 100
    assert decide([slow, fast, idle], SkewLimits(max_skew_ms=50)).horizon_ms == 150
    assert decide([fast, idle], SkewLimits()).horizon_ms == 5_000
    assert decide([idle], SkewLimits()).horizon_ms == OPEN_MS
    assert decide([fast, ShardPace("new", None)], SkewLimits()).horizon_ms == CLOSED_MS


def test_others_may_be_ahead_of_a_tip_by_the_time_of_a_read_or_by_what_is_asked_for() -> None:
    slow, quiet = ShardPace("slow", 5_500), ShardPace("quiet", 0, reach_ms=5_000)
    assert decide([slow, quiet], SkewLimits()).horizon_ms == 5_000
    assert decide([slow, quiet], SkewLimits(max_skew_ms=20)).horizon_ms == 5_000
    assert decide([slow, quiet], SkewLimits(max_skew_ms=7_000)).horizon_ms == 7_000


def test_a_shard_that_delivers_nothing_is_waited_for_so_long_and_said_once() -> None:
    reported = Told()
    alignment = Alignment(SkewLimits(wait_s=60), reported)

    def horizon(silent_s: float, now_s: float) -> int:
        shards = [ShardPace("stuck", 100, silent_s=silent_s), ShardPace("fast", 5_000)]
        return alignment.horizon_ms(shards, [], now_s)

    assert horizon(0, 0) == CLOSED_MS  # others may be on their way
    assert horizon(0, SETTLE_S) == 100
    assert horizon(59, 61) == 100
    assert reported.events == ["spark_waits_for_shard"]
    assert horizon(60, 62) == horizon(61, 63) == 5_000
    assert reported.events == ["spark_waits_for_shard", "spark_shard_left_behind"]
    assert horizon(0, 64) == 100  # it delivers again


def test_others_wait_for_the_children_of_a_shard_that_ended() -> None:
    alignment = Alignment(SkewLimits(), no_tell)
    parent, other = ShardPace("parent", 300), ShardPace("other", 9_000)
    alignment.horizon_ms([parent, other], [], 0)
    ended = ShardPace("parent", 300, ended=True, reach_ms=None)
    for now_s in (10, 20, 40):
        assert alignment.horizon_ms([ended, other], [], now_s) == 300
    first = ShardPace("child-1", 400)
    assert alignment.horizon_ms([ended, other, first], [], 41) == 300  # there may be a second one
    assert alignment.horizon_ms([ended, other, first], [], 41 + SETTLE_S) == 400


def test_nobody_waits_for_what_follows_a_segment_of_a_snapshot() -> None:
    alignment = Alignment(SkewLimits(), no_tell)
    first, second = (f"snapshot-1795491048410-000{number}-0002" for number in range(2))
    alignment.horizon_ms([ShardPace(first, 300), ShardPace(second, 900)], [], 0)
    assert alignment.horizon_ms([ShardPace(first, 300), ShardPace(second, 900)], [], 10) == 300
    assert alignment.horizon_ms([ShardPace(first, 300, ended=True), ShardPace(second, 900)], [], 11) == 900


def test_children_that_never_come_hold_nobody_for_ever() -> None:
    alignment = Alignment(SkewLimits(wait_s=60), no_tell)
    alignment.horizon_ms([ShardPace("parent", 300), ShardPace("other", 9_000)], [], 0)
    ended, other = ShardPace("parent", 300, ended=True), ShardPace("other", 9_000)
    assert alignment.horizon_ms([ended, other], [], 10) == 300
    assert alignment.horizon_ms([ended, other], [], 70) == 9_000
    assert alignment.horizon_ms([ended, other], [], 1_000) == 9_000


def test_a_shard_whose_relay_goes_is_waited_for_where_batches_left_it() -> None:
    """Also if the daemon of before said that it was at its tip; until it comes back, or for so long."""
    reported = Told()
    alignment = Alignment(SkewLimits(wait_s=60), reported)
    gone, other = ShardPace("gone", 200, reach_ms=None), ShardPace("other", 9_000)
    alignment.horizon_ms([ShardPace("gone", 300, reach_ms=None), other], [], 0)
    alignment.horizon_ms([other], [gone], 9)
    assert alignment.horizon_ms([other], [gone], 10) == 200
    assert alignment.horizon_ms([ShardPace("gone", 250), other], [], 12) == 250
    assert alignment.horizon_ms([other], [gone], 20) == alignment.horizon_ms([other], [gone], 79) == 200
    assert alignment.horizon_ms([other], [gone], 80) == 9_000
    assert reported.events == ["spark_waits_for_shard", "spark_shard_left_behind"]


def test_nobody_runs_on_alone_while_all_are_given_back_however_long_that_takes() -> None:
    alignment = Alignment(SkewLimits(wait_s=60), no_tell)
    gone, other = ShardPace("gone", 200), ShardPace("other", 9_000)
    alignment.horizon_ms([ShardPace("gone", 300), other], [], 0)
    assert alignment.horizon_ms([ShardPace("gone", 300), other], [], 9, stops=True) == CLOSED_MS
    assert alignment.horizon_ms([ShardPace("gone", 300), other], [], 10) == 300
    for now_s in (11, 70, 200, 1_000):
        assert alignment.horizon_ms([other], [gone], now_s, stops=True) == 200


def test_without_a_wait_nobody_is_held() -> None:
    assert Alignment(SkewLimits(wait_s=0), no_tell).horizon_ms([ShardPace("new", None)], [], 0) == OPEN_MS


def arrive(spool: Spool, shard_id: str, first: int, arrived_ms: Sequence[int | None]) -> None:
    records = [
        {**record(number), "approximateArrivalTimestamp": each}
        for number, each in enumerate(arrived_ms, first)
    ]
    spool.add(shard_id, rows_of(records, shard_id), at(first + len(records) - 1), ME)


def test_arrival_times_are_in_the_name_and_found_inside(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    spool = Spool(store, max_bytes=10**9)
    spool.grant(SHARD, START, ME)
    arrive(spool, SHARD, 0, [None, 5, 5, 3, None, 9])
    spool.flush(SHARD)
    arrive(spool, SHARD, 6, [7, 12])
    spool.flush(SHARD)
    first, second = store.poll()[SHARD].segments
    assert (first.first_ms, first.last_ms, second.first_ms, second.last_ms) == (0, 9, 9, 12)
    assert read_arrivals(store.location(first)) == [
        Arrivals(0, at(0), 1),
        Arrivals(5, at(4), 4),
        Arrivals(9, at(5), 1),
    ]
    code = f"import sys; from kcl_spark.segments import read_arrivals; print(len(read_arrivals({store.location(first)!r})), 'pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "3 False\n", "each query has a planner, which would be 40 MB larger"
    assert store.horizon_ms() == OPEN_MS
    for horizon_ms in (CLOSED_MS, 7, OPEN_MS, 5):
        store.set_horizon(horizon_ms)
        assert store.horizon_ms() == horizon_ms
    assert list(store.poll()) == [SHARD]


def test_a_tip_counts_when_what_was_read_on_the_way_is_on_disk(tmp_path: Path) -> None:
    """A light shard may come whole in one answer that says that it is the last: its records are in memory first."""
    spool = Spool(FolderStore(tmp_path), max_bytes=10**9)
    for name in (SHARD, OTHER):
        spool.grant(name, START, ME)
    alignment = Alignment(SkewLimits(), no_tell)
    states = [ShardState(SHARD, behind_ms=1_000), ShardState(OTHER, behind_ms=0)]
    arrive(spool, SHARD, 0, [100, 200])
    spool.flush(SHARD)
    arrive(spool, OTHER, 0, [1, 150])
    for now_s, expected in ((0, CLOSED_MS), (SETTLE_S, CLOSED_MS)):
        alignment.set_horizon(states, spool, now_s)
        assert spool.store.horizon_ms() == expected
    spool.flush(OTHER)
    pause(0.11)  # rises are written ten times a second
    alignment.set_horizon(states, spool, SETTLE_S + 1)
    assert spool.store.horizon_ms() == 199  # more of the last millisecond may come
    assert spool.within_horizon(OTHER) == at(1)
    assert spool.within_horizon(SHARD) == at(0)


def two_shards(folder: Path) -> Spool:
    """One has records of 100, 200 and 300 ms, the other of 100 to 900; batches have taken what is of 100."""
    spool = Spool(FolderStore(folder), max_bytes=10**9)
    spool.set_horizon(CLOSED_MS)
    for name, until_ms in ((SHARD, 300), (OTHER, 900)):
        spool.grant(name, START, ME)
        arrive(spool, name, 0, [100])
        spool.flush(name)
        arrive(spool, name, 1, range(200, until_ms + 1, 100))
        spool.flush(name)
    spool.reported({}, positions({SHARD: 0, OTHER: 0}))
    return spool


def test_a_shard_that_leaves_with_records_in_the_spool_holds_the_others_where_batches_left_it(
    tmp_path: Path,
) -> None:
    spool, alignment = two_shards(tmp_path), Alignment(SkewLimits(), no_tell)
    states = [ShardState(SHARD, behind_ms=0), ShardState(OTHER, behind_ms=0)]
    alignment.set_horizon(states, spool, 0)
    pause(0.11)  # rises are written ten times a second
    alignment.set_horizon(states, spool, SETTLE_S)
    assert spool.store.horizon_ms() == OPEN_MS
    spool.revoke(SHARD, ME)
    assert spool.store.horizon_ms() < 200  # before the others can be read without it
    alignment.set_horizon(states[1:], spool, SETTLE_S + 1)
    assert spool.store.horizon_ms() < 200


def test_the_time_that_a_daemon_reports_counts_once_its_records_are_on_disk(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=10**9)
    spool.grant(SHARD, START, ME)
    spool.complete(SHARD, 50, ME)
    assert spool.arrived(SHARD).complete_ms == 50  # an empty batch: nothing arrived until then
    arrive(spool, SHARD, 0, [60, 90])
    spool.complete(SHARD, 100, ME)
    spool.complete(SHARD, None, ME)
    assert spool.arrived(SHARD).complete_ms == 50
    spool.flush(SHARD)
    assert spool.arrived(SHARD).complete_ms == 100
    arrive(spool, SHARD, 2, [110])
    spool.complete(SHARD, 200, ME)
    spool.revoke(SHARD, ME)  # and with it what was in memory only
    spool.complete(SHARD, 300, ME)
    spool.reported({}, positions({SHARD: 1}))
    assert spool.arrived(SHARD).complete_ms == 100


def test_a_quiet_shard_that_is_heard_of_no_more_holds_the_others_at_what_it_said_last(tmp_path: Path) -> None:
    """From the first moment: a daemon that is frozen or throttled says nothing. Others may be ahead by a read."""
    spool, alignment = two_shards(tmp_path), Alignment(SkewLimits(), no_tell)
    spool.complete(SHARD, 1_000, ME)
    spool.complete(OTHER, 90_000, ME)
    states = [ShardState(SHARD, behind_ms=0, asked_s=0.0), ShardState(OTHER, behind_ms=0)]
    alignment.set_horizon(states, spool, 0)
    for said_ms in (1_000, 1_500):  # each empty batch says it anew
        spool.complete(SHARD, said_ms, ME)
        pause(0.11)
        arrive(spool, OTHER, said_ms, [20_000 + said_ms])
        spool.flush(OTHER)
        alignment.set_horizon(states, spool, SETTLE_S)
        assert spool.store.horizon_ms() == said_ms - 1 + TIP_REACH_MS


def test_a_shard_that_leaves_its_tip_with_all_taken_holds_the_others_by_what_was_said(tmp_path: Path) -> None:
    spool, alignment = two_shards(tmp_path), Alignment(SkewLimits(), no_tell)
    for name in (SHARD, OTHER):
        spool.complete(name, 1_000, ME)
    states = [ShardState(SHARD, behind_ms=0), ShardState(OTHER, behind_ms=0)]
    for now_s in (0, SETTLE_S):
        alignment.set_horizon(states, spool, now_s)
    spool.reported({}, positions({SHARD: 2, OTHER: 8}))
    spool.revoke(SHARD, ME)
    arrive(spool, OTHER, 9, [50_000])
    spool.flush(OTHER)
    pause(0.11)
    alignment.set_horizon(states[1:], spool, SETTLE_S + 1)
    assert spool.store.horizon_ms() == 999 + TIP_REACH_MS


def test_a_spool_that_was_left_with_records_holds_the_others_until_their_relay_comes(tmp_path: Path) -> None:
    two_shards(tmp_path)  # of the engine before
    spool, alignment = Spool(FolderStore(tmp_path), max_bytes=10**9), Alignment(SkewLimits(), no_tell)
    spool.set_horizon(CLOSED_MS)
    spool.reported({}, positions({SHARD: 0, OTHER: 0}))
    spool.grant(OTHER, at(0), ME)
    for now_s in (0, SETTLE_S, 2 * SETTLE_S):
        pause(0.11)
        alignment.set_horizon([ShardState(OTHER, behind_ms=0)], spool, now_s)
    assert spool.store.horizon_ms() == 199
    spool.grant(SHARD, at(0), ME)
    pause(0.11)
    alignment.set_horizon(
        [ShardState(SHARD, behind_ms=0), ShardState(OTHER, behind_ms=0)], spool, 3 * SETTLE_S
    )
    assert spool.store.horizon_ms() == OPEN_MS


def test_segments_thrown_away_of_a_shard_that_left_do_not_count_as_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = two_shards(tmp_path)
    spool.complete(SHARD, 1_000, ME)
    spool.revoke(SHARD, ME)
    monkeypatch.setattr("kcl_spark.spool._REVOKED_KEPT_S", 0.0)
    spool.reported({}, positions({SHARD: 0, OTHER: 0}))
    assert list(spool.store.poll()[SHARD].segments) == []
    assert spool.arrived(SHARD).reached_ms == 200
    assert spool.arrived(SHARD).complete_ms is None


def test_a_planner_forgets_the_times_of_records_that_it_is_past(tmp_path: Path) -> None:
    """Each query has a planner, for as long as it runs; busy shards have a time for each record."""
    store = FolderStore(tmp_path)
    spool = Spool(store, max_bytes=10**9)
    spool.grant(SHARD, START, ME)
    for first in range(0, 5_000, 1_000):
        arrive(spool, SHARD, first, range(first, first + 1_000))
        spool.flush(SHARD)
    reader, reached = KclStreamReader({"spool": str(tmp_path)}, []), to_offset({})
    for horizon_ms in (500, 1_500, 2_500, 3_500, 3_600):
        store.set_horizon(horizon_ms)
        reached = reader.latestOffset(reached, reader.getDefaultReadLimit())
        assert from_offset(reached) == {SHARD: at(horizon_ms)}
    assert sum(isinstance(each, Arrivals) for each in gc.get_objects()) == 1_000
