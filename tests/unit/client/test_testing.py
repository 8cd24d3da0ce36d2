"""The daemon in memory that users test with."""

from __future__ import annotations

import sys

import pytest

from kcl_client import Batch, Checkpointer, ExtendedSequenceNumber, ShardStart
from kcl_client.testing import Ending, drive, make_record
from kcl_protocol.messages import Initialize, LeaseLost, ProcessRecords, ShardEnded, ShutdownRequested, Status
from tests.unit.client.support import Handled, Idle


def test_records_come_in_batches_with_rising_positions() -> None:
    batches: list[list[bytes]] = []
    positions: list[ExtendedSequenceNumber] = []

    def handle(batch: Batch, _checkpointer: Checkpointer) -> None:
        batches.append([record.data for record in batch])
        positions.extend(record.position for record in batch)

    drive(Handled(handle), [b"a", "b", b"c"], batch_size=2)
    assert batches == [[b"a", b"b"], [b"c"]]
    assert positions == sorted(set(positions))


def test_a_made_record_arrives_as_made() -> None:
    seen: list[tuple[str, str | None, int, int | None]] = []

    def handle(batch: Batch, _checkpointer: Checkpointer) -> None:
        seen.extend(
            (record.text(), record.partition_key, record.sub_sequence_number, record.arrival_ms)
            for record in batch
        )

    drive(Handled(handle), [make_record("ä", partition_key="ö", sub_sequence_number=4, arrival_ms=5)])
    assert seen == [("ä", "ö", 4, 5)]


@pytest.mark.parametrize("ending", Ending)
def test_each_ending_says_its_messages(ending: Ending) -> None:
    report = drive(Idle(), ["a"], ending=ending)
    said = [m for m in report.messages if isinstance(m, LeaseLost | ShardEnded | ShutdownRequested)]
    assert tuple(said) == ending.messages


def test_a_report_has_both_sides_in_order() -> None:
    first, second, third, fourth = drive(Idle(), ["a"], ending=Ending.CLOSED).messages
    assert isinstance(first, Initialize)
    assert isinstance(third, ProcessRecords)
    assert (second, fourth) == (Status("initialize"), Status("processRecords"))


def test_an_exception_is_in_the_report() -> None:
    report = drive(Handled(lambda _batch, _checkpointer: next(iter(()))), ["a"])
    assert isinstance(report.exception, RuntimeError)
    assert report.exit_code == 70
    assert report.last_checkpoint is None


@pytest.mark.parametrize(("wish", "code"), [(3, 3), (None, 0), ("text", 1)])
def test_an_exit_is_in_the_report(wish: int | str | None, code: int) -> None:
    report = drive(Handled(lambda _batch, _checkpointer: sys.exit(wish)), ["a"])
    assert (report.exit_code, type(report.exception)) == (code, SystemExit)


@pytest.mark.parametrize("number", ["6", "9", "99"])
def test_a_position_outside_what_is_open_is_refused_as_by_kcl(number: str) -> None:
    position = ExtendedSequenceNumber(number)
    report = drive(
        Handled(lambda _batch, checkpointer: checkpointer.checkpoint(position)),
        [make_record("a", sequence_number="8")],
        start=ExtendedSequenceNumber("7"),
        ending=Ending.CLOSED,
    )
    assert report.refusals == ("IllegalArgumentException",)


def test_the_start_is_reported() -> None:
    starts: list[ShardStart] = []

    class Starting(Idle):
        def initialize(self, start: ShardStart) -> None:
            starts.append(start)

    drive(Starting(), [], start=ExtendedSequenceNumber("7", 2))
    assert starts == [ShardStart("shardId-000000000000", ExtendedSequenceNumber("7", 2))]


def test_a_batch_size_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        drive(Idle(), ["a"], batch_size=0)
