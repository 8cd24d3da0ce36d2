"""What a host states of its shards: never more than is true, never back, and seldom enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_landing.conversation import ShardState, stated
from kcl_landing.log import Entry, Footer, LogInfo, Mark, Marks, Roster, marks_path
from kcl_landing.marks import HostObjects, Rosters, merged
from kcl_landing.positions import START, Position
from kcl_landing.shard import Adopt, Create, Find, Look, Note, ShardLanding
from kcl_landing.writer import Limits, ShardWriter, Tail
from tests.examples import examples
from tests.landing.landers import Events

BASE_MS = 1_795_190_400_000
INFO = LogInfo("app", "log", "parquet", "id-1")


@dataclass(frozen=True)
class Rows:
    """`numbers` arrived at `arrivals_ms`."""

    numbers: tuple[int, ...]
    arrivals_ms: tuple[int | None, ...]

    @property
    def rows(self) -> int:
        return len(self.numbers)

    @property
    def size_bytes(self) -> int:
        return 10 * len(self.numbers)

    @property
    def last(self) -> Position:
        return self.numbers[-1], 0

    def split(self, before: Sequence[int]) -> Sequence[Rows]:
        edges = [0, *before, self.rows]
        return [Rows(self.numbers[a:b], self.arrivals_ms[a:b]) for a, b in pairwise(edges)]

    def behind(self, mark: Position) -> Rows | None:
        first = sum(1 for each in self.numbers if (each, 0) <= mark)
        return None if first == self.rows else Rows(self.numbers[first:], self.arrivals_ms[first:])


class Shard:
    """A writer with a store that does as asked; `step` performs one call."""

    def __init__(self, tail: Tail | None = None, *, token: int = 7, window_ms: int = 5_000) -> None:
        tail = tail or Tail()
        writer = ShardWriter(tail, START, token=token, writer="w")
        self.landing = ShardLanding[Rows](writer, START, Limits(window_ms, 1 << 20), by_hour=False)

    def give(self, *records: tuple[int, int], complete_ms: int | None = None, behind_ms: int = 0) -> None:
        """Records with number and seconds since BASE_MS."""
        if records:
            rows = Rows(tuple(n for n, _ in records), tuple(BASE_MS + at for _, at in records))
            part = rows.behind(self.landing.writer.mark)
            self.landing.take(part, rows.last, rows.rows, 0.0)
        self.landing.at(behind_ms, None if complete_ms is None else BASE_MS + complete_ms)

    def step(self) -> str:
        call = self.landing.next_call(0.0, flush=True)
        assert call is not None
        entry = None
        if isinstance(call, Create):
            entry = Entry(call.number, call.number, "-1/0", f"{call.last[0]}/0", call.rows, 1, 1, 0, 0)
        self.landing.done(call, entry)
        return type(call).__name__

    @property
    def said(self) -> tuple[int, int] | None:
        mark = self.landing.mark
        assert mark is None or mark.token == 7
        return None if mark is None else (mark.number, mark.complete_ms - BASE_MS)


def test_nothing_is_stated_before_anything_is_known() -> None:
    shard = Shard(Tail(4, (9, 0), BASE_MS))
    assert shard.said is None
    shard.give(behind_ms=60_000)
    assert shard.said is None


def test_at_the_tip_the_daemon_says_until_when() -> None:
    shard = Shard()
    shard.give(complete_ms=1_000)
    assert shard.said == (-1, 1_000)
    shard.give(complete_ms=2_000)
    assert shard.said == (-1, 2_000)


def looks(shard: Shard, first_s: int, to_s: int) -> list[int]:
    """When it looks at its manifest, asked each second."""
    found = list[int]()
    for now_s in range(first_s, to_s):
        while (call := shard.landing.next_call(float(now_s))) is not None:
            assert isinstance(call, Look)
            shard.landing.done(call, None)
            found.append(now_s)
    return found


def written() -> Shard:
    shard = Shard()
    shard.give((1, 1_000))
    assert [shard.step(), shard.step()] == ["Create", "Note"]
    return shard


def test_a_quiet_shard_looks_at_its_manifest_after_a_minute_and_then_seldom() -> None:
    """An older writer, which wakes, may have written it last."""
    shard = written()
    assert looks(shard, 0, 2_000) == [60, 180, 420, 900, 1_380, 1_860]
    assert shard.landing.due_s() is None, "it wakes nobody for it"


def test_a_look_comes_a_minute_after_each_write_and_never_while_records_wait() -> None:
    shard = written()
    assert looks(shard, 0, 100) == [60]
    shard.give((2, 2_000))
    shard.landing.drafts[0].since_s = 1_000.0
    assert looks(shard, 100, 1_000) == []
    assert [shard.step(), shard.step()] == ["Create", "Note"]
    assert looks(shard, 1_000, 1_200) == [1_060, 1_180]


def test_a_look_that_failed_is_tried_again() -> None:
    shard = written()
    assert looks(shard, 0, 60) == []
    assert isinstance(shard.landing.next_call(60.0), Look)
    shard.landing.trouble(60.0)
    assert shard.landing.next_call(60.1) is None
    assert looks(shard, 61, 200) == [61, 181]


def test_who_has_nothing_in_the_log_or_its_end_does_not_look() -> None:
    assert looks(Shard(), 0, 1_000) == []
    ended = Shard(Tail(3, (9, 0), BASE_MS, is_ended=True))
    assert looks(ended, 0, 1_000) == []


def test_waiting_records_hold_the_mark_at_their_first_arrival_until_the_manifest_has_them() -> None:
    shard = Shard()
    shard.give((1, 1_500), (2, 1_200), (3, 1_900), complete_ms=3_000)
    assert shard.said == (-1, 1_200)
    assert shard.step() == "Create"
    assert shard.said == (-1, 1_200)  # the segment is there, but its manifest is not
    assert shard.step() == "Note"
    assert shard.said == (0, 3_000)


def test_behind_the_tip_it_is_the_newest_landed_arrival_less_what_arrivals_are_out_of_order() -> None:
    shard = Shard()
    shard.give((1, 0), (2, 4_000), behind_ms=50_000)
    assert shard.said == (-1, 0)
    shard.step()
    shard.step()
    assert shard.said == (0, 3_000)


def test_a_writer_that_begins_again_states_nothing_older_than_the_first_record_that_it_gets() -> None:
    """The one before may have said that all before it was there."""
    shard = Shard(Tail(4, (9, 0), BASE_MS))
    shard.give((10, 60_000), behind_ms=500)
    shard.step()
    shard.step()
    assert shard.said is None  # 59,000 could be less than it said before
    shard.give((11, 61_000), behind_ms=500)
    assert shard.said == (5, 60_000)


def test_a_mark_never_goes_back() -> None:
    shard = Shard()
    shard.give(complete_ms=9_000)
    shard.give((1, 8_500), complete_ms=8_000)  # a clock that was set back, a record that was stamped early
    assert shard.said == (-1, 9_000)


def test_who_has_let_go_states_nothing() -> None:
    shard = Shard()
    shard.give((1, 0), complete_ms=9_000)
    shard.landing.forget()
    assert shard.said is None
    shard.give(complete_ms=10_000)
    assert shard.said is None


def test_a_segment_of_another_writer_counts_when_the_manifest_has_it() -> None:
    shard = Shard()
    shard.give((1, 500), (2, 700), complete_ms=2_000)
    create = shard.landing.next_call(0.0, flush=True)
    assert isinstance(create, Create)
    shard.landing.done(create, None)
    find = shard.landing.next_call(0.0, flush=True)
    assert isinstance(find, Find)
    found = Footer("app", "s", "a", 0, 0, "-1/0", "1/0", 1, BASE_MS + 500, BASE_MS + 500, 3, "former")
    shard.landing.done(find, found)
    assert shard.said == (-1, 500)
    adopt = shard.landing.next_call(0.0, flush=True)
    assert isinstance(adopt, Adopt)
    shard.landing.done(adopt, None)
    assert shard.said == (0, 700)


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("give"), st.lists(st.integers(0, 1_000), max_size=4), st.booleans()),
            st.tuples(st.just("step"), st.just([]), st.booleans()),
        ),
        max_size=40,
    )
)
def test_each_mark_is_true_and_later_than_the_one_before(steps: list[tuple[str, list[int], bool]]) -> None:
    shard, number, now_ms = Shard(window_ms=300), 0, 0
    arrived: list[tuple[int, int]] = []
    segment_of: dict[int, int] = {}
    noted, before = -1, (-1, -BASE_MS)
    for what, ages_ms, is_at_tip in steps:
        if what == "give":
            now_ms += 700
            new = [(number := number + 1, now_ms - age_ms) for age_ms in ages_ms]
            arrived += new
            shard.give(*new, complete_ms=now_ms - 1_000 if is_at_tip else None)
        elif (call := shard.landing.next_call(0.0, flush=True)) is not None:
            if isinstance(call, Create) and call.draft is not None:
                segment_of |= {n: call.number for part in call.draft.parts for n in part.numbers}
            noted += isinstance(call, Note)
            shard.step()
        if (said := shard.said) is not None:
            assert said[0] <= noted
            assert all(segment_of.get(n, 99) <= said[0] for n, at_ms in arrived if at_ms < said[1])
            assert said >= before
            before = said


class Host:
    """Calls the rules each 100 ms."""

    def __init__(self) -> None:
        self.events = Events()
        self.rosters = Rosters(self.events)
        self.objects = HostObjects(INFO, "host/1", 5_000, self.rosters)
        self.shards: dict[str, Mark] = {}
        self.now_s = 0.0
        self.puts: list[tuple[float, str, bytes]] = []

    def run(self, seconds: float, *, fails: bool = False) -> list[tuple[float, str]]:
        first = len(self.puts)
        for _ in range(round(seconds * 10)):
            self.now_s = round(self.now_s + 0.1, 1)
            put = self.objects.next(self.now_s, BASE_MS + round(self.now_s * 1000), lambda: dict(self.shards))
            if put is not None:
                self.puts.append((self.now_s, *put))
                self.objects.trouble(self.now_s) if fails else self.objects.done()
        return [(at_s, path.partition("/")[0]) for at_s, path, _ in self.puts[first:]]

    @property
    def marks(self) -> Marks:
        return msgspec.json.decode(self.puts[-1][2], type=Marks)


def test_a_relay_that_begins_again_takes_nothing_back() -> None:
    host = Host()
    host.shards = {"s/a": Mark(3, 900, 7), "s/b": Mark(3, 900, 7), "s/c": Mark(3, 900, 7)}
    host.run(2)
    host.shards = {}
    host.run(2)
    host.shards = {"s/a": Mark(3, 400, 7), "s/b": Mark(3, 400, 8), "s/c": Mark(2, 400, 7)}
    host.run(2)
    assert host.marks.shards == {
        "s/a": Mark(3, 900, 7),
        "s/b": Mark(3, 400, 8),  # another owner
        "s/c": Mark(2, 400, 7),  # what was said is not known to be true of fewer segments
    }


def test_a_mark_keeps_its_time_when_the_manifest_moves_on_and_no_other_writers_time_is_mixed_in() -> None:
    host = Host()
    host.shards = {"s/a": Mark(3, 900, 7), "s/b": Mark(3, 900, 7)}
    host.run(2)
    host.shards = {"s/a": Mark(4, 400, 7), "s/b": Mark(4, 400, 6)}
    host.run(2)
    assert host.marks.shards == {"s/a": Mark(4, 900, 7), "s/b": Mark(4, 400, 6)}


def test_marks_are_written_when_they_change_once_a_second_at_most_and_each_five_seconds() -> None:
    host = Host()
    assert host.run(20) == []  # no shard, no object
    for second in range(3):
        host.shards["s/a"] = Mark(0, BASE_MS + second, 1)
        assert len(host.run(0.4)) + len(host.run(0.6)) == 1
    assert [at_s for at_s, _ in host.run(11)] == pytest.approx([27.1, 32.1])
    assert host.marks == Marks(
        "id-1", "host/1", BASE_MS + 32_100, 5_000, {"s/a": Mark(0, BASE_MS + 2, 1)}, {"s": BASE_MS + 20_100}
    )
    host.shards.clear()
    assert len(host.run(30)) == 1
    assert host.marks.shards == {}


def test_a_host_says_since_when_it_states_marks_of_a_stream() -> None:
    host = Host()
    host.shards["s/a"] = Mark(0, BASE_MS, 1)
    host.run(10)
    host.shards = {"s/b": Mark(0, BASE_MS, 1), "t/a": Mark(0, BASE_MS, 1)}
    host.run(10)
    assert host.marks.since_ms == {"s": BASE_MS + 100, "t": BASE_MS + 10_100}
    host.shards = {"t/a": Mark(0, BASE_MS, 1)}
    host.run(10)
    host.shards["s/a"] = Mark(0, BASE_MS, 1)
    host.run(2)
    assert host.marks.since_ms["s"] > BASE_MS + 30_000


def test_a_mark_is_never_later_than_the_clock_of_its_host() -> None:
    host = Host()
    host.shards["s/a"] = Mark(0, BASE_MS + 3_600_000, 1)
    host.run(0.1)
    assert host.marks.shards["s/a"].complete_ms == host.marks.at_ms == BASE_MS + 100


def test_a_store_in_trouble_is_asked_less_and_gets_the_last_word_when_it_works() -> None:
    host = Host()
    host.shards["s/a"] = Mark(0, BASE_MS, 1)
    assert [at_s for at_s, _ in host.run(20, fails=True)] == pytest.approx([0.1, 2.1, 6.1, 11.1, 16.1])
    assert len(host.run(5)) == 1
    assert host.marks.shards == host.shards


def test_trouble_that_comes_back_is_new_trouble() -> None:
    host = Host()
    host.shards["s/a"] = Mark(0, BASE_MS, 1)
    host.run(7, fails=True)
    host.run(10)
    tries = [at_s for at_s, _ in host.run(8, fails=True)]
    assert tries[1] - tries[0] == pytest.approx(2)


def roster(**streams: dict[str, list[str]]) -> bytes:
    return msgspec.json.encode({"roster": streams, "failoverMs": 10_000})


def test_a_roster_is_written_once_for_each_line_and_in_turn_with_marks() -> None:
    host = Host()
    host.rosters.hear(roster(s={"a": [], "b": ["a"]}))
    assert host.run(10) == [(0.1, "_shards")]
    assert msgspec.json.decode(host.puts[-1][2], type=Roster) == Roster(
        "id-1", "s", BASE_MS + 100, 10_000, {"a": (), "b": ("a",)}
    )
    host.rosters.hear(roster(s={}, t={}, u={}))
    seen: list[str] = []
    for second in range(6):
        host.shards["s/a"] = Mark(0, BASE_MS + second, 1)
        seen += [where for _, where in host.run(1)]
    assert seen == ["_shards", "_marks", "_shards", "_marks", "_shards", "_marks"]


def test_a_roster_that_could_not_be_written_is_tried_again_unless_a_newer_one_came() -> None:
    host = Host()
    host.rosters.hear(roster(s={"a": []}))
    host.run(1, fails=True)
    host.rosters.hear(roster(s={"a": [], "b": []}))
    assert len(host.run(20)) == 1
    assert msgspec.json.decode(host.puts[-1][2], type=Roster).shards == {"a": (), "b": ()}
    host.rosters.hear(roster(s={"c": []}))
    host.run(1, fails=True)
    assert len(host.run(20)) == 1
    assert msgspec.json.decode(host.puts[-1][2], type=Roster).shards == {"c": ()}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"roster": {"s": {"a": null}}, "failoverMs": 1}',
        b'{"roster": {"s": {"a": []}}}',
        b'{"roster": {"../s": {"a": []}}, "failoverMs": 1}',
        b'{"roster": {"": {"a": []}}, "failoverMs": 1}',
        b'{"roster": {".s": {"a": []}}, "failoverMs": 1}',
        b'{"x": ' + b"[" * 100_000,
    ],
)
def test_a_roster_that_cannot_be_read_is_said_and_ignored(line: bytes) -> None:
    host = Host()
    host.rosters.hear(line)
    (said,) = host.events.named("landing_roster_not_read")
    assert said["error"]
    assert host.run(5) == []


def test_of_two_statements_of_a_shard_the_newest_writers_last_one_counts() -> None:
    assert merged(
        [{"a": Mark(3, 50, 1)}, {"a": Mark(2, 40, 2), "b": Mark(0, 1, 1)}, {"a": Mark(2, 45, 2)}]
    ) == {
        "a": Mark(2, 45, 2),
        "b": Mark(0, 1, 1),
    }


def test_two_hundred_shards_cost_one_write_a_second_and_no_hundredth_of_a_core() -> None:
    host, states = Host(), list[ShardState]()
    for number in range(200):
        shard = Shard()
        states.append(ShardState(f"shard-{number}", f"s/shard-{number}"))
        states[-1].landing = shard.landing  # type: ignore[assignment]
    began_s = time.process_time()
    for tick in range(600):
        if tick % 10 == 0:
            for each in states:
                assert each.landing is not None
                each.landing.at(0, BASE_MS + 100 * tick)
        host.shards = stated(states)
        host.run(0.1)
    assert len(host.puts) <= 60
    assert len(host.marks.shards) == 200
    assert len(host.puts[-1][2]) < 20_000
    assert time.process_time() - began_s < 0.6


def test_names_of_objects_are_safe_and_differ() -> None:
    names = [marks_path(each) for each in ("host-1:8b", "host-1/8b", "../../x", ".", "é" * 500, "host-1:8b2")]
    assert len(set(names)) == len(names)
    for each in names:
        folder, _, name = each.partition("/")
        assert folder == "_marks"
        assert name.isascii()
        assert len(name) < 100
        assert "/" not in name
        assert not name.startswith(".")
