"""The ledger files: written by processes that may be killed, read while they grow."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from kcl_local.demo.check import SUFFIX, CountedRecord, LedgerReader, LedgerWriter

SHARD = "shardId-000000000003"


@contextmanager
def writer(directory: Path) -> Generator[LedgerWriter]:
    with closing(LedgerWriter(directory, SHARD)) as ledger:
        yield ledger


def test_an_entry_of_the_ledger_is_read_once(tmp_path: Path) -> None:
    reader = LedgerReader(tmp_path)
    records = [CountedRecord("1" * 56, {"the": 2}), CountedRecord("2" * 56, {})]
    with writer(tmp_path) as ledger:
        ledger.note("start")
        ledger.records(12.5, records)
        start, batch = reader.new_entries()
        assert (start.kind, start.shard_id, start.records) == ("start", SHARD, ())
        assert (batch.kind, batch.at_s, batch.records) == ("records", 12.5, tuple(records))
        assert batch.process == ledger.path.name
        assert list(reader.new_entries()) == []
        ledger.note("ended")
        assert [entry.kind for entry in reader.new_entries()] == ["ended"]


def test_each_process_has_its_own_file(tmp_path: Path) -> None:
    with writer(tmp_path) as one, writer(tmp_path) as other:
        one.note("start")
        other.note("start")
        processes = {entry.process for entry in LedgerReader(tmp_path).new_entries()}
    assert processes == {one.path.name, other.path.name}
    assert len(processes) == 2


def test_an_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    line = b'["start",1.0,"shardId-0",[]]\n'
    path.write_bytes(line + line[:9])
    reader = LedgerReader(tmp_path)
    assert len(list(reader.new_entries())) == 1
    assert list(reader.new_entries()) == []
    path.write_bytes(line + line)
    assert len(list(reader.new_entries())) == 1


def test_times_of_notes_never_go_back(tmp_path: Path) -> None:
    with writer(tmp_path) as ledger:
        for _ in range(5):
            ledger.note("checkpoint")
    times = [entry.at_s for entry in LedgerReader(tmp_path).new_entries()]
    assert times == sorted(times)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a ledger\n")
    assert list(LedgerReader(tmp_path).new_entries()) == []
