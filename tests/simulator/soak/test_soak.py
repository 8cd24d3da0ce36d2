"""What a worker takes in memory does not grow: a short soak each day, the long one in `make prove`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import pytest

from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.leases.row import Row
from kcl_daemon.ports import FetchedRecords, Kinesis, StreamRef
from kcl_protocol.messages import Record
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.rules.deliveries import Incarnation
from tests.simulator.soak.account import SoakAccount, data_of
from tests.simulator.soak.play import Load, _until_done, soak
from tests.simulator.trace import Trace
from tests.simulator.violation import Violation
from tests.unit.simulator.helpers import violation_in

ROOT: Final = Path(__file__).parents[3]
RSS_RATIO_MOST: Final = 1.1
# Allocations that may be there more at the end than after five minutes, for each record written. What is on its way at that moment
# differs by some hundreds; a leak of one object for each batch or each checkpoint is more than that.
GROWN_MOST: Final = 0.3
GROWN_IN_AN_HOUR_MOST: Final = 0.05
SHORT: Final = Load(shards=4, minutes=15.0)


class HoardingKinesis(MemoryKinesis):
    """Keeps every answer."""

    def __init__(self, kinesis: MemoryKinesis) -> None:
        super().__init__(kinesis.model)
        self._answers: list[FetchedRecords] = []

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        fetched = await super().get_records(stream, shard_id, iterator, limit)
        self._answers.append(fetched)
        return fetched


def hoarding(kinesis: Kinesis) -> Kinesis:
    assert isinstance(kinesis, MemoryKinesis)
    return HoardingKinesis(kinesis)


@pytest.mark.parametrize("mode", [RetrievalMode.POLLING, RetrievalMode.FANOUT])
def test_memory_stands_still_under_load_and_faults(mode: RetrievalMode) -> None:
    figures = soak(Load(shards=SHORT.shards, minutes=SHORT.minutes, mode=mode))
    print(figures.shown())  # noqa: T201 - the figures, for people who run this with -s
    assert figures.records > 3_000
    assert sum(figures.faults.values()) > figures.calls * 0.1
    assert figures.grown_per_record < GROWN_MOST, figures.shown()


def test_a_leak_is_seen() -> None:
    figures = soak(Load(shards=2, minutes=10.0), kinesis=hoarding)
    assert figures.grown_per_record > 1.3 * GROWN_MOST, figures.shown()


BYTES: Final = 40


class Told:
    """The account of one shard of three records, and what it is told of that shard."""

    def __init__(self) -> None:
        self.account = SoakAccount(Trace(), lease_table="leases", record_bytes=BYTES)
        for _ in range(3):
            self.account.put("shard")
        self.stores("TRIM_HORIZON")

    def stores(self, checkpoint: str) -> None:
        """The lease row says so."""
        row: Row = {"checkpoint": checkpoint, "checkpointSubSequenceNumber": 0}
        self.account.row_written(RowWrite(0.0, "a", "leases", "shard", None, row))

    def begins(self, checkpoint: str = "TRIM_HORIZON") -> Incarnation:
        """A child is told where it starts."""
        child = self.account.started("shard", "a")
        self.account.initialized(child, ExtendedSequenceNumber(checkpoint))
        return child

    def gives(self, child: Incarnation, *serials: int) -> None:
        """The child is given these records."""
        records = [Record(data_of("shard", serial, BYTES), "k", str(serial)) for serial in serials]
        self.account.delivered(child, records)

    def checkpoints(self, child: Incarnation, checkpoint: str, stored: str) -> None:
        """The child asks for a checkpoint and is told that it is stored; the row says what is."""
        position = ExtendedSequenceNumber(checkpoint)
        self.account.asked(child, position)
        self.stores(stored)
        self.account.answered(child, position, None)


def in_order(reported: Told) -> None:
    first = reported.begins()
    reported.gives(first, 1, 2)
    reported.checkpoints(first, "2", "2")
    reported.gives(first, 3)
    second = reported.begins("2")
    reported.gives(second, 3)
    reported.checkpoints(second, "3", "3")
    assert reported.account.all_done
    assert (reported.account.written, reported.account.repeats) == (3, 1)


def back(reported: Told) -> None:
    reported.stores("2")
    reported.stores("1")


def where_nobody_asked(reported: Told) -> None:
    reported.stores("2")
    reported.begins("2")


def at_the_beginning_again(reported: Told) -> None:
    child = reported.begins()
    reported.gives(child, 1)
    reported.checkpoints(child, "1", "1")
    reported.begins()


COURSES: Final[list[tuple[Callable[[Told], object], str | None]]] = [
    (in_order, None),
    (back, "checkpoint_went_back"),
    (where_nobody_asked, "started_elsewhere"),
    (at_the_beginning_again, "started_elsewhere"),
    (lambda reported: reported.begins("1"), "started_ahead"),
    (lambda reported: reported.gives(reported.begins(), 2), "wrong_record"),
    (lambda reported: reported.gives(reported.begins(), 1, 3), "wrong_record"),
    (lambda reported: reported.gives(reported.begins(), 1, 1), "wrong_record"),
    (lambda reported: reported.checkpoints(reported.begins(), "3", "2"), "checkpoint_not_stored"),
    (lambda reported: reported.account.shard_ended(reported.begins()), "ended_too_early"),
    (lambda reported: reported.account.started("other", "a"), "unknown_shard"),
]


@pytest.mark.parametrize(("course", "violation"), COURSES)
def test_each_rule_of_the_account_can_be_broken(
    course: Callable[[Told], object], violation: str | None
) -> None:
    assert violation_in(lambda: course(Told())) == violation


def test_a_soak_that_does_not_come_to_rest_is_noticed() -> None:
    async def rest() -> None:
        with anyio.fail_after(600):
            await _until_done(Told().account)

    with pytest.raises(Violation, match="no_rest"):
        run_virtual(rest)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", [(), ("--fan-out",)], ids=["polling", "fan-out"])
def test_an_hour_of_64_shards(way: tuple[str, ...], record_property: Callable[[str, object], None]) -> None:
    """In a process of its own, so that nothing but the soak is in its memory."""
    command = [
        sys.executable,
        "-m",
        "tests.simulator.soak.play",
        "--shards",
        "64",
        "--minutes",
        "60",
        "--json",
        *way,
    ]
    reported = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    )
    print(reported["shown"])  # noqa: T201 - the figures, for the notes of a release
    record_property("soak", reported["shown"])
    assert reported["rss_ratio"] < RSS_RATIO_MOST, reported["shown"]
    assert reported["grown_per_record"] < GROWN_IN_AN_HOUR_MOST, reported["shown"]
