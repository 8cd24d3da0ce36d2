"""What is checked while the daemon runs: each rule is broken once in the daemon, found, told of, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.consumer.connection import ChildConnection
from kcl_daemon.consumer.lanes import ShardLanes
from kcl_daemon.errors import Invariant, InvariantViolated
from kcl_daemon.fleet.lease_renewer import HeldLease, LeaseRenewer
from kcl_daemon.leases.lease import CheckpointWindow, Lease
from kcl_daemon.leases.row import Row, RowUpdate
from kcl_daemon.records.lane_window import LaneWindow
from kcl_daemon.records.payload import Payload
from kcl_daemon.retrieval.byte_budget import ByteBudget, Reservation
from kcl_daemon.retrieval.source import DeliveryBatch
from kcl_daemon.worker import Worker
from kcl_protocol.conversation import DaemonSide
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.loop import at_once
from tests.unit.consumer.poison_stage import Stage, Ways, perform, until

Position = ExtendedSequenceNumber
Broken = pytest.MonkeyPatch
Scene = Callable[[Stage], Awaitable[None]]


def words(*numbers: int) -> list[str]:
    return [f"word {number}" for number in numbers]


def take_the_lease_away(stage: Stage) -> None:
    """Somebody else writes its row; it stays this worker's, who claims it again."""
    (row,) = at_once(stage.leases.scan())
    counter = row["leaseCounter"]
    assert isinstance(counter, int)
    at_once(stage.leases.update(RowUpdate(str(row["leaseKey"]), put={"leaseCounter": counter + 5})))


async def more_records(stage: Stage) -> None:
    stage.put(words(5, 6))
    await until(lambda: bool(stage.reported("invariant_violated")), 300)


async def another_child(stage: Stage) -> None:
    stage.children.children[-1].end(1)
    stage.put(words(5, 6))
    await until(lambda: bool(stage.reported("invariant_violated")), 300)


async def another_claim(stage: Stage) -> None:
    take_the_lease_away(stage)
    await more_records(stage)


async def another_claim_while_a_child_hangs(stage: Stage) -> None:
    stage.ways.dies_at, stage.ways.hangs = (lambda text: True), True
    stage.put(words(4))
    await anyio.sleep(5)
    await another_claim(stage)
    stage.ways.dies_at = lambda text: False


def counter_goes_back(broken: Broken) -> Scene:
    parsed = LeaseRenewer._parsed

    def older(renewer: LeaseRenewer, held: HeldLease, row: Row | None) -> Lease:
        lease = parsed(renewer, held, row)
        return replace(lease, lease_counter=lease.lease_counter - 3)

    broken.setattr(LeaseRenewer, "_parsed", older)
    return more_records


def nobody_waits_for_the_former_child(broken: Broken) -> Scene:
    found = Worker.on_lease_found

    def at_once_(worker: Worker, held: HeldLease) -> None:
        worker._running.pop(held.key, None)
        found(worker, held)

    broken.setattr(Worker, "on_lease_found", at_once_)
    return another_claim_while_a_child_hangs


def checkpoints_go_too_far(broken: Broken) -> Scene:
    def further(window: CheckpointWindow, *_asked: object) -> Position:
        return Position(str(int(window.largest.sequence_number) + 1))

    broken.setattr(CheckpointWindow, "position", further)
    return more_records


def the_shard_ends_early(broken: Broken) -> Scene:
    broken.setattr(CheckpointWindow, "position", lambda *_: Position("SHARD_END"))
    return more_records


def what_is_done_is_read_again(broken: Broken) -> Scene:
    broken.setattr(Payload, "after", lambda payload, _position: payload)
    return another_child


def nobody_waits_for_the_status(broken: Broken) -> Scene:
    async def at_once_(_connection: ChildConnection) -> None: ...

    broken.setattr(ChildConnection, "_processed", at_once_)
    broken.setattr(DaemonSide, "send", lambda _side, _message: None)

    async def two_batches(stage: Stage) -> None:
        stage.ways.dies_at, stage.ways.hangs = (lambda text: True), True
        stage.put(words(4))
        await anyio.sleep(5)
        await more_records(stage)
        stage.ways.dies_at = lambda text: False

    return two_batches


