"""Compaction: what it merges, and that a reader reads each record once whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_landing.control import Refused
from kcl_landing.keeping.compact import Compacted, Compactor, groups_of, swapped
from kcl_landing.keeping.names import sorted_out
from kcl_landing.log import PAGE, Entry, LogInfo, entry_path, page_path
from kcl_landing.manifests import ShardLog
from tests.landing.logs import INFO, KEY, SHARD, STREAM, planned, put, read, segment, verify, write
from tests.landing.memory_store import MemoryStore, Operation

HOUR_MS = 3_600_000


class Crash(Exception):
    pass


class Stage:
    """A store with a page and a bit, and a clock."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now_ms = HOUR_MS
        self.lines: list[str] = []

    def compact(self, *, grace_ms: int = HOUR_MS, target: int = 40_000, dry_run: bool = False) -> Compacted:
        compactor = Compactor(
            self.store,
            INFO,
            self.lines.append,
            lambda: self.now_ms,
            target_bytes=target,
            grace_ms=grace_ms,
            writer="c",
            dry_run=dry_run,
        )
        return compactor.run(sorted_out(INFO, self.store.listing("")), 1)

    def copy(self) -> Stage:
        stage = Stage()
        stage.store.objects = dict(self.store.objects)
        return stage

    def segments(self) -> int:
        return len([each for each in self.store.objects if each.startswith(f"{STREAM}/")])


@pytest.fixture(scope="module")
def written() -> Stage:
    stage = Stage()
    write(stage.store, PAGE + 5)
    return stage


@pytest.fixture
def stage(written: Stage) -> Stage:
    return written.copy()


ALL = list(range(1, 3 * (PAGE + 5) + 1))


def seen(stage: Stage) -> list[int]:
    return list(read(stage.store, planned(stage.store)))


def entry(number: int, to: int, size: int, *, is_end: bool = False) -> Entry:
    return Entry(number, to, f"{number}/0", f"{to + 1}/0", 1, size, 1, 1, 1, children=() if is_end else None)


@st.composite
def pages(draw: st.DrawFn) -> list[Entry]:
    sizes, has_end = draw(st.lists(st.integers(1, 100), max_size=30)), draw(st.sampled_from([False, True]))
    widths = draw(st.lists(st.integers(1, 4), min_size=len(sizes), max_size=len(sizes)))
    found, number = list[Entry](), 0
    for size, width in zip(sizes, widths, strict=True):
        found.append(entry(number, number + width - 1, size))
        number += width
    if found and has_end:
        found.append(entry(number, number, 1, is_end=True))
    return found


@given(pages(), st.integers(1, 200))
def test_groups_are_neighbours_small_and_fit(entries: list[Entry], target: int) -> None:
    groups = groups_of(entries, target)
    for group in groups:
        assert len(group) > 1
        assert sum(each.size_bytes for each in group) <= target
        assert all(each.size_bytes < target / 2 and not each.is_end for each in group)
        assert [each.number for each in group[1:]] == [each.to + 1 for each in group[:-1]]
    merged = [entry(group[0].number, group[-1].to, sum(e.size_bytes for e in group)) for group in groups]
    page = swapped(entries, merged)
    assert sum(len(group) - 1 for group in groups) == len(entries) - len(page)
    numbers = [number for each in page for number in range(each.number, each.to + 1)]
    assert numbers == [number for each in entries for number in range(each.number, each.to + 1)]
    assert swapped(page, merged) == page


def test_a_page_that_has_changed_is_left(stage: Stage) -> None:
    page = [entry(0, 4, 10), entry(5, 5, 10)]
    assert swapped(page, [entry(0, 2, 1)]) == page
    assert swapped(page, [entry(3, 5, 1)]) == page


def test_merges_then_removes_after_the_grace_period(stage: Stage) -> None:
    before = planned(stage.store)
    done = stage.compact()
    assert done.merged == PAGE
    assert 2 < done.into < 80
    assert (done.removed, done.waiting) == (0, PAGE)
    after = planned(stage.store)
    assert len(after) == done.into + 5
    assert list(read(stage.store, before)) == list(read(stage.store, after)) == ALL
    verdict, problems = verify(stage.store)
    assert (problems, verdict.records, verdict.replaced) == ([], len(ALL), PAGE)
    stage.now_ms += HOUR_MS - 1
    assert stage.compact().waiting == PAGE
    stage.now_ms += 1
    assert stage.compact().removed == PAGE
    verdict, problems = verify(stage.store)
    assert (problems, verdict.records, verdict.replaced) == ([], len(ALL), 0)
    assert seen(stage) == ALL
    assert not [each for each in stage.store.objects if each.startswith("_compaction")]
    assert stage.compact(target=2048) == Compacted()


def test_a_reader_between_merged_numbers_reads_on_there(stage: Stage) -> None:
    stage.compact(grace_ms=0)
    for first in (1, 7, 100, PAGE - 1, PAGE + 2):
        entries = planned(stage.store, first=first)
        assert list(read(stage.store, entries, first=first)) == ALL[3 * first :]


