"""What the data source `kcl` plans: pure rules over shards and entries."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from random import Random  # noqa: TID251 - of a seed that Hypothesis draws

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException

from kcl_spark_source import (
    Entry,
    Horizon,
    Host,
    LandingError,
    Mark,
    Piece,
    Place,
    Roster,
    Shard,
    Statements,
    balanced,
    behind,
    complete_ms,
    cores_of,
    from_offset,
    generations,
    horizon_ms,
    in_order,
    kcl_lag,
    lost,
    pieces,
    plan,
    register,
    settings_of,
    source_for,
    stands_since,
    statements_of,
    task_count,
    to_offset,
)
from tests.examples import examples
from tests.spark.writers import Reader, World

Logs = Mapping[str, Sequence[Entry]]
WAIT_MS = 60_000
SPAN_MS = 5


def entry(
    number: int,
    first_ms: int,
    last_ms: int | None = None,
    *,
    size: int = 100,
    to: int | None = None,
    children: list[str] | None = None,
) -> Entry:
    """Segment N has ten records, after position N * 10 up to (N + 1) * 10."""
    end = number if to is None else to
    rows = 0 if children is not None else 10
    after, last = f"{number * 10}/0", f"{(end + 1) * 10 if rows else number * 10}/0"
    return Entry(
        number,
        end,
        after,
        last,
        rows,
        size,
        1,
        first_ms,
        first_ms if last_ms is None else last_ms,
        1,
        children,
    )


class Logged:
    """Shards and entries, as a log would give them."""

    def __init__(
        self, logs: Logs, behind_ms: Mapping[str, int | None] | None = None, silent_ms: float = 0
    ) -> None:
        self.logs = logs
        self.shards = {key: self._shard(key, (behind_ms or {}).get(key, 0), silent_ms) for key in logs}
        self.starts = {key: Place(0) for key in logs}

    def _shard(self, key: str, behind_ms: int | None, silent_ms: float) -> Shard:
        place, children = Place(0), list[str]()
        for each in self.logs[key]:
            place, children = behind(each, place), each.children or []
        return Shard(place, tuple(f"s/{child}" for child in children), behind_ms, silent_ms)

    def entries(self, key: str, number: int) -> Iterator[Entry]:
        return iter([each for each in self.logs[key] if each.to >= number])

    def batches(self, most_bytes: int | None = None) -> Iterator[dict[str, list[int]]]:
        """The numbers of each batch, until nothing is left."""
        starts = dict(self.starts)
        while True:
            horizon = horizon_ms(self.shards, WAIT_MS)
            ends = plan(starts, self.shards, self.entries, most_bytes=most_bytes, horizon=horizon)
            if ends == starts:
                return
            yield {
                key: [
                    each.number
                    for each in self.logs[key]
                    if starts[key].number <= each.number < ends[key].number
                ]
                for key in self.logs
                if ends[key] != starts[key]
            }
            starts = ends


def test_a_batch_takes_all_shards_up_to_one_arrival_time() -> None:
    light = [entry(number, number * 100, size=10) for number in range(10)]
    heavy = [entry(number, number * 10, size=100) for number in range(100)]
    first, *_ = Logged({"s/a": light, "s/b": heavy}).batches(1000)
    assert first == {"s/a": [0], "s/b": list(range(9))}


def test_a_batch_takes_one_segment_that_is_larger_than_the_limit() -> None:
    logged = Logged({"s/a": [entry(0, 0, size=5000), entry(1, 1, size=5000)]})
    assert list(logged.batches(1000)) == [{"s/a": [0]}, {"s/a": [1]}]


def test_a_shard_that_is_behind_holds_the_others_back() -> None:
    logs = {"s/a": [entry(0, 100), entry(1, 200)], "s/b": [entry(0, 50), entry(1, 150), entry(2, 9000)]}
    assert list(Logged(logs, {"s/a": 5_000}).batches()) == [{"s/a": [0, 1], "s/b": [0, 1]}]
    assert list(Logged(logs, {"s/a": None}).batches()) == [{"s/a": [0, 1], "s/b": [0, 1]}]
    whole = [{"s/a": [0, 1], "s/b": [0, 1, 2]}]
    assert list(Logged(logs).batches()) == whole
    assert list(Logged(logs, {"s/a": 5_000}, silent_ms=WAIT_MS).batches()) == whole


def test_an_empty_shard_that_is_behind_holds_everything_back() -> None:
    logs = {"s/a": [], "s/b": [entry(0, 50)]}
    assert list(Logged(logs, {"s/a": None}).batches()) == []
    assert list(Logged(logs).batches()) == [{"s/b": [0]}]


def test_children_come_in_a_batch_after_the_ends_of_both_parents() -> None:
    logs = {
        "s/a": [entry(0, 10), entry(1, 10, children=["c"])],
        "s/b": [entry(0, 10), entry(1, 500), entry(2, 500, children=["c"])],
        "s/c": [entry(0, 600)],
        "s/d": [entry(0, 550), entry(1, 700)],
    }
    assert list(Logged(logs).batches()) == [
        {"s/a": [0, 1], "s/b": [0]},
        {"s/b": [1, 2]},
        {"s/c": [0], "s/d": [0, 1]},
    ]


def test_missing_children_hold_back_what_arrived_after_their_parent() -> None:
    logs = {"s/a": [entry(0, 10), entry(1, 10, children=["b", "c"])], "s/d": [entry(0, 10), entry(1, 90)]}
    assert list(Logged(logs).batches()) == [{"s/a": [0, 1], "s/d": [0]}]
    assert list(Logged(logs, silent_ms=WAIT_MS).batches()) == [{"s/a": [0, 1], "s/d": [0, 1]}]


def test_shards_after_a_snapshot_hold_back_none_of_its_segments_and_come_after_all() -> None:
    first, second = (f"snapshot-1795491048410-000{number}-0002" for number in range(2))
    logs = {
        f"s/{first}": [entry(0, 10), entry(1, 10, children=["a"])],
        f"s/{second}": [entry(0, 10), entry(1, 90)],
    }
    assert list(Logged(logs).batches()) == [{f"s/{first}": [0, 1], f"s/{second}": [0, 1]}]
    logs[f"s/{second}"].append(entry(2, 90, children=["a"]))
    logs["s/a"] = [entry(0, 5)]
    assert list(Logged(logs).batches())[-1] == {"s/a": [0]}


def test_an_end_of_unknown_time_stops_nothing_for_good() -> None:
    logs = {"s/a": [entry(0, 0, children=["b"])], "s/b": [entry(0, 90)], "s/d": [entry(0, 10)]}
    assert list(Logged(logs).batches()) == [{"s/a": [0]}, {"s/b": [0], "s/d": [0]}]


@st.composite
def logs_of_shards(draw: st.DrawFn) -> dict[str, list[Entry]]:
    """A tree of shards in which each splits or ends or goes on; times go forward, with gaps."""
    logs: dict[str, list[Entry]] = {}
    todo = [("a", 0), ("b", 0)]
    while todo:
        name, now_ms = todo.pop()
        its: list[Entry] = []
        for _ in range(draw(st.integers(0, 5))):
            to = len(its) if not its else its[-1].to + 1
            span = draw(st.integers(0, 3))
            now_ms += draw(st.integers(0, 40))
            its.append(entry(to, now_ms, now_ms + SPAN_MS, size=draw(st.integers(1, 300)), to=to + span))
        if len(name) < 4 and draw(st.booleans()):
            children = [name + "x", name + "y"][: draw(st.integers(1, 2))]
            its.append(entry(its[-1].to + 1 if its else 0, now_ms, children=children))
            todo += [(child, now_ms) for child in children]
        logs[f"s/{name}"] = its
    return logs


@settings(max_examples=examples(200))
@given(logs_of_shards(), st.integers(1, 1000))
def test_everything_comes_once_in_order_parents_first_and_within_the_limit(
    logs: dict[str, list[Entry]], most: int
) -> None:
    logged = Logged(logs)
    came: dict[str, list[int]] = {key: [] for key in logs}
    done: set[str] = set()
    newest = 0
    for batch in logged.batches(most):
        size = 0
        for key, numbers in batch.items():
            parents = [parent for parent, shard in logged.shards.items() if key in shard.children]
            assert done.issuperset(parents)
            came[key] += numbers
        whole = [each for key, numbers in batch.items() for each in logs[key] if each.number in numbers]
        size = sum(each.size_bytes for each in whole)
        assert size <= most or len(whole) == 1
        # No record comes that is more than a segment older than one that was there before.
        assert all(each.first_ms >= newest - SPAN_MS for each in whole)
        newest = max([newest, *(each.first_ms for each in whole)])
        done |= {
            key
            for key in batch
            if logs[key][-1].children is not None and came[key][-1] == logs[key][-1].number
        }
    assert came == {key: [each.number for each in its] for key, its in logs.items()}


def read_along(seed: int, *, limited: bool) -> tuple[World, Reader, set[str]]:
    """Hosts die, freeze, lose their store; shards split and merge. Returns the shards whose rows came late, too."""
    random = Random(seed)
    world = World(random)
    reader = Reader(world)
    late: set[str] = set()
    for number in range(380):
        live = number < 250
        world.step(faults=live, traffic=live)
        if random.random() < 0.3:
            reader.look()
            if random.random() < 0.5:
                world.step(faults=live, traffic=live)
            rows = reader.batch(random.choice([200, 2_000]) if limited else None)
            late |= {key for key, ms in rows if ms < reader.h_ms}
            reader.taken(rows)
    for _ in range(30):
        world.step(faults=False, traffic=False)
        reader.look()
        late |= {key for key, ms in reader.batch(None) if ms < reader.h_ms}
    return world, reader, late


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32), st.booleans())
def test_only_shards_that_were_left_behind_have_rows_that_are_older_than_what_was_complete(
    seed: int, limited: bool
) -> None:
    world, reader, late = read_along(seed, limited=limited)
    assert late <= world.descendants(reader.left)
    assert reader.rows == sum(len(source.arrivals) for source in world.sources.values())


def test_without_marks_the_last_word_of_a_dead_host_makes_rows_late(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = World.shards

    def unmarked(world: World) -> dict[str, Shard]:
        return {key: each._replace(marks=False) for key, each in shards(world).items()}

    monkeypatch.setattr(World, "shards", unmarked)
    assert any(read_along(seed, limited=True)[2] for seed in range(30))


@settings(max_examples=examples(100))
@given(st.data())
def test_pieces_of_consecutive_batches_are_all_records_once_even_after_compaction(
    data: st.DataObject,
) -> None:
    plain = [entry(number, number) for number in range(20)]
    cuts = sorted(data.draw(st.sets(st.integers(1, 19), max_size=4)) | {0, 20})
    borders = sorted(data.draw(st.sets(st.integers(1, 19), max_size=6)) | {0, 20})
    merged = [entry(low, low, to=high - 1) for low, high in itertools.pairwise(borders)]
    places = [Place(cut, f"{cut * 10}/0") for cut in cuts]
    found = []
    for start, end in itertools.pairwise(places):
        log = data.draw(st.sampled_from([plain, merged]))
        logged = Logged({"s/a": log})
        found += [(each.after, each.last) for each in pieces("s/a", start, end, logged.entries)]
    assert found[0][0] == "0/0"
    assert found[-1][1] == "200/0"
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), max_size=8), st.integers(1, 5))
def test_tasks_have_every_piece_once_and_a_shard_in_one_task(sizes: list[list[int]], most: int) -> None:
    megabyte = 1024 * 1024
    shards = [
        [
            each
            for number, size in enumerate(its)
            for each in pieces(
                f"s/{shard}",
                Place(number, f"{number * 10}/0"),
                Place(number + 1, f"{number * 10 + 10}/0"),
                Logged({f"s/{shard}": [entry(number, 1, size=size * megabyte)]}).entries,
            )
        ]
        for shard, its in enumerate(sizes)
    ]
    every = [piece for its in shards for piece in its]
    whole = balanced(shards, most)
    assert sorted(piece for task in whole for piece in task) == sorted(every)
    assert len(whole) <= most
    homes = {piece.key: {number for number, task in enumerate(whole) if piece in task} for piece in every}
    assert all(len(home) == 1 for home in homes.values())
    cut = in_order(every, most)
    assert [piece for task in cut for piece in task] == every
    assert len(cut) <= most
    assert all(cut)


def steady(shards: int, rows: int, size: int) -> list[list[Piece]]:
    return [
        [Piece(f"s/{shard}", entry(0, 1, size=size)._replace(rows=rows), "0/0", "10/0")]
        for shard in range(shards)
    ]


def test_a_steady_batch_of_many_shards_has_work_for_all_cores() -> None:
    """60 MB over 1,000 shards: one task until now."""
    shards = steady(1_000, 60, 60_000)
    every = [piece for its in shards for piece in its]
    assert task_count(every, 16, sys.maxsize) == 16
    assert len(balanced(shards, 16)) == len(in_order(every, 16)) == 16
    assert task_count(every, 200, sys.maxsize) == 85, "less than 2,000 records or 2 MiB is not worth a task"
    assert task_count(every, 16, 5) == 5


def test_a_batch_with_few_records_is_one_task() -> None:
    assert task_count(steady(1_000, 1, 500)[0], 16, sys.maxsize) == 1
    assert task_count([], 16, sys.maxsize) == 1
    assert balanced([], 1) == in_order([], 1) == []


def test_a_batch_of_large_segments_has_a_task_for_each_128_mib_in_memory() -> None:
    large = [piece._replace(times=4.0) for its in steady(10, 100, 64 * 2**20) for piece in its]
    assert task_count(large, 2, sys.maxsize) == 20


def test_a_few_large_records_are_work_for_all_cores() -> None:
    """60 records of 1 MB in ten shards."""
    every = [piece for its in steady(10, 6, 6_000_000) for piece in its]
    assert task_count(every, 16, sys.maxsize) == 16
    assert [len(each) for each in balanced([[piece] for piece in every], 16)] == [1] * 10


def test_a_shard_that_is_packed_well_counts_by_what_it_unpacks_to() -> None:
    light, heavy = steady(2, 100, 2**20)
    packed = [each._replace(times=100.0) for each in heavy * 10]
    assert task_count(light + packed, 1, sys.maxsize) == 8
    assert [len(each) for each in in_order(light + packed, 8)] == [3, 1, 1, 1, 2, 1, 1, 1]
    assert [len(each) for each in balanced([light, light, packed], 2)] == [10, 2]


class Context:
    defaultParallelism = 2  # noqa: N815 - Spark's name

    def __init__(self, **configured: str) -> None:
        self._configured = {f"spark.{name.replace('_', '.')}": value for name, value in configured.items()}

    def getConf(self) -> Context:  # noqa: N802
        return self

    def getAll(self) -> list[tuple[str, str]]:  # noqa: N802
        return list(self._configured.items())


class Session:
    def __init__(self, context: Context | None) -> None:
        self._context = context

    @property
    def sparkContext(self) -> Context:  # noqa: N802
        if self._context is None:
            raise RuntimeError("not here")
        return self._context


def test_the_cores_are_those_that_spark_has_or_may_grow_to() -> None:
    grows = {"dynamicAllocation_enabled": "true", "executor_cores": "4"}
    assert cores_of(Session(Context())) == 2
    assert cores_of(Session(Context(**grows, dynamicAllocation_maxExecutors="10"))) == 40
    assert cores_of(Session(Context(**grows))) == 2
    assert cores_of(Session(None)) == 16
    assert source_for(Session(Context()))({"path": "p"}).cores == 2
    assert settings_of({"path": "p"}, 7).min_tasks == 7
    assert settings_of({"path": "p", "minTasks": "3"}, 7).min_tasks == 3


class Registry:
    """A Spark that has found `kcl` by itself."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self.conf = dict[str, str]()

    @property
    def dataSource(self) -> Registry:  # noqa: N802 - Spark's name
        return self

    def register(self, source: type) -> None:
        raise AnalysisException(self._refusal)


