"""Where segments are: the same promises from a folder of this machine and from any file system of pyarrow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from kcl_landing.positions import START
from kcl_landing.records import SCHEMA
from kcl_spark.positions import to_offset
from kcl_spark.segments import read_range
from kcl_spark.source import INLINE_MOST_BYTES, KclStreamReader, Task
from kcl_spark.spool import Spool
from kcl_spark.stores import FolderStore, Grant, SharedStore, Store, open_store
from tests.spark.parts import ME, OTHER, SHARD, at, fill, positions, rows

KINDS = ("folder", "shared")


def open_kind(kind: str, folder: Path) -> Store:
    store = open_store(str(folder) if kind == "folder" else folder.as_uri())
    assert isinstance(store, FolderStore if kind == "folder" else SharedStore)
    return store


def table(first: int, last: int) -> object:
    return pa.Table.from_batches([rows(first, last)], SCHEMA)


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_sees_segments_in_order_and_the_newest_note(kind: str, tmp_path: Path) -> None:
    store = open_kind(kind, tmp_path)
    store.recover()
    second = store.put(SHARD, at(9), at(100), table(10, 100))
    first = store.put(SHARD, START, at(9), table(0, 9))
    for number in range(12):  # past ten: names do not sort as numbers do
        store.note(SHARD, Grant(held=number % 2 == 1, after=at(number, 3)))
    store.note(OTHER, Grant(held=True))
    seen = open_kind(kind, tmp_path).poll()
    assert seen[SHARD].segments == [first, second]
    assert seen[SHARD].grant == Grant(held=True, after=at(11, 3))
    if kind == "shared":
        assert seen[OTHER].grant == Grant(held=True)
    numbers = [
        int(number)
        for batch in read_range(store.location(second), at(20), at(22))
        for number in batch.column("sequence_number").to_pylist()
    ]
    assert numbers == [21, 22]
    store.drop(first)
    store.drop(first)
    assert [each.last for each in store.poll()[SHARD].segments] == [at(100)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_engine_before_left_is_taken_over_but_no_half_file_and_no_lease(
    kind: str, tmp_path: Path
) -> None:
    before = open_kind(kind, tmp_path)
    before.recover()
    whole = before.put(SHARD, START, at(9), table(0, 9))
    half = before.put(SHARD, at(9), at(19), table(10, 19))
    before.note(SHARD, Grant(held=True, after=at(4)))
    with half.path(tmp_path).open("r+b") as file:
        file.truncate(100)
    after = open_kind(kind, tmp_path)
    after.recover()
    seen = after.poll()[SHARD]
    assert seen.segments == [whole]
    assert not seen.grant.held
    assert not half.path(tmp_path).exists()


def test_a_shared_file_counts_only_when_it_is_whole(tmp_path: Path) -> None:
    """Where files grow while others look."""
    store = SharedStore(tmp_path.as_uri())
    segment = store.put(SHARD, START, at(9), table(0, 9))
    content = segment.path(tmp_path).read_bytes()
    segment.path(tmp_path).write_bytes(content[:-1])
    assert SHARD not in store.poll()
    segment.path(tmp_path).write_bytes(content)
    assert store.poll()[SHARD].segments == [segment]


def test_tasks_can_carry_the_records_themselves(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=10**9)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    fill(spool, 10, 19)
    reader = KclStreamReader(
        {"spool": str(tmp_path), "inline": "true", "maxBytesPerTrigger": str(10**9)},
        ["data", "key", "stream", "shard", "sequence", "sub", "arrived"],
    )
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxBytes)
    assert limit.max_bytes == INLINE_MOST_BYTES  # Spark's driver holds them several times
    (task,) = reader.partitions(to_offset(positions({SHARD: 4})), to_offset(positions({SHARD: 14})))
    for stored_shard in spool.store.poll().values():
        for segment in stored_shard.segments:
            spool.store.drop(segment)
    assert isinstance(task, Task)
    read = [number for batch in reader.read(task) for number in batch.column("sequence").to_pylist()]
    assert read == [str(number) for number in range(5, 15)]


def test_batches_are_planned_from_a_shared_folder_as_from_a_local_one(tmp_path: Path) -> None:
    spool = Spool(SharedStore((tmp_path / "s").as_uri()), max_bytes=10**9)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    reader = KclStreamReader({"spool": (tmp_path / "s").as_uri()}, SCHEMA.names)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(10**9))
    assert end == to_offset(positions({SHARD: 9}))
    (task,) = reader.partitions(reader.initialOffset(), end)
    assert sum(batch.num_rows for batch in reader.read(task)) == 10
    spool.revoke(SHARD, ME)
    fill_again = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(10**9))
    assert fill_again == reader.initialOffset()  # of a lease that went, nothing new is planned