def test_merged_segments_are_merged_again(stage: Stage) -> None:
    first = stage.compact(grace_ms=0, target=20_000)
    second = stage.compact(grace_ms=0, target=200_000)
    assert second.merged == first.into
    assert second.into < first.into
    assert verify(stage.store)[1] == []
    for number in (0, 33, 200):
        assert list(read(stage.store, planned(stage.store, first=number), first=number)) == ALL[3 * number :]


def test_the_newest_page_and_the_end_of_a_shard_stay() -> None:
    stage = Stage()
    entries = write(stage.store, PAGE, children=())
    assert stage.compact(grace_ms=0).merged == 0
    # The same with its page closed by a crash before the manifest was moved on.
    stage.store.create(page_path(*KEY, 0), msgspec.json.encode(entries))
    assert stage.compact(grace_ms=0).merged == 0


def test_dry_run_changes_nothing(stage: Stage) -> None:
    before = dict(stage.store.objects)
    done = stage.compact(dry_run=True)
    assert done.merged == PAGE
    assert stage.store.objects == before
    assert stage.lines == [f"{STREAM}/{SHARD} page 0: {PAGE} segments into {done.into}"]


def test_dated_is_refused() -> None:
    dated = LogInfo("app", "dated", "parquet", "id")
    with pytest.raises(Refused, match="landingWindowMillis"):
        Compactor(MemoryStore(), dated, print, int, target_bytes=1, grace_ms=0, writer="c")


def test_a_damaged_segment_stops_only_its_page(stage: Stage) -> None:
    at = entry_path(INFO, *KEY, planned(stage.store)[3])
    content = stage.store.read(at)
    stage.store.replace(at, content[:-3] + b"abc")
    assert stage.compact(grace_ms=0).merged == 0
    assert at in stage.lines[0] or "no whole segment" in stage.lines[0]
    assert len(planned(stage.store)) == PAGE + 5


_CHANGES = ("create", "replace", "remove")


def changes(stage: Stage, act: Callable[[], object], stop_at: int) -> int:
    """Runs until the change with this number, which does not happen; how many there were."""
    count = 0

    def before(operation: Operation, _path: str) -> None:
        nonlocal count
        if operation in _CHANGES:
            if count == stop_at:
                raise Crash
            count += 1

    stage.store.before = before
    try:
        act()
    except Crash:
        pass
    finally:
        stage.store.before = lambda _operation, _path: None
    return count


def test_a_crash_at_any_point_leaves_a_clean_log(written: Stage) -> None:
    target = 120_000
    probe = written.copy()
    total = changes(probe, lambda: probe.compact(grace_ms=0, target=target), 10_000)
    assert total > 5
    for stop_at in range(total):
        stage = written.copy()
        before = planned(stage.store)
        changes(stage, partial(stage.compact, grace_ms=0, target=target), stop_at)
        assert verify(stage.store)[1] == [], stop_at
        assert seen(stage) == ALL, stop_at
        if any(each.startswith("_compaction") for each in stage.store.objects) and stage.segments() > PAGE:
            assert list(read(stage.store, before)) == ALL, "what was planned before is still there"
        stage.compact(grace_ms=0, target=target)
        verdict, problems = verify(stage.store)
        assert (problems, verdict.replaced) == ([], 0), stop_at
        assert seen(stage) == ALL, stop_at
        assert set(stage.store.objects) == set(probe.store.objects), stop_at


def test_removal_that_is_cut_short(stage: Stage) -> None:
    """The store removes some of what it was told to, and then the power goes."""
    stage.compact()
    for number in range(0, PAGE, 3):
        stage.store.remove([f"{STREAM}/{SHARD}/{number:012d}.parquet"])
    assert verify(stage.store)[1] == []
    assert seen(stage) == ALL
    stage.now_ms += HOUR_MS
    assert stage.compact().removed == PAGE
    verdict, problems = verify(stage.store)
    assert (problems, verdict.replaced) == ([], 0)


@pytest.mark.parametrize("other_target", [40_000, 90_000])
@pytest.mark.parametrize("stop_at", range(0, 24, 2))
def test_two_compactors_at_a_time(written: Stage, stop_at: int, other_target: int) -> None:
    """One stops anywhere, another does everything, the first goes on with what it knew."""
    stage = written.copy()
    count = 0

    def other_comes(operation: Operation, _path: str) -> None:
        nonlocal count
        count += 1
        if count == stop_at:
            stage.store.before = lambda _operation, _path: None
            stage.compact(target=other_target)

    stage.store.before = other_comes
    stage.compact(target=40_000)
    assert count >= stop_at
    assert verify(stage.store)[1] == []
    assert seen(stage) == ALL
    stage.now_ms += HOUR_MS
    stage.compact(target=40_000)
    assert verify(stage.store)[1] == []
    assert seen(stage) == ALL


def test_a_late_writer_does_not_undo_it() -> None:
    """One that was paused before it closed the page, and wakes when that is compacted and the old segments are gone."""
    stage = Stage()
    write(stage.store, PAGE)
    late = ShardLog(stage.store, INFO, STREAM, SHARD)
    late.open()
    write(stage.store, PAGE + 5)
    assert stage.compact(grace_ms=0).removed == PAGE
    late.append(put(stage.store, *segment(PAGE)), behind_ms=0, at_ms=0)
    assert seen(stage) == ALL[: 3 * (PAGE + 1)]
    assert verify(stage.store)[1] == []
