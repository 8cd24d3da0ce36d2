"""Where segments and notes of leases are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kcl_landing.positions import START
from kcl_landing.records import SCHEMA
from kcl_spark.segments import read_range
from kcl_spark.stores import FolderStore, Grant
from tests.spark.parts import SHARD, at, rows


def table(first: int, last: int) -> object:
    return pa.Table.from_batches([rows(first, last)], SCHEMA)


def test_another_process_sees_segments_in_order_and_the_newest_note(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.recover()
    second = store.put(SHARD, at(9), at(100), table(10, 100))
    first = store.put(SHARD, START, at(9), table(0, 9))
    for number in range(2):
        store.note(SHARD, Grant(held=number % 2 == 1, after=at(number, 3)))
    seen = FolderStore(tmp_path).poll()
    assert seen[SHARD].segments == [first, second]
    assert seen[SHARD].grant == Grant(held=True, after=at(1, 3))
    numbers = [
        int(number)
        for batch in read_range(store.location(second), at(20), at(22))
        for number in batch.column("sequence_number").to_pylist()
    ]
    assert numbers == [21, 22]
    store.drop(first)
    store.drop(first)
    assert [each.last for each in store.poll()[SHARD].segments] == [at(100)]


def test_positions_that_are_too_long_for_a_name_are_in_the_file(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.recover()
    first, last = at(int("1" + 4_298 * "7")), at(int("1" + 4_298 * "8"), 3)
    segments = [
        store.put(SHARD, START, first, table(0, 9)),
        store.put(SHARD, first, last, table(10, 19)),
    ]
    assert store.poll()[SHARD].segments == segments
    half = FolderStore(tmp_path)
    with segments[1].path(tmp_path).open("r+b") as file:
        file.truncate(500)
    half.recover()
    assert half.poll()[SHARD].segments == segments[:1]
    store.drop(segments[0])
    assert store.poll()[SHARD].segments == []


def test_where_the_system_does_not_tell_of_a_reboot_nothing_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcl_spark.stores._BOOT_ID", None)
    before = FolderStore(tmp_path)
    before.recover()
    before.put(SHARD, START, at(9), table(0, 9))
    after = FolderStore(tmp_path)
    after.recover()
    assert after.poll() == {}, "the records are delivered again from the checkpoint"


def test_files_of_an_engine_before_are_taken_over_but_no_half_file_and_no_lease(tmp_path: Path) -> None:
    before = FolderStore(tmp_path)
    before.recover()
    whole = before.put(SHARD, START, at(9), table(0, 9))
    half = before.put(SHARD, at(9), at(19), table(10, 19))
    before.note(SHARD, Grant(held=True, after=at(4)))
    with half.path(tmp_path).open("r+b") as file:
        file.truncate(100)
    after = FolderStore(tmp_path)
    after.recover()
    seen = after.poll()[SHARD]
    assert seen.segments == [whole]
    assert not seen.grant.held
    assert not half.path(tmp_path).exists()
