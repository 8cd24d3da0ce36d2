"""The spool: trimmed on arrival, bounded, taken over after a crash, never with a gap."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from kcl_landing.positions import START
from kcl_landing.records import behind, rows_up_to, to_arrow
from kcl_spark.segments import Segment, list_segments, read_range
from kcl_spark.spool import SEGMENT_BYTES, Spool
from kcl_spark.stores import FolderStore, Grant, read_grant
from tests.spark.parts import ME, OTHER, SHARD, at, files, fill, positions, record, rows, taken

ANOTHER = object()
ROOMY = 10**9


def numbers(folder: Path, after: int, last: int) -> list[int]:
    return [
        int(number)
        for each in list_segments(folder).get(SHARD, [])
        for batch in read_range(str(each.path(folder)), at(after), at(last))
        for number in batch.column("sequence_number").to_pylist()
    ]


def test_records_arrive_as_rows() -> None:
    batch = to_arrow([taken(record(7, 2, b"\x00\xff"))], stream="words", shard_id=SHARD)
    (row,) = batch.to_pylist()
    arrived = row.pop("approximate_arrival_timestamp")
    assert arrived.isoformat() == "2025-01-01T00:00:00.250000+00:00"
    assert row == {
        "data": b"\x00\xff",
        "partition_key": "key",
        "stream": "words",
        "shard_id": SHARD,
        "sequence_number": "7",
        "sub_sequence_number": 2,
    }


def test_missing_times_stay_missing() -> None:
    batch = to_arrow(
        [taken({**record(7), "approximateArrivalTimestamp": None, "subSequenceNumber": None})],
        stream="s",
        shard_id=SHARD,
    )
    (row,) = batch.to_pylist()
    assert row["approximate_arrival_timestamp"] is None
    assert row["sub_sequence_number"] == 0


def test_records_received_before_are_trimmed_to_the_sub_sequence_number() -> None:
    records = [taken(record(*where)) for where in ((5, 0), (7, 0), (7, 1), (7, 2), (9, 0))]
    assert behind(records, START) == records
    assert behind(records, at(7, 1)) == records[3:]
    assert behind(records, at(9)) == []


def test_rows_are_cut_by_position() -> None:
    batch = to_arrow(
        [taken(record(*where)) for where in ((5, 0), (7, 0), (7, 1), (900, 0))], stream="s", shard_id=SHARD
    )
    assert [rows_up_to(batch, where) for where in (START, at(5), at(7), at(7, 1), at(899), at(900))] == [
        0,
        1,
        2,
        3,
        3,
        4,
    ]


def test_a_range_is_read_across_segments(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    fill(spool, 10, 19)
    assert numbers(tmp_path, 4, 14) == list(range(5, 15))


def test_small_arrivals_are_merged_and_large_ones_are_written_at_once(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    spool.grant(SHARD, START, ME)
    for number in range(10):
        spool.add(SHARD, rows(number, number), at(number), ME)
    assert files(spool) == []
    large = taken(record(10, 0, b"x" * SEGMENT_BYTES))
    spool.add(SHARD, to_arrow([large], stream="s", shard_id=SHARD), at(10), ME)
    assert len(files(spool)) == 1
    assert numbers(tmp_path, -1, 10) == list(range(11))


def test_segments_that_all_queries_have_committed_are_dropped(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    fill(spool, 10, 19)
    spool.reported(positions({SHARD: 19}), positions({SHARD: 12}))
    assert numbers(tmp_path, -1, 99) == list(range(10, 20))


def test_after_a_crash_the_spool_goes_on_from_what_is_committed(tmp_path: Path) -> None:
    before = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    before.grant(SHARD, START, ME)
    fill(before, 0, 9)
    fill(before, 10, 19)
    after = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    after.reported(positions({SHARD: 9}), positions({SHARD: 9}))
    assert after.grant(SHARD, at(4), ME) == at(19)
    assert read_grant(tmp_path, SHARD) == Grant(held=True, after=at(4))


def test_with_the_spool_gone_everything_after_the_commit_is_wanted_again(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    spool.reported(positions({SHARD: 30}), positions({SHARD: 9}))
    assert spool.grant(SHARD, at(4), ME) == at(9)


def test_a_gap_ends_what_can_be_taken_over(tmp_path: Path) -> None:
    before = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    before.grant(SHARD, START, ME)
    for first in (0, 10, 20):
        fill(before, first, first + 9)
    (second,) = [name for name in files(before) if name.startswith("9.")]
    (tmp_path / SHARD / second).unlink()
    after = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    assert after.grant(SHARD, START, ME) == at(9)
    assert numbers(tmp_path, -1, 99) == list(range(10))


def test_half_a_file_is_no_segment(tmp_path: Path) -> None:
    before = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    before.grant(SHARD, START, ME)
    fill(before, 0, 9)
    (name,) = files(before)
    with (tmp_path / SHARD / name).open("r+b") as file:
        file.truncate(100)
    assert Spool(FolderStore(tmp_path), max_bytes=ROOMY).grant(SHARD, START, ME) == START


def test_after_the_machine_went_down_nothing_is_taken_over(tmp_path: Path) -> None:
    before = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    before.grant(SHARD, START, ME)
    fill(before, 0, 9)
    (tmp_path / "boot").write_text("an earlier one")
    assert Spool(FolderStore(tmp_path), max_bytes=ROOMY).grant(SHARD, START, ME) == START


def test_a_lease_that_comes_back_later_in_the_shard_begins_there(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=ROOMY)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    spool.revoke(SHARD, ME)
    assert not read_grant(tmp_path, SHARD).held
    assert spool.grant(SHARD, at(500), ANOTHER) == at(500)
    spool.revoke(SHARD, ME)  # the one before is late
    assert read_grant(tmp_path, SHARD) == Grant(held=True, after=at(500))


def test_a_full_spool_holds_back_those_who_had_their_share(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=5_000)
    for shard in (SHARD, OTHER):
        spool.grant(shard, START, ME)
    spool.add(SHARD, rows(0, 99), at(99), ME)
    assert spool.is_full_for(SHARD)
    assert not spool.is_full_for(OTHER)
    spool.flush(SHARD)
    spool.reported({}, positions({SHARD: 99}))
    assert not spool.is_full_for(SHARD)


def test_a_shard_that_a_planned_batch_waits_for_is_never_held_back(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path), max_bytes=1)
    spool.grant(SHARD, START, ME)
    spool.add(SHARD, rows(0, 99), at(99), ME)
    assert spool.is_full_for(SHARD)
    spool.reported(positions({SHARD: 100}), {})
    assert not spool.is_full_for(SHARD)


class Full(FolderStore):
    """A folder whose disk is full, while it is said to be."""

    full = True

    def put(self, *given: Any, **named: Any) -> Segment:
        self._refuse()
        return super().put(*given, **named)

    def note(self, shard_id: str, grant: Grant) -> None:
        self._refuse()
        super().note(shard_id, grant)

    def set_horizon(self, arrived_ms: int) -> None:
        self._refuse()
        super().set_horizon(arrived_ms)

    def _refuse(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_holds_the_shards_back_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcl_spark.spool.LINGER_S", 0)
    monkeypatch.setattr("kcl_spark.spool._HORIZON_S", 0)
    spool = Spool(store := Full(tmp_path), max_bytes=ROOMY)
    store.full = False
    spool.set_horizon(5)
    store.full = True
    spool.grant(SHARD, START, ME)
    assert spool.trouble
    assert not spool.must_wait(SHARD)
    fill(spool, 0, 9)
    assert spool.must_wait(SHARD)  # nothing more is taken into memory
    spool.set_horizon(6)
    assert store.horizon_ms() == 5
    with pytest.raises(OSError, match="No space"):
        spool.set_horizon(4)
    store.full = False
    spool.flush_aged()
    assert spool.must_wait(SHARD)  # it tries once a second
    monkeypatch.setattr("kcl_spark.spool._AGAIN_S", 0)
    spool.flush_aged()
    spool.set_horizon(7)
    assert not spool.trouble
    assert not spool.must_wait(SHARD)
    assert (numbers(tmp_path, -1, 99), store.horizon_ms()) == (list(range(10)), 7)
    assert read_grant(tmp_path, SHARD).held


def test_the_end_of_a_lease_is_noted_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcl_spark.spool._AGAIN_S", 0)
    store = Full(tmp_path)
    store.full = False
    spool = Spool(store, max_bytes=ROOMY)
    spool.grant(SHARD, START, ME)
    store.full = True
    spool.revoke(SHARD, ME)
    assert read_grant(tmp_path, SHARD).held
    store.full = False
    spool.flush_aged()
    assert not read_grant(tmp_path, SHARD).held


@pytest.mark.parametrize("name", ["lease.json", ".next", "x~y.arrow"])
def test_other_files_are_no_segments(name: str, tmp_path: Path) -> None:
    (tmp_path / SHARD).mkdir()
    (tmp_path / SHARD / name).write_text("{}")
    assert list_segments(tmp_path) == {SHARD: []}