def test_a_source_that_spark_has_found_by_itself_is_no_error() -> None:
    """Spark 4.0 refuses a second one of the name."""
    register(Registry("[DATA_SOURCE_ALREADY_EXISTS] Data source 'kcl' already exists."))
    with pytest.raises(AnalysisException, match="OTHER"):
        register(Registry("[OTHER]"))


def test_generations_have_parents_first_and_name_a_circle() -> None:
    logs = {"s/a": [entry(0, 1, children=["0"])], "s/0": [entry(0, 1, children=["1"])], "s/1": []}
    assert generations(Logged(logs).shards) == ["s/a", "s/0", "s/1"]
    logs["s/1"] = [entry(0, 1, children=["a"])]
    with pytest.raises(LandingError, match="own descendants"):
        generations(Logged(logs).shards)


def test_an_offset_says_what_it_is() -> None:
    places = {"s/a": Place(3, "30/0", 17), "s/b": Place(9, "80/1", 18, ended=True)}
    offset = to_offset("id", places)
    assert offset == {
        "v": 1,
        "log": "id",
        "shards": {
            "s/a": {"next": 3, "last": "30/0", "ms": 17},
            "s/b": {"next": 9, "last": "80/1", "ms": 18, "ended": True},
        },
    }
    assert from_offset(offset, "id") == places
    with pytest.raises(LandingError, match="of landing log id, but at this path is other"):
        from_offset(offset, "other")
    with pytest.raises(LandingError, match="version 2"):
        from_offset({**offset, "v": 2}, "id")