def memory_is_kept(broken: Broken) -> Scene:
    broken.setattr(DeliveryBatch, "release", lambda _batch: None)

    async def until_the_end(stage: Stage) -> None:
        stage.put(words(4))
        await anyio.sleep(5)
        await another_claim(stage)

    return until_the_end


def memory_is_given_back_twice(broken: Broken) -> Scene:
    release = Reservation.release

    def twice(reservation: Reservation) -> None:
        release(reservation)
        reservation.released = False
        release(reservation)

    broken.setattr(Reservation, "release", twice)
    return more_records


BROKEN = [
    (counter_goes_back, Invariant.LEASE_COUNTER),
    (nobody_waits_for_the_former_child, Invariant.ONE_CHILD),
    (checkpoints_go_too_far, Invariant.CHECKPOINT_WINDOW),
    (the_shard_ends_early, Invariant.CHECKPOINT_WINDOW),
    (what_is_done_is_read_again, Invariant.POSITIONS_GROW),
    (nobody_waits_for_the_status, Invariant.ANSWERED_ONCE),
    (memory_is_kept, Invariant.MEMORY),
    (memory_is_given_back_twice, Invariant.MEMORY),
]


@contextmanager
def expected(violations: list[InvariantViolated], invariant: Invariant) -> Generator[None]:
    yield
    assert {each.invariant for each in violations} == {invariant}
    violations.clear()


def play(
    stage: Stage,
    breaks: Callable[[Broken], Scene],
    monkeypatch: pytest.MonkeyPatch,
    keys: Iterable[str] = ("key",),
    **changes: Any,
) -> None:
    """Records before, while and after it is broken; all come, and are checkpointed."""

    async def scene() -> None:
        for key in keys:
            stage.put(words(1, 2, 3), key)
        await until(lambda: set(stage.seen) >= set(words(1, 2, 3)))
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])
        with monkeypatch.context() as broken:
            await breaks(broken)(stage)
            stored = stage.row["checkpoint"]
        assert stored in {"TRIM_HORIZON", *stage.numbers()}, "nothing wrong was stored"
        stage.put(words(7, 8))
        await until(lambda: set(stage.seen) >= set(words(7, 8)))
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])

    perform(stage, scene, **changes)


@pytest.mark.parametrize(("breaks", "invariant"), BROKEN)
def test_each_rule_is_checked(
    breaks: Callable[[Broken], Scene],
    invariant: Invariant,
    monkeypatch: pytest.MonkeyPatch,
    violations: list[InvariantViolated],
) -> None:
    stage = Stage(Ways(dies_at=lambda text: False))
    with expected(violations, invariant):
        play(stage, breaks, monkeypatch)
    assert set(stage.seen) >= set(words(1, 2, 3, 5, 6, 7, 8)), "nothing is lost"
    told = stage.reported("invariant_violated")
    assert {each["invariant"] for each in told} == {invariant.value}
    assert told[0]["expected"] and told[0]["seen"] and told[0]["advice"]
    assert [each["evidence"] for each in told] == list(stage.evidence.files)
    assert stage.reported("consumer_crashed") == []
    assert stage.counts.violations == [invariant.value] * len(told)


def test_the_evidence_tells_what_happened_and_shows_no_data(
    monkeypatch: pytest.MonkeyPatch, violations: list[InvariantViolated]
) -> None:
    stage = Stage(Ways(dies_at=lambda text: False))
    with expected(violations, Invariant.CHECKPOINT_WINDOW):
        play(stage, checkpoints_go_too_far, monkeypatch)
    first, *events = next(iter(stage.evidence.files.values()))
    assert first["invariant"] == "checkpoint_window"
    assert (first["lease_key"], first["worker_id"]) == ("shardId-000000000000", "worker")
    assert {"lease", "begin", "sent", "status", "wait", "batch_taken", "processRecords", "request"} <= {
        each["event"] for each in events
    }
    (given,) = (each for each in events if each["event"] == "processRecords" and each["records"] == 2)
    assert str(given["last"]).isdigit()
    assert given["last"] == [each["position"] for each in events if each["event"] == "request"][-1]
    assert all(float(str(each["s"])) <= 0 for each in events)
    text = json.dumps(events)
    assert not any(data in text for data in ("word", "d29yZ", "key"))


