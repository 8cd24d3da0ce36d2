"""Manifests and pages: they save listings, and whatever becomes of them, the segments count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from kcl_landing import manifests
from kcl_landing.log import (
    INFO,
    PAGE,
    Damaged,
    Entry,
    LogInfo,
    Manifest,
    entry_path,
    first_path,
    page_path,
)
from kcl_landing.manifests import OtherLog, known_log, open_log
from kcl_landing.store import StoredObject, StoreTrouble
from kcl_landing.writer import LogAltered, Tail
from tests.landing.footers import AT, HOUR_MS, SHARD, STREAM, Shard, land, made, stored
from tests.landing.memory_store import Fault, MemoryStore, Operation


def test_a_new_shard_has_no_end(shard: Shard) -> None:
    assert shard.log.open() == Tail()
    assert shard.log.open(is_new=True) == Tail()
    assert list(shard.log.entries()) == []
    assert shard.store.objects == {}
    assert shard.warnings == []


def test_append_and_open(shard: Shard) -> None:
    entries = shard.write(0, 2)
    assert shard.again().log.open() == Tail(2, (30, 0), entries[2].last_ms, is_ended=False)
    assert list(shard.again().log.entries(1)) == entries[1:]
    assert stored(shard.store) == Manifest(STREAM, SHARD, tuple(entries), 0, 2)


def test_the_end_of_a_shard(shard: Shard) -> None:
    shard.write(0, 0)
    shard.log.append(land(shard.store, shard.info, made(1, is_end=True)), behind_ms=0, at_ms=1)
    assert shard.again().log.open().is_ended


def test_pages(shard: Shard) -> None:
    entries = shard.write(0, 2 * PAGE + 5)
    assert (
        msgspec.json.decode(shard.store.read(page_path(STREAM, SHARD, PAGE)), type=list[Entry])
        == entries[PAGE : 2 * PAGE]
    )
    assert [each.number for each in stored(shard.store).entries] == list(range(2 * PAGE, 2 * PAGE + 6))
    reader = shard.again()
    assert list(reader.log.entries()) == entries
    assert list(reader.log.entries(PAGE + 7)) == entries[PAGE + 7 :]
    assert list(reader.log.entries(2 * PAGE + 3)) == entries[2 * PAGE + 3 :]
    assert reader.warnings == []


def test_two_requests_a_segment(shard: Shard) -> None:
    shard.log.open(is_new=True)
    shard.store.calls.clear()
    shard.write(0, PAGE)
    assert len(shard.store.calls) == 2 * (PAGE + 1) + 1
    assert {operation for operation, _path in shard.store.calls} == {"create", "replace"}


@pytest.mark.parametrize("further", [1, 3, PAGE + 3])
def test_segments_beyond_the_manifest(shard: Shard, further: int) -> None:
    entries = shard.write(0, 9)
    entries += [land(shard.store, shard.info, made(number)) for number in range(10, 10 + further)]
    opened = shard.again()
    assert opened.log.open().number == 9 + further
    assert opened.warnings == []
    assert list(shard.again().log.entries()) == entries


def _lose(shard: Shard) -> None:
    shard.store.remove([AT])


def _truncate(shard: Shard) -> None:
    shard.store.replace(AT, shard.store.read(AT)[:-20])


def _other_shard(shard: Shard) -> None:
    manifest = msgspec.structs.replace(stored(shard.store), shard="shardId-000000000009")
    shard.store.replace(AT, msgspec.json.encode(manifest))


def _other_stream(shard: Shard) -> None:
    manifest = msgspec.structs.replace(stored(shard.store), stream="baskets")
    shard.store.replace(AT, msgspec.json.encode(manifest))


def _twice(shard: Shard) -> None:
    manifest = stored(shard.store)
    both = (*manifest.entries, manifest.entries[-1])
    shard.store.replace(AT, msgspec.json.encode(msgspec.structs.replace(manifest, entries=both)))


def _alter(shard: Shard) -> None:
    manifest = stored(shard.store)
    last = msgspec.structs.replace(manifest.entries[-1], last="999999/0")
    altered = msgspec.structs.replace(manifest, entries=(*manifest.entries[:-1], last))
    shard.store.replace(AT, msgspec.json.encode(altered))


def _out_of_order(shard: Shard) -> None:
    manifest = stored(shard.store)
    shard.store.replace(
        AT, msgspec.json.encode(msgspec.structs.replace(manifest, entries=manifest.entries[::-1]))
    )


def _far_future(shard: Shard) -> None:
    """Arrival in microseconds: no date can be made of it."""
    manifest = stored(shard.store)
    first, *rest = manifest.entries
    moved = msgspec.structs.replace(first, first_ms=10**17, last_ms=10**17)
    shard.store.replace(AT, msgspec.json.encode(msgspec.structs.replace(manifest, entries=(moved, *rest))))


@pytest.mark.parametrize(
    "damage",
    [_lose, _truncate, _other_shard, _other_stream, _twice, _alter, _out_of_order, _far_future],
)
@pytest.mark.parametrize("last", [4, PAGE + 4])
def test_a_damaged_manifest_is_written_again(
    shard: Shard, damage: Callable[[Shard], None], last: int
) -> None:
    entries = shard.write(0, last)
    before = stored(shard.store).entries
    damage(shard)
    opened = shard.again()
    assert opened.log.open() == Tail(last, (10 * (last + 1), 0), entries[-1].last_ms)
    assert bool(opened.warnings) == (damage is not _lose)
    assert stored(shard.store).entries == before
    assert list(shard.again().log.entries()) == entries


def test_a_manifest_that_says_what_its_last_segment_does_not_is_named_with_the_segment(shard: Shard) -> None:
    shard.write(0, 4)
    _alter(shard)
    opened = shard.again()
    opened.log.open()
    assert opened.warnings == [f"{AT} is not what segment 4 says; the segments are listed instead"]


def test_a_manifest_with_entries_of_two_pages_is_not_believed(shard: Shard) -> None:
    entries = shard.write(0, PAGE)
    whole = stored(shard.store)
    both = msgspec.structs.replace(whole, entries=tuple(entries[-3:]))
    shard.store.replace(AT, msgspec.json.encode(both))
    opened = shard.again()
    assert opened.log.open().number == PAGE
    assert stored(shard.store).entries == whole.entries
    assert "not in order" in opened.warnings[0]


def test_a_manifest_that_was_lost_says_nothing_of_the_tip_when_it_is_written_again(shard: Shard) -> None:
    shard.write(0, 2)
    _lose(shard)
    shard.again().log.open()
    found = stored(shard.store)
    assert (found.behind_ms, found.at_ms) == (None, 0)


def test_only_segments_that_the_manifest_lacks_are_read_and_the_one_that_it_is_judged_by(
    shard: Shard,
) -> None:
    entries = shard.write(0, 9)
    more = [land(shard.store, shard.info, made(number)) for number in (10, 11)]
    opened = shard.again()
    assert opened.read_meanwhile(opened.log.open) == [AT, *map(shard.path, [entries[-1], *more])]


@pytest.mark.parametrize("first", [0, 2])
def test_a_manifest_whose_last_segment_is_gone_before_its_time_is_not_believed(
    shard: Shard, first: int
) -> None:
    entries = shard.write(0, 2)
    shard.store.replace(first_path(STREAM, SHARD), msgspec.json.encode({"first": first}))
    shard.store.remove([shard.path(entries[2])])
    opened = shard.again()
    assert opened.log.open().number == (1 if first == 0 else -1)
    assert "is not what segment 2 says" in opened.warnings[0]


def test_an_entry_that_the_manifest_has_is_not_added_again(shard: Shard) -> None:
    entries = shard.write(0, 3)
    for each in entries[2:]:
        shard.log.append(each, behind_ms=0, at_ms=3)
    assert stored(shard.store).entries == tuple(entries)


@pytest.mark.parametrize("damage", [_lose, _truncate, _other_shard, _out_of_order])
def test_a_reader_without_a_manifest(shard: Shard, damage: Callable[[Shard], None]) -> None:
    entries = shard.write(0, PAGE + 4)
    damage(shard)
    there = dict(shard.store.objects)
    assert list(shard.again().log.entries(3)) == entries[3:]
    assert shard.store.objects == there


@pytest.mark.parametrize("page", [b"", b"[[1,2", b"[]"])
def test_a_damaged_page_is_read_from_its_segments(shard: Shard, page: bytes) -> None:
    entries = shard.write(0, 2 * PAGE + 1)
    shard.store.replace(page_path(STREAM, SHARD, PAGE), page)
    reader = shard.again()
    assert list(reader.log.entries(5)) == entries[5:]
    assert "damaged" in reader.warnings[0]


@pytest.mark.parametrize("damage", ["of the next page", "of the page before", "its last entry is missing"])
def test_a_page_that_is_not_whole_or_of_another_place_is_read_from_its_segments(
    shard: Shard, damage: str
) -> None:
    entries = shard.write(0, 3 * PAGE + 1)
    there = {
        "of the next page": entries[2 * PAGE : 3 * PAGE],
        "of the page before": entries[:PAGE],
        "its last entry is missing": entries[PAGE : 2 * PAGE - 1],
    }
    shard.store.replace(page_path(STREAM, SHARD, PAGE), msgspec.json.encode(there[damage]))
    reader = shard.again()
    assert list(reader.log.entries()) == entries
    assert reader.warnings == [
        f"{page_path(STREAM, SHARD, PAGE)} is lost or damaged; the segments are listed instead"
    ]


@pytest.mark.parametrize("first", [0, 5, PAGE + 7])
def test_a_page_that_is_there_costs_one_read_and_no_listing(shard: Shard, first: int) -> None:
    shard.write(0, 2 * PAGE)
    shard.store.calls.clear()
    list(shard.again().log.entries(first))
    pages = [page_path(STREAM, SHARD, page) for page in (0, PAGE) if page + PAGE > first]
    assert sorted(shard.store.calls) == sorted(
        [("read", AT), ("read", first_path(STREAM, SHARD)), *(("read", each) for each in pages)]
    )


def test_of_a_lost_page_only_its_segments_are_read_and_the_one_behind_them(shard: Shard) -> None:
    entries = shard.write(0, 3 * PAGE + 1)
    shard.store.remove([page_path(STREAM, SHARD, PAGE)])
    reader = shard.again()
    read = reader.read_meanwhile(lambda: list(reader.log.entries(PAGE + 7)))
    assert [each for each in read if not each.startswith("_manifests")] == [
        shard.path(each) for each in entries[PAGE + 7 : 2 * PAGE + 1]
    ]


def test_of_a_lost_page_that_was_compacted_with_the_next_no_other_page_is_read_from_segments(
    shard: Shard,
) -> None:
    entries = shard.write(0, 4 * PAGE + 1)
    whole = land(shard.store, shard.info, made(PAGE, to=3 * PAGE - 1))
    shard.store.remove([shard.path(each) for each in entries[PAGE : 3 * PAGE]])
    shard.store.remove([page_path(STREAM, SHARD, page) for page in (PAGE, 2 * PAGE)])
    reader = shard.again()
    found = list[Entry]()
    read = reader.read_meanwhile(lambda: found.extend(reader.log.entries()))
    assert found == [*entries[:PAGE], whole, *entries[3 * PAGE :]]
    assert [each for each in read if not each.startswith("_manifests")] == [
        shard.path(whole),
        shard.path(entries[3 * PAGE]),
    ]


def test_a_page_that_is_lost_with_its_segments_is_named_and_what_follows_is_read(shard: Shard) -> None:
    entries = shard.write(0, 3 * PAGE + 1)
    shard.store.remove([shard.path(each) for each in entries[PAGE : 2 * PAGE]])
    shard.store.remove([page_path(STREAM, SHARD, PAGE)])
    reader = shard.again()
    assert list(reader.log.entries()) == entries[:PAGE] + entries[2 * PAGE :]
    assert reader.warnings[1:] == [f"segments {PAGE} to {2 * PAGE - 1} of {STREAM}/{SHARD} are missing"]
    assert list(shard.again().log.entries(PAGE + 7)) == entries[2 * PAGE :]


def test_who_reads_without_a_manifest_reads_no_segment_of_a_page_that_is_there_but_its_last(
    shard: Shard,
) -> None:
    entries = shard.write(0, PAGE + 2)
    _lose(shard)
    reader = shard.again()
    found = list[Entry]()
    read = reader.read_meanwhile(lambda: found.extend(reader.log.entries()))
    assert found == entries
    assert [each for each in read if not each.startswith("_manifests")] == [
        shard.path(each) for each in entries[PAGE - 1 :]
    ]


def test_a_page_behind_which_nothing_is_left_is_given_once(shard: Shard) -> None:
    entries = shard.write(0, PAGE)
    _lose(shard)
    shard.store.remove([shard.path(entries[PAGE])])
    assert list(shard.again().log.entries()) == entries[:PAGE]


def test_a_compacted_segment_counts_where_the_first_of_its_parts_is_still_there(shard: Shard) -> None:
    entries = shard.write(0, 5)
    whole = land(shard.store, shard.info, msgspec.structs.replace(made(0, to=3)))
    shard.store.remove([AT, *(shard.path(each) for each in entries[1:4])])
    opened = shard.again()
    assert opened.log.open().number == 5
    assert opened.warnings == []
    assert list(opened.log.entries()) == [whole, *entries[4:]]


def test_a_segment_that_is_removed_after_it_was_listed_hides_none_behind_it(shard: Shard) -> None:
    entries = shard.write(0, 4)
    _lose(shard)
    gone = shard.path(entries[2])

    def remove(operation: Operation, path: str) -> None:
        if (operation, path) == ("read", gone):
            shard.store.objects.pop(gone, None)

    shard.store.before = remove
    assert list(shard.again().log.entries()) == entries[:2] + entries[3:]


def test_all_that_is_not_a_segment_is_lost(shard: Shard) -> None:
    entries = shard.write(0, 2 * PAGE + 1)
    shard.store.remove([AT, page_path(STREAM, SHARD, 0), page_path(STREAM, SHARD, PAGE)])
    assert (
        list(shard.again().log.entries()) == entries[2 * PAGE :]
        or list(shard.again().log.entries()) == entries
    )
    assert shard.again().log.open().number == 2 * PAGE + 1
    assert list(shard.again().log.entries()) == entries


def test_an_altered_page_is_not_believed_when_the_manifest_is_lost(shard: Shard) -> None:
    entries = shard.write(0, PAGE + 1)
    path = page_path(STREAM, SHARD, 0)
    altered = [*entries[: PAGE - 1], msgspec.structs.replace(entries[PAGE - 1], crc=1)]
    shard.store.replace(path, msgspec.json.encode(altered))
    _lose(shard)
    opened = shard.again()
    assert opened.log.open().number == PAGE + 1
    assert len(opened.warnings) == 1
    assert msgspec.json.decode(shard.store.read(path), type=list[Entry]) == entries[:PAGE]


def test_a_stale_manifest_does_no_harm(shard: Shard) -> None:
    shard.write(0, 3)
    stale = shard.store.read(AT)
    entries = [*shard.log.entries(), *shard.write(4, 5)]
    shard.store.replace(AT, stale)  # the paused writer wakes
    assert list(shard.again().log.entries()) == entries[:4]
    entries += shard.write(6, 6)
    assert list(shard.again().log.entries()) == entries
    shard.store.replace(AT, stale)
    assert shard.again().log.open().number == 6


def test_two_writers_close_a_page(shard: Shard) -> None:
    shard.write(0, PAGE - 2)
    other = shard.again()
    other.log.open()
    entries = [land(shard.store, shard.info, made(number)) for number in range(PAGE - 1, PAGE + 2)]
    for entry in entries:
        shard.log.append(entry, behind_ms=0, at_ms=0)
    for entry in entries[:2]:
        other.log.append(entry, behind_ms=0, at_ms=0)
    assert [each.number for each in shard.again().log.entries()] == list(range(PAGE + 1))
    assert other.warnings == []


def test_a_compacted_page_stays(shard: Shard) -> None:
    entries = shard.write(0, PAGE - 1)
    paused = shard.again()
    paused.log.open()
    following = shard.write(PAGE, PAGE)
    whole = land(shard.store, shard.info, made(0, to=PAGE - 1))
    path = page_path(STREAM, SHARD, 0)
    shard.store.replace(path, msgspec.json.encode([whole]))
    shard.store.remove([entry_path(shard.info, STREAM, SHARD, each) for each in entries])
    paused.log.append(following[0], behind_ms=0, at_ms=0)
    assert list(shard.again().log.entries()) == [whole, *following]
    assert list(shard.again().log.entries(17)) == [whole, *following]
    _lose(shard)
    assert shard.again().log.open().number == PAGE


@pytest.mark.parametrize("begins", [0, 100])
def test_compacted_over_pages(shard: Shard, begins: int) -> None:
    shard.write(0, 3 * PAGE)
    whole = land(shard.store, shard.info, made(begins, to=2 * PAGE + 9))
    before = [land(shard.store, shard.info, made(0, to=begins - 1))] if begins else []
    rest = [each for each in shard.log.entries() if each.number > whole.to]
    shard.store.replace(page_path(STREAM, SHARD, 0), msgspec.json.encode([*before, whole]))
    shard.store.remove([page_path(STREAM, SHARD, PAGE)])
    shard.store.replace(page_path(STREAM, SHARD, 2 * PAGE), msgspec.json.encode(rest[:-1]))
    reader = shard.again()
    assert list(reader.log.entries()) == [*before, whole, *rest]
    for first in (begins, begins + 5, PAGE, PAGE + 5, 2 * PAGE, 2 * PAGE + 9):
        assert list(reader.log.entries(first)) == [whole, *rest]
    assert list(reader.log.entries(2 * PAGE + 10)) == rest
    assert reader.warnings == []


def test_a_log_is_read_and_recovered_behind_expired_entries(shard: Shard) -> None:
    entries = shard.write(0, PAGE + 3)
    shard.store.replace(first_path(STREAM, SHARD), msgspec.json.encode({"first": PAGE}))
    shard.store.remove([entry_path(shard.info, STREAM, SHARD, each) for each in entries[:PAGE]])
    shard.store.remove([page_path(STREAM, SHARD, 0)])
    reader = shard.again()
    assert list(reader.log.entries()) == entries[PAGE:]
    _lose(shard)
    assert reader.log.open().number == PAGE + 3
    assert reader.warnings == []


def test_a_manifest_whose_segments_have_all_expired_keeps_the_end(shard: Shard) -> None:
    entries = shard.write(0, 3)
    shard.store.replace(first_path(STREAM, SHARD), msgspec.json.encode({"first": 4}))
    shard.store.remove([entry_path(shard.info, STREAM, SHARD, each) for each in entries])
    opened = shard.again()
    assert opened.log.open().number == 3
    assert opened.warnings == []
    assert list(opened.log.entries()) == []


def test_a_missing_segment_is_named_and_not_written_again(shard: Shard) -> None:
    entries = shard.write(0, 5)
    shard.store.remove([entry_path(shard.info, STREAM, SHARD, entries[2])])
    _lose(shard)
    opened = shard.again()
    assert opened.log.open().number == 5
    assert opened.warnings == [f"segments 2 to 2 of {STREAM}/{SHARD} are missing"]


@pytest.mark.parametrize("application", ["another", "other"])
def test_a_segment_of_another_application(shard: Shard, application: str) -> None:
    foreign = msgspec.structs.replace(made(0), application=application)
    land(shard.store, shard.info, foreign)
    with pytest.raises(LogAltered, match=rf"segment 0 of {application}/orders"):
        shard.log.open()


@pytest.mark.parametrize(("number", "named"), [(0, 1), (1, 0)])
def test_a_segment_with_the_name_of_another_number(shard: Shard, number: int, named: int) -> None:
    at = shard.path(made(named).entry(1, 1))
    shard.store.create(at, msgspec.json.encode(made(number)))
    with pytest.raises(LogAltered, match=rf"{at} says that it is segment {number} of "):
        shard.log.open()


def test_a_damaged_segment_in_the_middle(shard: Shard) -> None:
    entries = shard.write(0, 5)
    shard.store.replace(entry_path(shard.info, STREAM, SHARD, entries[2]), b"{")
    assert shard.again().log.open().number == 5  # what is not read is not known
    _lose(shard)
    opened = shard.again()
    assert opened.log.open().number == 5
    assert entry_path(shard.info, STREAM, SHARD, entries[2]) in opened.warnings[0]


def test_a_damaged_segment_at_the_end_stops_its_writer(shard: Shard) -> None:
    entries = shard.write(0, 5)
    path = entry_path(shard.info, STREAM, SHARD, entries[5])
    shard.store.replace(path, b"{")
    for _ in range(2):
        with pytest.raises(Damaged, match=path):
            shard.again().log.open()
        _lose(shard)


def test_the_segment_at_the_next_name(shard: Shard) -> None:
    shard.write(0, 1)
    at_ms = made(2).first_ms
    assert shard.log.footer(2, at_ms, is_end=False) is None
    entry = land(shard.store, shard.info, made(2, writer="other"))
    assert shard.log.footer(2, at_ms, is_end=False) == made(2, writer="other")
    shard.log.adopt(made(2, writer="other"), behind_ms=5, at_ms=7)
    assert stored(shard.store).entries[-1] == entry


def test_at_the_tip_without_a_segment(shard: Shard) -> None:
    shard.log.open(is_new=True)
    shard.log.at_tip(behind_ms=0, at_ms=9)
    assert stored(shard.store) == Manifest(STREAM, SHARD, (), 0, 9)
    assert shard.again().log.open() == Tail()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operation", ["create", "replace"])
def test_append_can_be_tried_again(shard: Shard, operation: str, after: bool) -> None:
    entries = shard.write(0, PAGE - 1)
    entries.append(land(shard.store, shard.info, made(PAGE)))
    shard.store.faults.append(
        Fault("create" if operation == "create" else "replace", after=after, within="_manifests")
    )
    with pytest.raises(StoreTrouble):
        shard.log.append(entries[-1], behind_ms=0, at_ms=0)
    shard.log.append(entries[-1], behind_ms=0, at_ms=0)
    assert list(shard.again().log.entries()) == entries


def test_dated_finds_new_hours_with_few_requests() -> None:
    shard = Shard(MemoryStore(), LogInfo("app", "dated", "parquet", "id-1"))
    shard.write(0, 200)
    for number in range(201, 280):
        land(shard.store, shard.info, made(number))
    opened = shard.again()
    shard.store.calls.clear()
    assert opened.log.open().number == 279
    assert [path for operation, path in shard.store.calls if operation == "listing"] == [
        STREAM,
        f"{STREAM}/_ends",
    ]


@pytest.mark.parametrize(("others", "seen"), [(1_998, 1), (1_999, 0)])
def test_dated_looks_at_the_next_two_thousand_objects_beyond_the_manifest(others: int, seen: int) -> None:
    shard = Shard(MemoryStore(), LogInfo("app", "dated", "parquet", "id-1"))
    shard.write(0, 0)
    land(shard.store, shard.info, made(1))
    for other in range(others):
        name = entry_path(shard.info, STREAM, f"another-{other}", made(0).entry(1, 1))
        assert shard.store.create(name, b"")
    assert shard.again().log.open().number == seen


def test_dated_without_a_manifest_is_looked_through_unless_the_shard_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifests, "_LOOKED_AT_MOST", 2)
    shard = Shard(MemoryStore(), LogInfo("app", "dated", "parquet", "id-1"))
    for number in range(5):
        land(shard.store, shard.info, made(number))
    assert shard.again().log.open(is_new=True).number == 1
    shard.store.remove([AT])
    assert shard.again().log.open().number == 4


class HoursStore(MemoryStore):
    """Knows from where on it was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed_after: list[str] = []

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        self.listed_after.append(after)
        return super().listing(folder, after=after)


