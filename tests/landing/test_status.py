"""What `landing status` says of shards and readers, from manifests only."""

from __future__ import annotations

import msgspec
import pytest

from kcl_landing.keeping.read import report
from kcl_landing.keeping.status import Unread, status
from kcl_landing.log import PAGE, Entry, Manifest, manifest_path
from tests.landing.logs import BEGIN_MS, INFO, KEY, SHARD, STREAM, write
from tests.landing.memory_store import MemoryStore

AT = f"{STREAM}/{SHARD}"
OTHER = "shardId-000000000001"


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    write(store, PAGE + 5)
    write(store, 3, shard=OTHER, children=("shardId-000000000002",))
    return store


def test_shards(store: MemoryStore) -> None:
    one, other = status(store, INFO).shards
    assert (one.stream, one.shard, one.first, one.number, one.segments) == (
        STREAM,
        SHARD,
        0,
        PAGE + 4,
        PAGE + 5,
    )
    stored = sum(len(content) for path, content in store.objects.items() if path.startswith(AT))
    assert (one.rows, one.size_bytes) == (3 * (PAGE + 5), stored)
    assert (one.newest_ms, one.children, one.behind_ms, one.trouble) == (
        BEGIN_MS + 1000 * (PAGE + 4),
        None,
        0,
        "",
    )
    assert (other.segments, other.rows, other.children) == (3, 6, ("shardId-000000000002",))
    assert [each.shard for each in status(store, INFO, shard=OTHER).shards] == [OTHER]
    assert status(store, INFO, stream="else").shards == ()


def test_no_segment_is_read_or_listed(store: MemoryStore) -> None:
    store.calls.clear()
    status(store, INFO)
    assert not [path for _operation, path in store.calls if path.startswith(STREAM)]
    assert sum(operation == "read" for operation, _path in store.calls) == 3  # two manifests and a page


@pytest.mark.parametrize(
    ("done", "segments", "oldest"),
    [({}, PAGE + 5, 0), ({AT: 7}, PAGE - 2, 7), ({AT: PAGE + 3}, 2, PAGE + 3), ({AT: PAGE + 5}, 0, None)],
)
def test_readers(store: MemoryStore, done: dict[str, int], segments: int, oldest: int | None) -> None:
    report(store, "etl", {**done, f"{STREAM}/{OTHER}": 3}, at_ms=77)
    found = status(store, INFO)
    unread = found.shards[0].readers["etl"]
    assert (unread.segments, unread.rows) == (segments, 3 * segments)
    assert unread.oldest_ms == (0 if oldest is None else BEGIN_MS + 1000 * oldest)
    assert (found.shards[1].readers["etl"], found.readers[0].at_ms) == (Unread(), 77)
    assert found.unread("etl") == unread


def test_a_manifest_that_is_lost_or_damaged(store: MemoryStore) -> None:
    """Pages are there, so something is known."""
    store.replace(manifest_path(STREAM, OTHER), b"{")
    store.remove([manifest_path(*KEY)])
    one, other = status(store, INFO).shards
    assert "no manifest" in one.trouble
    assert (one.segments, one.number) == (PAGE, PAGE - 1)
    assert "cannot be read" in other.trouble
    assert other.segments == 0


def test_a_page_that_was_closed_before_the_manifest_moved_on_counts_once(store: MemoryStore) -> None:
    at = manifest_path(*KEY)
    newest = msgspec.json.decode(store.read(at), type=Manifest)
    page = store.read(f"_manifests/{AT}/000000000000.json")
    entries = msgspec.json.decode(page, type=tuple[Entry, ...])
    store.replace(at, msgspec.json.encode(msgspec.structs.replace(newest, entries=entries)))
    assert status(store, INFO).shards[0].segments == PAGE