def test_a_mark_above_what_a_lane_has_not_checkpointed_is_not_stored(
    monkeypatch: pytest.MonkeyPatch, violations: list[InvariantViolated]
) -> None:
    stage = Stage(Ways(dies_at=lambda text: False))

    def too_far(broken: Broken) -> Scene:
        broken.setattr(LaneWindow, "mark", property(lambda window: window.high))

        async def one_lane_is_slow(stage: Stage) -> None:
            stage.ways.dies_at, stage.ways.hangs = (lambda text: text == "word 5"), True
            stage.put(words(5), "d")
            stage.put(words(6), "b")
            await until(lambda: bool(stage.reported("invariant_violated")), 300)
            stage.ways.dies_at = lambda text: False

        return one_lane_is_slow

    with expected(violations, Invariant.CHECKPOINT_WINDOW):
        play(stage, too_far, monkeypatch, "db", concurrency=ConcurrencySettings(lanes=LaneCounts(4)))
    assert set(stage.seen) >= set(words(1, 2, 3, 5, 6, 7, 8))


def test_a_lane_is_given_no_record_twice(
    monkeypatch: pytest.MonkeyPatch, violations: list[InvariantViolated]
) -> None:
    stage = Stage(Ways(dies_at=lambda text: False))

    def not_counted(broken: Broken) -> Scene:
        take = LaneWindow.take

        def again(window: LaneWindow, lane: int, most_bytes: int, most_records: int) -> Any:
            records = take(window, lane, most_bytes, most_records)
            window._lanes[lane].taken = 0
            return records

        broken.setattr(LaneWindow, "take", again)
        broken.setattr(ShardLanes, "_processed", lambda lanes, lane: None)

        async def a_child_that_makes_no_checkpoint(stage: Stage) -> None:
            stage.ways.checkpoints = False
            await more_records(stage)
            stage.ways.checkpoints = True

        return a_child_that_makes_no_checkpoint

    with expected(violations, Invariant.POSITIONS_GROW):
        play(stage, not_counted, monkeypatch, "d", concurrency=ConcurrencySettings(lanes=LaneCounts(4)))
    assert set(stage.seen) >= set(words(1, 2, 3, 5, 6, 7, 8))


def test_the_pauses_grow_and_end_with_the_bug(
    monkeypatch: pytest.MonkeyPatch, violations: list[InvariantViolated]
) -> None:
    stage = Stage(Ways(dies_at=lambda text: False))

    def again_and_again(broken: Broken) -> Scene:
        checkpoints_go_too_far(broken)

        async def often(stage: Stage) -> None:
            stage.put(words(5, 6))
            await until(lambda: len(stage.reported("invariant_violated")) == 3, 600)

        return often

    with expected(violations, Invariant.CHECKPOINT_WINDOW):
        play(stage, again_and_again, monkeypatch)
    assert [each["rests_s"] for each in stage.reported("invariant_violated")] == [1, 2, 4]


def test_without_a_place_for_evidence_it_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, violations: list[InvariantViolated]
) -> None:
    stage = Stage(Ways(dies_at=lambda text: False))
    stage.evidence.is_full = True
    with expected(violations, Invariant.CHECKPOINT_WINDOW):
        play(stage, checkpoints_go_too_far, monkeypatch)
    assert stage.reported("invariant_violated")[0]["evidence"] is None


def test_memory_that_a_crashed_consumer_held_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = list[ByteBudget]()
    made = ByteBudget.__init__

    def noted(budget: ByteBudget, *arguments: Any) -> None:
        made(budget, *arguments)
        budgets.append(budget)

    monkeypatch.setattr(ByteBudget, "__init__", noted)
    stage = Stage(Ways(dies_at=lambda text: False))

    def crashes(broken: Broken) -> Scene:
        def bug(*_: object) -> None:
            raise ValueError("a bug")

        broken.setattr(ChildConnection, "_line_of", bug)
        broken.setattr(DeliveryBatch, "release", lambda _batch: None)

        async def more(stage: Stage) -> None:
            stage.put(words(5, 6))
            await until(lambda: bool(stage.reported("consumer_crashed")))

        return more

    play(stage, crashes, monkeypatch)
    assert [budget.reserved_bytes for budget in budgets] == [0]