@pytest.mark.parametrize("within_ms", [0, HOUR_MS - 1])
def test_dated_looks_from_the_hour_before_the_latest_arrival_on(within_ms: int) -> None:
    store = HoursStore()
    shard = Shard(store, LogInfo("app", "dated", "parquet", "id-1"))
    at_ms = 500_010 * HOUR_MS + within_ms  # 2027-01-15, 18:00
    first = land(store, shard.info, msgspec.structs.replace(made(0), first_ms=at_ms, last_ms=at_ms))
    shard.log.append(first, behind_ms=0, at_ms=0)
    shard.again().log.open()
    assert store.listed_after[0] == f"{STREAM}/dt=2027-01-15/hour=17"


def test_a_checkpoint_that_is_reached_is_not_looked_for(shard: Shard) -> None:
    shard.write(0, 3)
    opened, other = shard.again(), shard.again()
    reached = opened.listed_meanwhile(lambda: opened.log.open(checkpoint=(40, 0)))
    assert other.listed_meanwhile(lambda: other.log.open(checkpoint=(40, 1))) == 2 * reached


def test_dated_is_looked_through_to_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other shards have many segments in the same hours, and no manifest was written after the first segment."""
    monkeypatch.setattr(manifests, "_LOOKED_AT_MOST", 2)
    shard = Shard(MemoryStore(), LogInfo("app", "dated", "parquet", "id-1"))
    shard.write(0, 0)
    for number in range(1, 5):
        land(shard.store, shard.info, made(number))
    for other in range(5):
        name = entry_path(shard.info, STREAM, f"another-{other}", made(0).entry(1, 1))
        assert shard.store.create(name, b"")
    assert shard.again().log.open().number == 0
    assert shard.again().log.open(checkpoint=(50, 0)).number == 4


def test_who_comes_first_makes_the_log() -> None:
    store = MemoryStore()
    ours = LogInfo("app", "log", "parquet", "id-1")
    assert open_log(store, ours) == ours
    assert open_log(store, msgspec.structs.replace(ours, log_id="id-2")) == ours
    assert known_log(store) == ours


def test_another_writer_makes_the_log_meanwhile() -> None:
    ours = LogInfo("app", "log", "parquet", "id-1")
    theirs = msgspec.structs.replace(ours, log_id="id-2")
    store = MemoryStore()

    def first(operation: str, path: str) -> None:
        if operation == "create":
            store.before = MemoryStore().before
            assert open_log(store, theirs) == theirs

    store.before = first
    assert open_log(store, ours) == theirs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"application": "other"}, "applicationName = other"),
        ({"layout": "dated"}, "landingLayout = dated"),
        ({"format": "arrow"}, "landingFormat = arrow"),
        ({"version": 2}, "version 2"),
        ({"version": 0}, "version 0"),
    ],
)
def test_the_log_of_another(change: dict[str, object], words: str) -> None:
    store = MemoryStore()
    ours = LogInfo("app", "log", "parquet", "id-1")
    store.create(INFO, msgspec.json.encode(msgspec.structs.replace(ours, **change)))
    with pytest.raises(OtherLog, match=words):
        open_log(store, ours)


def test_a_folder_without_a_description_of_ours_is_no_landing_log() -> None:
    store = MemoryStore()
    with pytest.raises(OtherLog, match="there is no landing log"):
        known_log(store)
    store.create(INFO, b"{}")
    with pytest.raises(OtherLog, match="not the description"):
        known_log(store)
    store.remove([INFO])
    store.create(AT, b"{}")
    with pytest.raises(OtherLog, match="was removed"):
        open_log(store, LogInfo("app", "log", "parquet", "id-1"))
