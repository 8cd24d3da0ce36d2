"""What expires, what stays for readers, and that the note comes before the removal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_landing.control import Refused
from kcl_landing.keeping.expire import Cut, Expirer, Rules, cut_of, rules_of
from kcl_landing.keeping.names import sorted_out
from kcl_landing.keeping.read import forget, readers_of, register, report
from kcl_landing.keeping.status import status
from kcl_landing.log import (
    PAGE,
    Entry,
    First,
    LogInfo,
    ReaderNote,
    first_path,
    manifest_path,
    page_path,
    reader_path,
)
from tests.landing.logs import BEGIN_MS, INFO, KEY, SHARD, STREAM, planned, read, verify, write
from tests.landing.memory_store import MemoryStore, Operation
from tests.landing.test_compact import ALL, Crash, Stage

AT = f"{STREAM}/{SHARD}"


@pytest.fixture(scope="module")
def written() -> Stage:
    stage = Stage()
    write(stage.store, PAGE + 5)
    return stage


@pytest.fixture
def store(written: Stage) -> MemoryStore:
    return written.copy().store


def expire(store: MemoryStore, rules: Rules, *, dry_run: bool = False) -> tuple[Cut, list[str]]:
    lines: list[str] = []
    expirer = Expirer(store, INFO, lines.append, at_ms=5, dry_run=dry_run)
    return expirer.run(sorted_out(INFO, store.listing("")), rules, 1), lines


def first(store: MemoryStore) -> First:
    return msgspec.json.decode(store.read(first_path(*KEY)), type=First)


def before(number: int) -> Rules:
    """All that arrived before the segment with this number."""
    return Rules(before_ms=BEGIN_MS + 1000 * number)


def test_by_age(store: MemoryStore) -> None:
    cut, lines = expire(store, before(100))
    assert (cut.segments, cut.rows) == (100, 300)
    assert lines == [f"{AT}: segments 0 to 99 expire: 300 records, {cut.size_bytes} bytes"]
    note = first(store)
    assert (note.first, note.last, note.last_ms) == (100, "300/0", BEGIN_MS + 99_000)
    assert (note.segments, note.rows, note.size_bytes, note.at_ms) == (100, 300, cut.size_bytes, 5)
    assert list(read(store, planned(store))) == ALL[300:]
    verdict, problems = verify(store)
    assert (problems, verdict.expired, verdict.segments) == ([], 0, PAGE + 5 - 100)
    cut, _ = expire(store, before(PAGE + 2))
    assert cut.segments == PAGE + 2 - 100
    assert (first(store).segments, first(store).rows) == (PAGE + 2, 3 * (PAGE + 2))
    assert page_path(*KEY, 0) not in store.objects
    assert verify(store)[1] == []
    assert list(read(store, planned(store))) == ALL[3 * (PAGE + 2) :]


def test_the_newest_segment_always_stays(store: MemoryStore) -> None:
    assert expire(store, before(10_000))[0].segments == PAGE + 4
    assert [each.number for each in planned(store)] == [PAGE + 4]
    assert verify(store)[1] == []
    # The writer goes on where the log ends.
    assert list(read(store, planned(store))) == ALL[-3:]


def test_dry_run_changes_nothing(store: MemoryStore) -> None:
    before_it = dict(store.objects)
    cut, lines = expire(store, before(100), dry_run=True)
    assert cut.segments == 100
    assert "would expire" in lines[0]
    assert store.objects == before_it


def test_segments_that_a_reader_needs_stay(store: MemoryStore) -> None:
    report(store, "etl", {AT: 40}, at_ms=1)
    report(store, "new", {AT: 60}, at_ms=1)
    readers = [ReaderNote("etl", {AT: 40}, 1), ReaderNote("new", {AT: 60}, 1)]
    by_age = rules_of(readers, before_ms=BEGIN_MS + 100_000, read_by=(), all_readers=False, force=False)
    cut, lines = expire(store, by_age, dry_run=True)
    assert cut.segments == 40
    assert lines[1] == f"{AT}: reader etl still needs segment 40, so it stays"
    by_new = rules_of(readers, before_ms=None, read_by=["new"], all_readers=False, force=False)
    assert expire(store, by_new, dry_run=True)[0].segments == 40
    everyone = rules_of(readers, before_ms=None, read_by=(), all_readers=True, force=False)
    assert expire(store, everyone, dry_run=True)[0].segments == 40
    old = rules_of(readers, before_ms=BEGIN_MS + 10_000, read_by=(), all_readers=True, force=False)
    assert expire(store, old, dry_run=True)[0].segments == 10
    forced = rules_of(readers, before_ms=None, read_by=["new"], all_readers=False, force=True)
    assert expire(store, forced)[0].segments == 60
    shown = status(store, INFO)
    assert shown.shards[0].readers["etl"].gone == 20
    assert shown.shards[0].readers["new"].gone == 0
    assert shown.shards[0].expired.last == "180/0"


def test_a_shard_that_a_reader_never_named_is_kept_for_it(store: MemoryStore) -> None:
    readers = [ReaderNote("etl", {}, 1)]
    cut, lines = expire(
        store, rules_of(readers, before_ms=10**15, read_by=(), all_readers=False, force=False)
    )
    assert cut.segments == 0
    assert lines == [f"{AT}: reader etl still needs segment 0, so it stays"]
    assert first_path(*KEY) not in store.objects


def test_rules_that_cannot_be() -> None:
    note = ReaderNote("etl", {}, 1)
    with pytest.raises(Refused, match="no reader slow is registered; there is etl"):
        rules_of([note], before_ms=None, read_by=["slow"], all_readers=False, force=False)
    with pytest.raises(Refused, match="nobody has read"):
        rules_of([], before_ms=None, read_by=(), all_readers=True, force=False)
    with pytest.raises(Refused, match="--older-than 7d"):
        rules_of([note], before_ms=None, read_by=(), all_readers=False, force=False)


def test_a_crash_at_any_point(written: Stage) -> None:
    """The note first; the next run removes what a crash has left."""
    stop_at = 0
    while True:
        store, count = written.copy().store, 0

        def crash(operation: Operation, _path: str, stop_at: int = stop_at) -> None:
            nonlocal count
            count += operation in {"create", "replace", "remove"}
            if count > stop_at:
                raise Crash

        store.before = crash
        try:
            expire(store, before(PAGE + 2))
            break
        except Crash:
            store.before = lambda _operation, _path: None
        if stop_at:
            assert first(store).first == PAGE + 2
        verdict, problems = verify(store)
        assert problems == []
        assert verdict.expired == {0: 0, 1: PAGE + 2, 2: 2, 3: 2}[stop_at]
        expire(store, before(PAGE + 2))
        verdict, problems = verify(store)
        assert (problems, verdict.expired) == ([], 0)
        stop_at += 1
    assert stop_at == 4


def test_the_note_is_never_lowered(store: MemoryStore) -> None:
    """Another run has gone further meanwhile."""
    found = sorted_out(INFO, store.listing(""))
    expire(store, before(80))
    late = Expirer(store, INFO, print, at_ms=9, dry_run=False)
    late.run(found, before(50), 1)
    assert first(store).first == 80
    assert verify(store)[1] == []


def test_with_what_compaction_left(written: Stage) -> None:
    stage = written.copy()
    stage.compact()
    expire(stage.store, before(PAGE + 2))
    left = [each for each in stage.store.objects if each.startswith((f"{STREAM}/", "_compaction"))]
    assert len(left) == 3
    assert verify(stage.store)[1] == []
    stage.compact()


def test_without_a_manifest_nothing_expires(store: MemoryStore) -> None:
    store.replace(f"_manifests/{AT}.json", b"nothing")
    assert expire(store, before(100))[0].segments == 0
    assert first_path(*KEY) not in store.objects


def test_a_lost_page_stops_it(store: MemoryStore) -> None:
    """Its objects would be forgotten."""
    page = store.read(page_path(*KEY, 0))
    store.remove([page_path(*KEY, 0)])
    cut, lines = expire(store, before(PAGE + 2))
    assert cut.segments == 0
    assert lines == [f"{AT}: nothing expires from segment 0 on, as a page is lost: `verify --mend`"]
    verify(store, mend=True)
    assert store.read(page_path(*KEY, 0)) == page
    assert expire(store, before(PAGE + 2))[0].segments == PAGE + 2


def test_dated() -> None:
    store, info = MemoryStore(), LogInfo("app", "dated", "parquet", "id-1")
    write(store, 6, info=info, children=())
    expirer = Expirer(store, info, print, at_ms=5, dry_run=False)
    assert expirer.run(sorted_out(info, store.listing("")), before(4), 1).segments == 4
    verdict, problems = verify(store, info=info)
    assert (problems, verdict.segments, verdict.expired) == ([], 2, 0)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20)), min_size=1, max_size=12),
    st.none() | st.integers(1, 20),
    st.lists(st.integers(0, 30), max_size=3),
    st.lists(st.integers(0, 30), max_size=3),
)
def test_the_cut_is_the_longest_that_the_rules_permit(
    widths: list[tuple[int, int]], before_ms: int | None, read_by: list[int], needed_by: list[int]
) -> None:
    entries, number = [], 0
    for width, last_ms in widths:
        entries.append(
            Entry(number, number + width - 1, f"{number}/0", f"{number + width}/0", 2, 3, 0, 0, last_ms)
        )
        number += width

    def notes(needs: list[int]) -> list[ReaderNote]:
        return [ReaderNote(f"r{index}", {AT: each}, 0) for index, each in enumerate(needs)]

    rules = Rules(before_ms, notes(read_by), notes(needed_by))
    cut = cut_of(KEY, First(0), iter(entries), rules, 1)
    gone, kept = entries[: cut.segments], entries[cut.segments :]
    assert kept
    for each in gone:
        assert before_ms is None or 0 < each.last_ms < before_ms
        assert all(each.to < need for need in (*read_by, *needed_by))
    assert cut.first.first == (kept[0].number if gone else 0)
    assert cut.first.last == (gone[-1].last if gone else "")
    assert (cut.rows, cut.size_bytes) == (2 * len(gone), 3 * len(gone))
    if len(kept) > 1:
        assert not rules.holds(kept[0], KEY) or rules.who_needs(kept[0], KEY) == cut.kept_for != ""


def test_readers() -> None:
    store = MemoryStore()
    assert register(store, "etl", at_ms=1).done == {}
    report(store, "etl", {AT: 7}, at_ms=2)
    assert register(store, "etl", at_ms=3) == ReaderNote("etl", {AT: 7}, 2)
    assert forget(store, "etl")
    assert not forget(store, "etl")
    for name in ("", "a/b", "../x", ".hidden", "é"):
        with pytest.raises(Refused, match="cannot be the name of a reader"):
            register(store, name, at_ms=1)


OTHER = "shardId-000000000001"


def test_the_manifest_of_another_shard_is_not_believed(store: MemoryStore) -> None:
    write(store, 9, shard=OTHER)
    store.replace(manifest_path(*KEY), store.read(manifest_path(STREAM, OTHER)))
    cut, lines = expire(store, before(8))
    assert cut.segments == 8, "those of the other shard"
    said = f"{manifest_path(*KEY)} cannot be read: it says that it is the manifest of {STREAM}/{OTHER}"
    assert [line for line in lines if said in line and line.startswith(f"{AT}: nothing expires")]
    assert first_path(*KEY) not in store.objects
    one, other = status(store, INFO).shards
    assert said in one.trouble
    assert (one.segments, other.trouble, other.segments) == (PAGE, "", 1)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "truncated"),
        (
            b'{"name":"etl","done":{"a/b":5},"atMs":1,"version":2}',
            "it has version 2, and this program knows 1",
        ),
        (b'{"name":"else","done":{"a/b":5},"atMs":1}', "it says that it is the note of else"),
    ],
)
def test_a_reader_whose_note_cannot_be_read_keeps_everything_until_it_is_forgotten(
    store: MemoryStore, content: bytes, why: str
) -> None:
    report(store, "other", {AT: 100}, at_ms=1)
    store.create(reader_path("etl"), content)
    found = status(store, INFO)
    assert [each.name for each in found.readers] == ["etl", "other"]
    assert found.unread("etl").segments == PAGE + 5
    assert len(found.trouble) == 1
    for said in (f"{reader_path('etl')} cannot be read: ", why, "expire --forget etl"):
        assert said in found.trouble[0]
    told: list[str] = []
    readers = readers_of(store, ["etl", "other"], told.append)
    assert told == list(found.trouble)
    rules = rules_of(readers, before_ms=10**15, read_by=["other"], all_readers=False, force=False)
    cut, lines = expire(store, rules)
    assert (cut.segments, lines) == (0, [f"{AT}: reader etl still needs segment 0, so it stays"])
    assert forget(store, "etl")
    assert not forget(store, "etl")


def test_a_manifest_of_a_later_version_is_left_alone(store: MemoryStore) -> None:
    later = store.read(manifest_path(*KEY)).replace(b'"version":1', b'"version":2')
    store.replace(manifest_path(*KEY), later)
    cut, lines = expire(store, before(8))
    assert (cut.segments, "it has version 2" in lines[0]) == (0, True)
