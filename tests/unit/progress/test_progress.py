"""What counts as progress."""

from __future__ import annotations

from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases.lease import Lease, LeaseKey, Throughput
from kcl_daemon.progress.progress import LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import StallLimits, child_stuck_s, stall_status
from kcl_protocol.sequence import TRIM_HORIZON
from tests.unit.progress.support import FakeChild, Time, position, started


def test_a_batch_that_is_done_is_progress() -> None:
    time = Time()
    progress = started(time)
    progress.works("processRecords")
    progress.done(position(5), 3, 300)
    assert progress.progressed_s == time.now_s
    assert (progress.records, progress.data_bytes) == (3, 300)


def test_a_batch_that_an_earlier_child_had_done_is_none() -> None:
    time = Time()
    progress = started(time)
    progress.done(position(5), 3, 300)
    before_s = time.now_s
    time.passes(10)
    progress.failed("child ended")
    progress.starts()
    progress.done(position(5), 3, 300)
    assert progress.progressed_s == before_s
    assert progress.failures == 1
    progress.done(position(6), 1, 100)
    assert progress.progressed_s == time.now_s
    assert (progress.failures, progress.failure) == (0, "")


def test_an_answer_with_nothing_new_is_progress_while_the_child_is_free() -> None:
    time = Time()
    progress = started(time)
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.passes(5))
    assert progress.progressed_s == time.now_s
    progress.works("processRecords")
    worked_since_s = time.now_s
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.passes(5))
    assert progress.progressed_s == worked_since_s, "the child is busy, whatever is read ahead"


def test_an_answer_with_records_is_none() -> None:
    time = Time()
    progress = started(time)
    before_s = time.now_s
    progress.last_fetch.answer(behind_ms=0, empty=False, now_s=time.passes(5))
    assert progress.progressed_s == before_s


def test_empty_answers_that_lead_no_nearer_to_the_tip_are_none() -> None:
    time = Time()
    progress = started(time)
    for behind_ms in (90_000, 80_000):
        progress.last_fetch.answer(behind_ms=behind_ms, empty=True, now_s=time.passes(1))
        assert progress.progressed_s == time.now_s
    before_s = time.now_s
    for behind_ms in (80_000, 81_000, 82_000):
        progress.last_fetch.answer(behind_ms=behind_ms, empty=True, now_s=time.passes(1))
    assert progress.progressed_s == before_s


def test_empty_batches_are_progress_like_empty_answers() -> None:
    time = Time()
    progress = started(time)
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.passes(1))
    progress.works("processRecords")
    time.passes(1)
    progress.done(None, 0, 0)
    assert progress.progressed_s == time.now_s


def test_a_checkpoint_that_moves_is_progress_and_one_that_does_not_is_none() -> None:
    time = Time()
    progress = started(time)
    progress.works("processRecords")
    time.passes(5)
    progress.checkpoint_started()
    progress.checkpoint_ended(moved=True)
    assert progress.progressed_s == progress.busy_since_s == time.now_s
    before_s = time.now_s
    time.passes(5)
    progress.checkpoint_started()
    progress.checkpoint_ended(moved=False)
    assert progress.progressed_s == progress.busy_since_s == before_s


def test_a_shard_that_ends_again_and_again_makes_progress_once() -> None:
    time = Time()
    progress = started(time)
    progress.shard_ended()
    before_s = time.now_s
    time.passes(5)
    progress.failed("no checkpoint")
    progress.starts()
    progress.shard_ended()
    assert progress.progressed_s == before_s


def test_a_stuck_child_is_ended_once_and_the_next_one_is_not_to_blame() -> None:
    time = Time()
    progress = started(time)
    ended: list[str] = []
    progress.child_started(FakeChild(), lambda: ended.append("first"))
    progress.works("processRecords")
    progress.child_stuck(30.0)
    assert ended == ["first"]
    assert str(progress.timed_out) == "child did not answer processRecords within 30 s"
    progress.child_ended()
    progress.child_started(FakeChild(), lambda: ended.append("second"))
    assert progress.timed_out is None
    assert ended == ["first"]


def test_a_child_that_waits_for_its_letter_is_not_busy_meanwhile() -> None:
    time = Time()
    progress = started(time)
    progress.works("processRecords")
    time.passes(10)
    progress.storing("sqs:queue")
    time.passes(500)
    progress.storing("sqs:queue: away")
    assert (progress.cause, progress.detail) == (WaitReason.LETTERS, "sqs:queue: away")
    assert child_stuck_s(progress, StallLimits(child_stuck_s=60), time.now_s) is None
    status = stall_status(progress, StallLimits(), time.now_s)
    assert (status.stalled_by, status.waits_s) == (WaitReason.LETTERS, 500)
    progress.stored()
    assert (progress.cause, progress.detail) == (WaitReason.CHILD, "processRecords")
    assert child_stuck_s(progress, StallLimits(child_stuck_s=60), time.passes(40)) is None
    assert child_stuck_s(progress, StallLimits(child_stuck_s=60), time.passes(20)) == 70


def test_a_shard_with_nothing_new_says_which_lane_waits_for_its_letter() -> None:
    time = Time()
    progress, lane = started(time), started(time)
    progress.lanes[3] = held_with(lane)
    lane.storing("sqs:queue: away")
    progress.waits_for_records()
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.passes(100))
    status = stall_status(progress, StallLimits(), time.now_s)
    assert (status.cause, status.stalled_by, status.idle_s) == (WaitReason.LANE, WaitReason.LANE, 100)
    assert status.detail == "lane 3, which waits for dead letters, sqs:queue: away"
    lane.stored()
    assert stall_status(progress, StallLimits(), time.now_s).cause is WaitReason.NOTHING_NEW


def test_a_shard_whose_lane_fails_again_and_again_says_so_also_while_a_letter_is_stored() -> None:
    time = Time()
    progress, lane = started(time), started(time)
    progress.lanes[3] = held_with(lane)
    progress.waits_for_lane(3, "at its end")
    lane.failed("it ended")
    time.passes(170)
    lane.starts()
    lane.works("processRecords")
    lane.storing("sqs:queue")
    status = stall_status(progress, StallLimits(), time.passes(20))
    assert status.stalled_by is WaitReason.LANE
    assert "which waits for restart" in status.detail


def test_a_shard_that_just_got_on_does_not_stand_still_because_a_lane_does() -> None:
    time = Time()
    progress, lane = started(time), started(time)
    progress.lanes[3] = held_with(lane)
    lane.failed("it ended")
    time.passes(200)
    progress.moved()
    progress.waits_for_lane(3, "")
    assert stall_status(lane, StallLimits(), time.now_s).stalled_by is WaitReason.RESTART
    assert stall_status(progress, StallLimits(), time.passes(180)).stalled_by is None
    assert stall_status(progress, StallLimits(), time.passes(1)).stalled_by is WaitReason.LANE


def held_with(progress: LeaseProgress) -> HeldLease:
    return HeldLease(Lease(LeaseKey("shardId-0"), 1, TRIM_HORIZON), 0.0, Throughput(1.0, now_s=0.0), progress)
