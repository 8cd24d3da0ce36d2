"""The word-count processor, driven without a daemon."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kcl_client.testing import Ending, Report, drive
from kcl_local.demo import wordcount
from kcl_local.demo.check import DIRECTORY_VARIABLE, CountedRecord, LedgerEntry, LedgerReader
from kcl_local.demo.wordcount import CHECKPOINT_EVERY_S, WordCount


class Time:
    """Passes by so much whenever somebody looks at it."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += self.step_s
        return self._now_s


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Stands still unless the test has it pass."""
    standing = Time()
    monkeypatch.setattr(wordcount, "monotonic_s", standing)
    return standing


def count(directory: Path, *payloads: bytes, ending: Ending) -> tuple[Report, list[LedgerEntry]]:
    with closing(WordCount(directory)) as processor:
        report = drive(processor, payloads, shard_id="shardId-000000000007", batch_size=2, ending=ending)
    return report, list(LedgerReader(directory).new_entries())


def test_the_words_of_each_record_are_in_the_ledger(tmp_path: Path) -> None:
    _, entries = count(tmp_path, b"to be or", b"not to be", b"\xff", ending=Ending.CLOSED)
    counted: list[CountedRecord] = [record for entry in entries for record in entry.records]
    assert [record.words for record in counted] == [
        {"to": 1, "be": 1, "or": 1},
        {"not": 1, "to": 1, "be": 1},
        {},
    ]
    assert {entry.shard_id for entry in entries} == {"shardId-000000000007"}


def test_the_end_of_a_shard_is_noted_before_it_is_checkpointed(tmp_path: Path) -> None:
    report, entries = count(tmp_path, b"a", ending=Ending.SHARD_ENDED)
    assert [entry.kind for entry in entries] == ["start", "records", "ended", "checkpoint"]
    assert report.last_checkpoint is not None
    assert report.last_checkpoint.is_shard_end


def test_a_stop_checkpoints_everything_so_far(tmp_path: Path) -> None:
    report, entries = count(tmp_path, b"a", b"b", b"c", ending=Ending.SHUTDOWN)
    assert [entry.kind for entry in entries] == [
        "start",
        "records",
        "records",
        "stopping",
        "checkpoint",
        "lost",
    ]
    assert str(report.last_checkpoint) == entries[2].records[-1].sequence_number


def test_a_lost_lease_checkpoints_nothing(tmp_path: Path) -> None:
    report, entries = count(tmp_path, b"a", ending=Ending.LEASE_LOST)
    assert entries[-1].kind == "lost"
    assert report.checkpoints == ()


def test_batches_in_a_row_share_a_checkpoint(tmp_path: Path, time: Time) -> None:
    time.step_s = CHECKPOINT_EVERY_S / 4
    report, entries = count(tmp_path, *[b"x"] * 12, ending=Ending.CLOSED)
    assert [entry.kind for entry in entries] == ["start", *["records"] * 4, "checkpoint", *["records"] * 2]
    assert [str(position) for position in report.checkpoints] == [entries[4].records[-1].sequence_number]


def test_batches_at_the_same_moment_need_no_checkpoint(tmp_path: Path) -> None:
    report, _ = count(tmp_path, *[b"x"] * 20, ending=Ending.CLOSED)
    assert report.checkpoints == ()


def test_without_a_ledger_it_says_how_it_is_to_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    with pytest.raises(SystemExit, match="kcl-daemon demo"):
        wordcount.main()
