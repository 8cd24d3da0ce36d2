"""What `verify` finds: each kind of damage is named, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from kcl_landing.keeping.names import named
from kcl_landing.keeping.verify import _LOST_MANIFEST
from kcl_landing.log import (
    INFO as INFO_PATH,
)
from kcl_landing.log import (
    PAGE,
    Entry,
    First,
    Format,
    Layout,
    LogInfo,
    Manifest,
    entry_path,
    first_path,
    manifest_path,
    page_path,
)
from kcl_landing.store import StoredObject
from tests.landing.logs import INFO, KEY, SHARD, STREAM, put, segment, verify, write
from tests.landing.memory_store import MemoryStore

OTHER = "shardId-000000000001"
CLEAN = "verified 6 segments, 15 records"


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    write(store, 6, children=(OTHER,))
    return store


def path(number: int) -> str:
    return f"{STREAM}/{SHARD}/{number:012d}.parquet"


def change(store: MemoryStore, where: str, content: bytes) -> None:
    store.replace(where, content)


def change_entries(store: MemoryStore, number: int, **what: object) -> None:
    where = manifest_path(*KEY)
    manifest = msgspec.json.decode(store.read(where), type=Manifest)
    entries = [
        msgspec.structs.replace(each, **what) if each.number == number else each for each in manifest.entries
    ]
    store.replace(where, msgspec.json.encode(msgspec.structs.replace(manifest, entries=tuple(entries))))


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("layout", ["log", "dated"])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_whole_log_is_clean(layout: Layout, form: Format, quick: bool) -> None:
    store, info = MemoryStore(), LogInfo("app", layout, form, "id-1")
    write(store, PAGE + 5, info=info, children=(OTHER,))
    write(store, 2, info=info, shard=OTHER)
    verdict, problems = verify(store, info=info, quick=quick)
    assert problems == []
    assert str(verdict).startswith(f"verified {PAGE + 7} segments, {3 * (PAGE + 6)} records, ")
    assert str(verdict).endswith(" bytes: clean")
    assert verdict.notes == []


@pytest.mark.parametrize("quick", [False, True])
def test_a_missing_segment_is_named_with_its_positions(store: MemoryStore, quick: bool) -> None:
    store.remove([path(2)])
    verdict, problems = verify(store, quick=quick)
    assert problems == [
        f"{STREAM}/{SHARD} segment 2 ({path(2)}): it is missing: 3 records after 6/0 up to 9/1"
    ]
    assert str(verdict).endswith(": 1 problem")


def test_a_missing_segment_that_no_manifest_knows_is_a_gap(store: MemoryStore) -> None:
    store.remove([path(2), path(3), manifest_path(*KEY)])
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} segment 2: segment 2 to 3 missing: the log has nothing between 6/0 and 12/0",
        f"{STREAM}/{SHARD} ({manifest_path(*KEY)}): {_LOST_MANIFEST}",
    ]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("where", [0.02, 0.3, 0.6, 0.99])
def test_altered_bytes(where: float, form: Format) -> None:
    store, info = MemoryStore(), LogInfo("app", "log", form, "id-1")
    write(store, 4, info=info)
    at = f"{STREAM}/{SHARD}/{2:012d}.{form}"
    content = bytearray(store.read(at))
    content[int(len(content) * where)] ^= 0x55
    change(store, at, bytes(content))
    _, problems = verify(store, info=info)
    assert problems
    assert all(f"segment 2 ({at})" in each for each in problems)
    assert any("crc" in each for each in problems)


def test_a_truncated_segment(store: MemoryStore) -> None:
    change(store, path(1), store.read(path(1))[:-7])
    _, problems = verify(store)
    assert all(f"segment 1 ({path(1)})" in each for each in problems)
    assert any("damaged" in each for each in problems)
    assert any("7 bytes" not in each and "its entry says" in each for each in problems)
    _, problems = verify(store, quick=True)
    assert len(problems) == 1
    assert "its entry says" in problems[0]


def test_swapped_segments(store: MemoryStore) -> None:
    one, other = store.read(path(1)), store.read(path(2))
    change(store, path(1), other)
    change(store, path(2), one)
    _, problems = verify(store)
    assert any(
        f"({path(1)}): it is the segment of another place: it says that it is {path(2)}" in e
        for e in problems
    )
    assert any(
        f"({path(2)}): it is the segment of another place: it says that it is {path(1)}" in e
        for e in problems
    )


def test_a_repeated_range_of_numbers(store: MemoryStore) -> None:
    footer, content = segment(3, to=4, after="9/1", last="15/1", positions=[(10, 0), (15, 1)])
    put(store, footer, content)
    again, more = segment(4, to=6, after="12/0", last="20/0", positions=[(13, 1), (20, 0)])
    put(store, again, more)
    _, problems = verify(store)
    assert any(
        "which orders/shardId-000000000000/000000000003-000000000004.parquet has in part" in e
        for e in problems
    )


def test_records_that_two_segments_have() -> None:
    store = MemoryStore()
    write(store, 2)
    put(store, *segment(2, [(6, 0), (7, 0)], after="5/1"))
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} segment 2 ({path(2)}): begins after 5/1, but the one before ends at 6/0: it repeats records"
    ]


def test_records_that_no_segment_has() -> None:
    store = MemoryStore()
    write(store, 2)
    put(store, *segment(2, [(9, 0)], after="8/0"))
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} segment 2 ({path(2)}): begins after 8/0, but the one before ends at 6/0: what is between is missing"
    ]


@pytest.mark.parametrize(
    ("positions", "after", "last", "expected"),
    [
        ([(7, 0), (7, 0), (8, 0)], "6/0", "8/0", "its records 0 and 1 do not grow: 7/0, 7/0"),
        ([(7, 0), (10, 0), (9, 0)], "6/0", "9/0", "its records 1 and 2 do not grow: 10/0, 9/0"),
        ([(7, 2), (7, 1), (9, 0)], "6/0", "9/0", "its records 0 and 1 do not grow: 7/2, 7/1"),
        ([(6, 0), (7, 0)], "6/0", "7/0", "its records are 6/0 to 7/0, and it says after 6/0 up to 7/0"),
        ([(7, 0), (12, 0)], "6/0", "9/0", "its records are 7/0 to 12/0, and it says after 6/0 up to 9/0"),
    ],
)
def test_wrong_positions(positions: list[tuple[int, int]], after: str, last: str, expected: str) -> None:
    store = MemoryStore()
    write(store, 2)
    put(store, *segment(2, positions, after=after, last=last))
    _, problems = verify(store)
    assert problems == [f"{STREAM}/{SHARD} segment 2 ({path(2)}): {expected}"]


def test_an_entry_that_says_something_else(store: MemoryStore) -> None:
    change_entries(store, 2, rows=99, crc=7)
    _, problems = verify(store)
    assert any("rows is 3, and its entry says 99" in each for each in problems)
    assert any("its entry says 7" in each for each in problems)


def test_two_applications(store: MemoryStore) -> None:
    footer, content = segment(0, shard=OTHER, application="billing")
    put(store, footer, content)
    _, problems = verify(store)
    at = f"{STREAM}/{OTHER}/{0:012d}.parquet"
    assert problems == [
        f"{STREAM}/{OTHER} segment 0 ({at}): application billing wrote it, and the log is of app"
    ]


def test_a_segment_after_the_end_of_the_shard_is_a_problem(store: MemoryStore) -> None:
    put(store, *segment(6, [(20, 0)], after="15/1"))
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} segment 6 ({path(6)}): comes after the end of the shard, segment 5"
    ]


def test_a_shard_among_its_own_descendants(store: MemoryStore) -> None:
    write(store, 2, shard=OTHER, children=(SHARD,))
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{each}: its end names it among its own descendants" for each in (SHARD, OTHER)
    ]


def test_foreign_objects_are_named_and_no_error(store: MemoryStore) -> None:
    store.create("orders/notes.txt", b"hello")
    store.create(f"{STREAM}/{SHARD}/000000000001.parquet.tmp", b"half")
    verdict, problems = verify(store)
    assert problems == []
    assert [str(each) for each in verdict.notes] == [
        "(orders/notes.txt): is no object of a landing log",
        f"({STREAM}/{SHARD}/000000000001.parquet.tmp): is no object of a landing log",
    ]


def test_a_lost_page_is_named_and_can_be_made_again() -> None:
    store = MemoryStore()
    write(store, PAGE + 5)
    at = page_path(*KEY, 0)
    page = store.read(at)
    store.remove([at])
    for quick in (False, True):
        _, problems = verify(store, quick=quick)
        assert problems == [
            f"{STREAM}/{SHARD} segment 0 ({at}): the page is lost; `verify --mend` makes it again if all its segments are there"
        ]
    _, problems = verify(store, mend=True)
    assert problems == [f"{STREAM}/{SHARD} segment 0 ({at}): the page was lost; it is there again"]
    assert store.read(at) == page
    assert verify(store)[1] == []


def test_a_page_without_one_of_its_segments() -> None:
    store = MemoryStore()
    write(store, PAGE + 5)
    at = page_path(*KEY, 0)
    page = msgspec.json.decode(store.read(at), type=list[Entry])
    store.replace(at, msgspec.json.encode([each for each in page if each.number != 7]))
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} segment 7 ({path(7)}): the page of its numbers has no entry for it"
    ]
    store.replace(at, msgspec.json.encode([*page[:8], *page[7:]]))
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} ({at}): entries 7 to 7 and 7 to 7 are not in order: readers would repeat records"
    ]


@pytest.mark.parametrize("where", ["manifest", "page", "first"])
def test_a_file_that_cannot_be_decoded_is_named(where: str) -> None:
    store = MemoryStore()
    write(store, PAGE + 5)
    at = {"manifest": manifest_path(*KEY), "page": page_path(*KEY, 0), "first": first_path(*KEY)}[where]
    store.replace(at, b"{]")
    _, problems = verify(store)
    assert any(at in each and "cannot be read" in each for each in problems)


def test_a_manifest_that_is_a_little_old_is_no_damage(store: MemoryStore) -> None:
    at = manifest_path(*KEY)
    manifest = msgspec.json.decode(store.read(at), type=Manifest)
    store.replace(at, msgspec.json.encode(msgspec.structs.replace(manifest, entries=manifest.entries[:-1])))
    verdict, problems = verify(store)
    assert problems == []
    assert "the manifest ends with 4, the log with 5" in str(verdict.notes[0])


def test_expired_segments_are_not_missed(store: MemoryStore) -> None:
    store.create(first_path(*KEY), msgspec.json.encode(First(3, last="9/1")))
    store.remove([path(0), path(1)])
    verdict, problems = verify(store)
    assert problems == []
    assert (verdict.expired, verdict.segments) == (1, 3)
    store.replace(first_path(*KEY), msgspec.json.encode(First(3, last="8/1")))
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} segment 3 ({path(3)}): begins after 9/1, but the one before ends at 8/1: what is between is missing"
    ]


def test_a_segment_that_is_written_during_verification_is_no_problem(store: MemoryStore) -> None:
    """Segment 6 comes and is in the manifest, though it was not listed."""
    store = MemoryStore()
    write(store, 3)
    listed = list(store.listing(""))

    class Older(MemoryStore):
        def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
            return iter(listed)

    write(store, 5)
    older = Older()
    older.objects = store.objects
    verdict, problems = verify(older)
    assert problems == []
    assert verdict.segments == 5


def test_names() -> None:
    dated = LogInfo("app", "dated", "parquet", "id")
    for info, number, is_end in ((INFO, 7, False), (dated, 7, False), (dated, 8, True)):
        entry = Entry(
            number, number, "1/0", "2/0", 1, 1, 1, 1_800_000_000_000, 0, children=() if is_end else None
        )
        found = named(info, entry_path(info, *KEY, entry))
        assert (found.kind, found.key, found.number, found.to) == ("segment", KEY, number, number)
    merged = named(INFO, f"{STREAM}/{SHARD}/000000000000-000000000009.parquet")
    assert (merged.kind, merged.number, merged.to) == ("segment", 0, 9)
    for where, kind in (
        (INFO_PATH, "info"),
        (manifest_path(*KEY), "manifest"),
        (page_path(*KEY, 300), "page"),
        (first_path(*KEY), "first"),
        ("_readers/etl.json", "reader"),
        (f"{STREAM}/{SHARD}/000000000001.arrow", "other"),
        ("_probe/abc", "other"),
    ):
        assert named(INFO, where).kind == kind
