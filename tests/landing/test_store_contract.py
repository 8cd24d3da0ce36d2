"""What every LogStore promises: one suite over the fake of the tests and all adapters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import pytest

from kcl_landing.store import LogStore, NoObject, probe

Promise: TypeAlias = Callable[[LogStore], None]
CONTENT = bytes(range(256)) * 5000


def paths(store: LogStore, folder: str, after: str = "") -> list[str]:
    return [each.path for each in store.listing(folder, after=after)]


def test_a_created_object_is_there_whole(log_store: LogStore) -> None:
    assert log_store.create("orders/shardId-1/000000000000.parquet", memoryview(CONTENT))
    assert log_store.read("orders/shardId-1/000000000000.parquet") == CONTENT


def test_an_object_that_is_there_is_not_created_again(log_store: LogStore) -> None:
    assert log_store.create("a/b", b"first")
    assert not log_store.create("a/b", b"second")
    assert log_store.read("a/b") == b"first"


def test_an_object_that_was_removed_can_be_created(log_store: LogStore) -> None:
    log_store.create("a/b", b"first")
    log_store.remove(["a/b"])
    assert log_store.create("a/b", b"second")


def test_replace(log_store: LogStore) -> None:
    log_store.replace("a/b", b"first")
    assert log_store.read("a/b") == b"first"
    log_store.replace("a/b", CONTENT)
    assert log_store.read("a/b") == CONTENT
    assert not log_store.create("a/b", b"third")


def test_reading_an_object_that_is_not_there_raises(log_store: LogStore) -> None:
    log_store.create("a/b", b"")
    for path in ("a", "a/c", "a/b/c", "x/y"):
        with pytest.raises(NoObject):
            log_store.read(path)
    assert log_store.read("a/b") == b""


def test_listing_is_by_path(log_store: LogStore) -> None:
    names = [
        "a-b",
        "a/b",
        "a/b-c",
        "a/b.json",
        "a/b0/c",
        "ab/c",
        "b/dt=2026-11-22/hour=10/s-0",
        "b/_ends/s-1",
    ]
    for index, name in enumerate(names):
        log_store.create(name, b"x" * index)
    log_store.remove(["_unknown"])
    assert paths(log_store, "") == sorted(names)
    assert paths(log_store, "a") == ["a/b", "a/b-c", "a/b.json", "a/b0/c"]
    assert paths(log_store, "b") == ["b/_ends/s-1", "b/dt=2026-11-22/hour=10/s-0"]
    assert paths(log_store, "nowhere") == paths(log_store, "a-b") == []
    assert {each.path: each.size_bytes for each in log_store.listing("a")}["a/b-c"] == 2


def test_listing_after(log_store: LogStore) -> None:
    names = ["a/0/x", "a/1/x", "a/1/y", "a/10/x", "a/2", "a/3/z"]
    for name in names:
        log_store.create(name, b"")
    for after in [
        "a",
        "a/",
        "a/0",
        "a/1",
        "a/1/",
        "a/1/x",
        "a/1/xx",
        "a/10",
        "a/2",
        "a/20",
        "a/3",
        "a/3/z",
        "b",
    ]:
        assert paths(log_store, "a", after) == [name for name in names if name > after], after


def test_listing_of_many(log_store: LogStore) -> None:
    names = [f"many/{number:012d}" for number in range(1010)]
    with ThreadPoolExecutor(8) as workers:
        assert all(workers.map(partial(log_store.create, content=b""), names))
    assert paths(log_store, "many") == names
    log_store.remove(names[:-1])
    assert paths(log_store, "many") == names[-1:]


def test_removing_what_is_not_there(log_store: LogStore) -> None:
    log_store.create("a/b", b"")
    log_store.remove(["a/b", "a/c", "x/y"])
    log_store.remove([])
    assert paths(log_store, "") == []


def test_of_many_writers_one_creates(log_store: LogStore) -> None:
    contents = [b"%d " % number * 20000 for number in range(32)]
    with ThreadPoolExecutor(32) as writers:
        won = list(writers.map(partial(log_store.create, "raced/by/32"), contents))
    assert won.count(True) == 1
    assert log_store.read("raced/by/32") == contents[won.index(True)]


def test_readers_see_one_content_or_the_other(log_store: LogStore) -> None:
    contents = [bytes([number]) * 200_000 for number in range(8)]
    log_store.replace("raced", contents[0])
    with ThreadPoolExecutor(4) as workers:
        written = [workers.submit(log_store.replace, "raced", content) for content in contents]
        read = [workers.submit(log_store.read, "raced") for _ in range(16)]
    assert all(each.exception() is None for each in written)
    assert all(each.result() in contents for each in read)


def test_the_probe_is_content_and_leaves_nothing(log_store: LogStore) -> None:
    probe(log_store)
    assert paths(log_store, "") == []