def test_segments_that_expired_unread_are_told_with_their_number_and_times() -> None:
    shard = Shard(Place(20), first=Place(10, "1/0", 1_800_000_000_000))
    starts = {"s/a": Place(4, "0/0", 1_700_000_000_000), "s/gone": Place(7), "s/over": Place(7, ended=True)}
    gone, behind_it = lost(starts, {"s/a": shard})
    assert gone == "nothing is left of shard s/gone, which was read up to segment 6"
    assert behind_it == (
        "6 segments of shard s/a (4 to 9; records that arrived after 2023-11-14T22:13:20+00:00 up to "
        "2027-01-15T08:00:00+00:00)"
    )
    assert lost({}, {"s/a": shard}) == []
    assert lost({"s/b": Place(1)}, {"s/a": shard, "s/b": Shard(Place(1))}) != []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say where"),
        ({"path": "p", "startingPosition": "x"}, "trim_horizon or latest, not x"),
        ({"path": "p", "maxBytesPerTrigger": "1g"}, "maxBytesPerTrigger is a whole number, not '1g'"),
        ({"path": "p", "failOnDataLoss": "no"}, "failOnDataLoss is true or false, not 'no'"),
        ({"path": "p", "startingTimestamp": "now"}, "epoch milliseconds, not 'now'"),
        ({"path": "p", "reader": "../x"}, "reader is a name"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(LandingError, match=message):
        settings_of(options)


def test_times_may_be_text_or_milliseconds() -> None:
    texts = ("2026-11-22T10:00:00Z", "2026-11-22T11:00:00+01:00", "2026-11-22T10:00:00", "1795341600000")
    assert {settings_of({"path": "p", "startingTimestamp": text}).start_ms for text in texts} == {
        1_795_341_600_000
    }


def test_lag_is_read_from_a_progress() -> None:
    end = to_offset("id", {"s/a": Place(3, "30/0", 1_000)})
    latest = to_offset("id", {"s/a": Place(7, "70/0", 9_000), "s/b": Place(2, "20/0", 500)})
    latest["shards"]["s/a"]["behindMs"] = 20
    lag = kcl_lag({"sources": [{"latestOffset": latest, "endOffset": end}]})
    assert lag == {
        "s/a": {"segments": 4, "ms": 8_000, "daemon_ms": 20},
        "s/b": {"segments": 2, "ms": 0, "daemon_ms": -1},
    }
    assert kcl_lag(None) == {}


def judged(
    shards: Mapping[str, Shard],
    marks: Mapping[str, Sequence[Mark]],
    roster: Mapping[str, tuple[str, ...]],
) -> dict[str, int]:
    said = Statements(marks, {"s": Roster(roster, 10_000)}, 2_000, frozenset({"s"}))
    return complete_ms(shards, said)


def shard(number: int, ms: int, *children: str) -> Shard:
    return Shard(Place(number, f"{number}/0", ms, ended=bool(children)), children, 0, marks=True)


def test_a_shard_is_complete_up_to_the_best_mark_that_its_manifest_has() -> None:
    known = {"s/a": shard(3, 100)}
    assert judged(known, {"s/a": [Mark(2, 150), Mark(1, 120)]}, {}) == {"s/a": 150}
    assert judged(known, {"s/a": [Mark(3, 150), Mark(1, 120)]}, {}) == {"s/a": 120}
    assert judged(known, {"s/a": [Mark(2, 50)]}, {}) == {"s/a": 100}
    assert judged(known, {}, {"s/a": ()}) == {"s/a": 100}


def test_a_shard_that_nobody_has_taken_holds_all() -> None:
    assert judged({"s/a": shard(3, 100)}, {}, {"s/a": (), "s/b": ()}) == {"s/a": 100, "s/b": 0}
    assert judged({}, {"s/b": [Mark(-1, 70)]}, {"s/b": ()}) == {"s/b": 70}
    assert judged({}, {"s/b": [Mark(0, 70)]}, {"s/b": ()}) == {"s/b": 0}


def test_before_a_stream_has_a_roster_what_nobody_knows_of_holds_all() -> None:
    """Marks of some shards are not those of all."""
    said = Statements({"s/a": [Mark(-1, 70)]}, {}, 2_000, frozenset({"s"}))
    assert complete_ms({"s/a": shard(3, 100)}, said) == {"s/a": 100, "s/*": 0}
    assert horizon_ms({"s/a": shard(3, 100)}, WAIT_MS, said).holder == "s/*"
    assert horizon_ms({"s/a": shard(3, 100)}, WAIT_MS).holder == "s/*", "no mark has been read yet"
    assert horizon_ms({"s/a": shard(3, 100)._replace(marks=False)}, WAIT_MS).holder == ""
    assert horizon_ms({"s/a": shard(3, 100)}, WAIT_MS, still_ms={"s/*": WAIT_MS}).holder == ""


def test_a_child_is_complete_up_to_the_ends_of_its_parents() -> None:
    parents = {"s/a": shard(3, 100, "s/c"), "s/b": shard(3, 130, "s/c")}
    roster = {"s/c": ("s/a", "s/b")}
    assert judged(parents, {}, {}) == judged(parents, {}, roster) == {"s/c": 130}
    assert judged({**parents, "s/c": shard(0, 0)}, {}, {}) == {"s/c": 130}
    assert judged({**parents, "s/c": shard(0, 0, "s/d")}, {}, roster) == {"s/d": 130}
    assert judged({**parents, "s/c": shard(1, 200, "s/d"), "s/d": shard(0, 0)}, {}, {}) == {"s/d": 200}


def test_shards_that_ended_before_the_log_began_hold_nobody() -> None:
    roster = {"s/a": (), "s/b": ("s/a",), "s/c": ("s/b",)}
    assert judged({"s/c": shard(1, 50)}, {}, roster) == {"s/c": 50}
    assert judged({}, {"s/c": [Mark(-1, 50)]}, roster) == {"s/c": 50}
    assert judged({}, {}, roster) == {"s/a": 0, "s/b": 0, "s/c": 0}


def test_a_shard_after_a_snapshot_holds_nobody_before_it_is_there() -> None:
    first, second = (f"s/snapshot-1795491048410-000{number}-0002" for number in range(2))
    shards = {first: shard(2, 10, "s/a"), second: shard(1, 90)}
    roster = {first: (), second: (), "s/a": (first, second)}
    assert judged(shards, {}, roster) == judged(shards, {}, {}) == {second: 90}


def test_a_circle_of_parents_ends() -> None:
    roster = {"s/a": ("s/b",), "s/b": ("s/a",), "s/c": ("s/c",)}
    assert judged({}, {}, roster) == {"s/a": 0, "s/b": 0, "s/c": 0}
    assert set(judged({"s/a": shard(1, 5)}, {}, roster)) == {"s/a", "s/c"}


def test_a_manifest_of_an_older_writer_is_judged_as_before() -> None:
    said = Statements({"s/a": [Mark(0, 10)]}, {"s": Roster({}, 10_000)}, 2_000, frozenset({"s"}))
    shards = {"s/a": shard(1, 10), "s/b": shard(1, 40)._replace(marks=False, behind_ms=5)}
    found = horizon_ms(shards, WAIT_MS, said)
    assert (found.ms, found.holder, found.first_ms, found.last_ms) == (10, "s/a", 40, 8_010)
    idle = {**shards, "s/b": shards["s/b"]._replace(behind_ms=0)}
    assert horizon_ms(idle, WAIT_MS, said).first_ms == horizon_ms({}, WAIT_MS).ms


def test_a_shard_that_stands_still_for_long_is_left_behind() -> None:
    said = Statements({"s/a": [Mark(0, 10)]}, {"s": Roster({}, 10_000)}, 2_000, frozenset({"s"}))
    shards = {"s/a": shard(1, 10), "s/b": shard(1, 9_000)}
    since = stands_since({}, complete_ms(shards, said), 1.0)
    since = stands_since(since, complete_ms(shards, said), 50.0)
    assert since == {"s/a": (10, 1.0), "s/b": (9_000, 1.0)}
    still = {"s/a": 60_000.0, "s/b": 1.0}
    found = horizon_ms(shards, WAIT_MS, said, still)
    assert (found.ms, found.holder, dict(found.left)) == (9_000, "s/b", {"s/a": 10})
    assert stands_since(since, {"s/a": 11, "s/b": 300}, 70.0) == {"s/a": (11, 70.0), "s/b": (9_000, 1.0)}
    assert horizon_ms(shards, WAIT_MS, said, {"s/a": 59_999.0}).holder == "s/a"
    waits_for_it = {**shards, "s/b": shard(1, 8_010)}
    assert horizon_ms(waits_for_it, WAIT_MS, said, still).left == {}, "no batch waits for it"


def test_marks_from_a_future_that_our_clock_does_not_know_count_for_nothing() -> None:
    host = Host(100_000, 2_000, {"s/a": Mark(0, 100_000)})
    assert statements_of([host], {}, 40_000).marks == {"s/a": [Mark(0, 100_000)]}
    early = statements_of([host], {}, 39_999)
    assert (dict(early.marks), early.window_ms) == ({}, 0)


def test_a_batch_ends_where_the_next_part_ends_beyond_the_horizon_and_its_reach() -> None:
    logged = Logged(
        {"s/a": [entry(0, 0, 90), entry(1, 91, 150)], "s/b": [entry(0, 0, 99), entry(1, 100, 120)]}
    )
    ends = plan(logged.starts, logged.shards, logged.entries, horizon=Horizon(100, "s/b", last_ms=130))
    assert {key: place.number for key, place in ends.items()} == {"s/a": 1, "s/b": 1}
    ends = plan(logged.starts, logged.shards, logged.entries, horizon=Horizon(100, "s/b", last_ms=150))
    assert {key: place.number for key, place in ends.items()} == {"s/a": 2, "s/b": 2}
