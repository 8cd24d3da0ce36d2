"""What a shard waits for, and when that is too long."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.progress.progress import LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import (
    ADVICE,
    REPORT_EVERY_S,
    LastReport,
    StallLimits,
    StallReport,
    StallStatus,
    child_stuck_s,
    lag_s,
    next_report,
    stall_limit_s,
    stall_status,
)
from kcl_protocol.sequence import TRIM_HORIZON
from tests.unit.progress.support import FakeChild, FakeReader, Time, position, started

LIMITS = StallLimits()
STUCK = replace(LIMITS, child_stuck_s=60.0)


def seen(progress: LeaseProgress, time: Time, limits: StallLimits = LIMITS) -> StallStatus:
    return stall_status(progress, limits, time.now_s)


def test_every_cause_has_advice_and_a_limit_unless_it_is_no_trouble_or_that_of_a_lane() -> None:
    assert set(ADVICE) == set(WaitReason)
    without = {cause for cause in WaitReason if stall_limit_s(LIMITS, cause) is None}
    calm = {WaitReason.PAUSED, WaitReason.LIMITED, WaitReason.RUN_END, WaitReason.WINDOW}
    assert without == {WaitReason.NOTHING_NEW, WaitReason.LANE, *calm}
    assert all(field.name.endswith("_s") for field in fields(LIMITS) if field.name != "store_trouble")


def test_a_shard_that_stands_still_after_a_loss_has_that_cause_until_it_is_answered() -> None:
    time = Time()
    progress = LeaseProgress(time)
    progress.waits_for_records()
    progress.last_fetch.trouble, progress.last_fetch.lost = "records after 5", True
    time.now_s += LIMITS.kinesis_s + 1
    status = seen(progress, time)
    assert (status.cause, status.detail, status.stalled_by) == (
        WaitReason.TRIMMED,
        "records after 5",
        WaitReason.TRIMMED,
    )
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.now_s)
    assert seen(progress, time).cause is WaitReason.NOTHING_NEW


@pytest.mark.parametrize("cause", [WaitReason.STARTING, WaitReason.CHILD])
def test_a_shard_that_the_landing_store_holds_back_names_the_store(cause: WaitReason) -> None:
    time = Time()
    progress = LeaseProgress(time)
    limits = replace(LIMITS, store_trouble=lambda: "full since 3 min: no space left")
    progress.waits(cause)
    time.now_s += LIMITS.store_s + 1
    status = seen(progress, time, limits)
    assert (status.cause, status.stalled_by) == (WaitReason.STORE, WaitReason.STORE)
    assert status.detail == "full since 3 min: no space left"
    assert seen(progress, time).cause is cause
    progress.waits(WaitReason.KINESIS)
    assert seen(progress, time, limits).cause is not WaitReason.STORE


@pytest.mark.parametrize(
    "cause",
    [WaitReason.PARENT, WaitReason.STREAM, WaitReason.LEASE, WaitReason.STARTING, WaitReason.DYNAMODB],
)
def test_a_wait_is_too_long_when_it_is_longer_than_its_limit(cause: WaitReason) -> None:
    time = Time()
    progress = LeaseProgress(time)
    progress.waits_for_records()
    time.passes(10_000)
    progress.moved()
    progress.waits(cause, "why")
    limit_s = stall_limit_s(LIMITS, cause)
    assert limit_s is not None
    time.passes(limit_s)
    assert seen(progress, time) == StallStatus(cause, "why", limit_s, limit_s, None)
    time.passes(0.1)
    assert seen(progress, time).stalled_by is cause


def test_a_shard_at_the_tip_has_nothing_new_for_ever() -> None:
    time = Time()
    progress = started(time)
    for _ in range(1000):
        progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.passes(10))
        found = seen(progress, time)
        assert (found.cause, found.stalled_by) == (WaitReason.NOTHING_NEW, None)


def test_a_shard_that_gets_no_answer_waits_for_kinesis() -> None:
    time = Time()
    progress = started(time)
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.now_s)
    time.passes(LIMITS.answer_s)
    assert seen(progress, time).cause is WaitReason.NOTHING_NEW
    time.passes(1)
    assert seen(progress, time) == StallStatus(WaitReason.KINESIS, "no answer", 36.0, 36.0, None)
    time.passes(30)
    assert seen(progress, time).stalled_by is WaitReason.KINESIS


def test_trouble_is_reported_in_the_words_of_the_reader() -> None:
    time = Time()
    progress = started(time)
    progress.last_fetch.trouble = "GetRecords: rate exceeded"
    assert seen(progress, time).cause is WaitReason.KINESIS
    assert seen(progress, time).detail == "GetRecords: rate exceeded"


def test_empty_answers_behind_the_tip_are_a_stall_in_the_end_even_where_the_child_is_given_them() -> None:
    time = Time()
    progress = started(time)
    progress.failed("child ended")  # else an empty batch that was done counts
    progress.waits_for_records()
    for _ in range(70):
        progress.last_fetch.answer(behind_ms=90_000 + int(time.now_s), empty=True, now_s=time.passes(1))
        progress.works("processRecords")
        progress.done(None, 0, 0)
        progress.waits_for_records()
    assert seen(progress, time).stalled_by is WaitReason.KINESIS


def test_time_that_passed_before_a_step_is_not_blamed_on_that_step() -> None:
    time = Time()
    progress = started(time)
    progress.works("processRecords")
    time.passes(LIMITS.child_s - 1)
    progress.checkpoint_started()
    time.passes(1)
    found = seen(progress, time)
    assert (found.cause, found.waits_s, found.stalled_by) == (WaitReason.DYNAMODB, 1.0, None)


def test_a_child_that_checkpoints_the_same_again_and_again_is_still_a_child_that_does_not_get_on() -> None:
    time = Time()
    progress = started(time)
    progress.works("processRecords")
    for _ in range(31):
        time.passes(10)
        progress.checkpoint_started()
        progress.checkpoint_ended(moved=False)
    assert seen(progress, time).stalled_by is WaitReason.CHILD
    assert child_stuck_s(progress, STUCK, time.now_s) == 310


def test_a_child_that_tries_a_refused_checkpoint_again_waits_for_dynamodb() -> None:
    time = Time()
    progress = started(time)
    progress.works("processRecords")
    for _ in range(14):
        progress.checkpoint_started()
        progress.checkpoint_ended(moved=False, refused="UpdateItem: rate exceeded")
        time.passes(5)
    found = seen(progress, time)
    assert (found.cause, found.detail) == (WaitReason.DYNAMODB, "UpdateItem: rate exceeded")
    assert found.stalled_by is WaitReason.DYNAMODB
    assert child_stuck_s(progress, STUCK, time.now_s) is None, "it is not the child that is stuck"


def test_children_that_fail_one_after_the_other_are_to_blame_whatever_the_shard_waits_for_just_now() -> None:
    time = Time()
    progress = started(time)
    progress.done(position(5), 1, 10)
    progress.works("processRecords")
    for _ in range(40):
        progress.failed("child ended with signal 9 during processRecords")
        time.passes(5)
        progress.starts()
        progress.waits_for_records()
        progress.last_fetch.answer(behind_ms=9_000, empty=False, now_s=time.passes(1))
        progress.works("processRecords")
    found = seen(progress, time)
    assert (found.cause, found.stalled_by) == (WaitReason.CHILD, WaitReason.RESTART)
    assert (
        found.detail
        == "processRecords; the last child failed: child ended with signal 9 during processRecords"
    )


def test_a_child_is_stuck_only_at_work_and_only_where_there_is_a_limit() -> None:
    time = Time()
    progress = LeaseProgress(time)
    progress.starts()
    time.passes(61)
    assert child_stuck_s(progress, STUCK, time.now_s) is None, "there is no child yet"
    progress.child_started(FakeChild(), lambda: None)
    time.passes(61)
    assert child_stuck_s(progress, STUCK, time.now_s) == 61, "it has not answered initialize"
    assert child_stuck_s(progress, LIMITS, time.now_s) is None
    progress.waits_for_records()
    assert child_stuck_s(progress, STUCK, time.now_s) is None
    progress.works("processRecords")
    time.passes(61)
    assert child_stuck_s(progress, STUCK, time.now_s) == 61
    progress.child_stuck(61)
    assert child_stuck_s(progress, STUCK, time.now_s) is None, "it is being ended"


@given(st.lists(st.tuples(st.floats(0.1, 900.0), st.booleans(), st.booleans()), max_size=40))
def test_a_stall_is_reported_at_once_then_now_and_then_and_when_it_is_over(
    steps: list[tuple[float, bool, bool]],
) -> None:
    """In any course of things: nothing before a stall, no second first word, no silence longer than a step too much."""
    now_s, moved_s = 0.0, 0.0
    reported: LastReport | None = None
    for passes_s, moves, stalled in steps:
        now_s += passes_s
        moved_s = now_s if moves else moved_s
        by = WaitReason.CHILD if stalled and not moves else None
        before = reported
        reported, say = next_report(
            StallStatus(WaitReason.CHILD, "", 0.0, now_s - moved_s, by), reported, now_s
        )
        match say:
            case StallReport.STALLED:
                assert before is None
                assert by is not None
            case StallReport.STILL_STALLED:
                assert before is not None
                assert now_s - before.last_s >= REPORT_EVERY_S
                assert moved_s <= before.first_s
            case StallReport.RESUMED:
                assert before is not None
                assert moved_s > before.first_s
            case StallReport.NOTHING:
                assert by is None if before is None else moved_s <= before.first_s
                assert reported is None or now_s - reported.last_s < REPORT_EVERY_S
        assert (reported is not None) == (
            say in {StallReport.STALLED, StallReport.STILL_STALLED}
            or (say is StallReport.NOTHING and before is not None)
        )


def test_the_lag_is_not_known_before_the_first_answer_and_nothing_once_all_is_read_and_done() -> None:
    time = Time()
    progress = started(time)
    assert lag_s(progress, LIMITS, time.now_s) is None
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.now_s)
    assert lag_s(progress, LIMITS, time.passes(5)) == 0.0


def test_lag_of_unread_records_is_that_of_the_last_answer_and_grows() -> None:
    time = Time()
    progress = started(time)
    progress.last_fetch.answer(behind_ms=90_000, empty=True, now_s=time.now_s)
    assert lag_s(progress, LIMITS, time.passes(2)) == pytest.approx(92)


def test_while_no_answer_comes_everything_since_the_last_one_may_wait() -> None:
    time = Time()
    progress = started(time)
    assert lag_s(progress, LIMITS, time.passes(60)) == pytest.approx(60), "there has been none at all"
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.now_s)
    assert lag_s(progress, LIMITS, time.passes(LIMITS.answer_s)) == 0.0
    assert lag_s(progress, LIMITS, time.passes(1)) == pytest.approx(LIMITS.answer_s + 1)
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.now_s)
    progress.last_fetch.trouble = "Throttled"
    assert lag_s(progress, LIMITS, time.passes(3)) == pytest.approx(3)


@pytest.mark.parametrize("cause", [WaitReason.PARENT, WaitReason.STREAM])
def test_of_a_shard_that_waits_for_its_parents_or_its_stream_nothing_is_known(cause: WaitReason) -> None:
    time = Time()
    progress = LeaseProgress(time)
    progress.waits(cause)
    assert lag_s(progress, LIMITS, time.passes(10_000)) is None


def test_a_shard_that_is_read_to_its_end_is_not_behind_whatever_its_end_takes() -> None:
    time = Time()
    progress = started(time)
    progress.last_fetch.answer(behind_ms=500, empty=False, now_s=time.now_s)
    progress.read_to_end()
    progress.shard_ended()
    assert lag_s(progress, LIMITS, time.passes(1000)) == 0.0


def test_a_record_from_a_clock_that_is_ahead_of_ours_is_not_younger_than_nothing() -> None:
    time = Time()
    progress = started(time)
    progress.works("processRecords", arrived_s=time.now_s + 5)
    assert lag_s(progress, LIMITS, time.now_s) == 0.0


def test_the_records_in_the_childs_hands_come_before_those_that_wait_for_it() -> None:
    time = Time()
    progress = started(time)
    progress.reading(FakeReader(oldest_s=time.now_s - 10))
    assert lag_s(progress, LIMITS, time.now_s) == pytest.approx(10)
    progress.works("processRecords", arrived_s=time.now_s - 40)
    assert lag_s(progress, LIMITS, time.passes(1)) == pytest.approx(41)
    progress.done(position(5), 3, 300)
    assert lag_s(progress, LIMITS, time.now_s) == pytest.approx(11)


def test_lag_grows_after_a_child_ended_until_the_next_reader_has_an_answer() -> None:
    time = Time()
    progress = started(time)
    progress.last_fetch.answer(behind_ms=0, empty=False, now_s=time.now_s)
    progress.works("processRecords", arrived_s=time.now_s)
    time.passes(10)
    progress.reading_ended(TRIM_HORIZON)
    progress.child_ended()
    progress.failed("child ended")
    assert lag_s(progress, LIMITS, time.passes(10)) == pytest.approx(20)
    progress.starts()
    progress.reading(FakeReader())
    assert lag_s(progress, LIMITS, time.passes(10)) == pytest.approx(30)
    progress.reading_ended(TRIM_HORIZON)  # this child did not even get that far
    assert lag_s(progress, LIMITS, time.passes(10)) == pytest.approx(40)
    progress.reading(FakeReader())
    progress.last_fetch.answer(behind_ms=0, empty=True, now_s=time.passes(1))
    assert lag_s(progress, LIMITS, time.now_s) == 0.0, "they were checkpointed, or they are no more"


def _worked(time: Time, *batches: tuple[int, float]) -> LeaseProgress:
    """A child that has done these, records and seconds, and works on a batch of five."""
    progress = started(time)
    for number, (records, seconds) in enumerate(batches):
        progress.takes(records, 100, time.now_s)
        progress.works("processRecords", arrived_s=time.now_s)
        time.passes(seconds)
        progress.done(position(number + 1), records, 100)
        time.passes(500.0)  # it had nothing to do
    progress.takes(5, 100, time.now_s)
    progress.works("processRecords", arrived_s=time.now_s)
    return progress


@pytest.mark.parametrize(
    ("batches", "limit_s"),
    [
        ([(5, 1.0)] * 20, 90.0),
        ([(5, 1.0)] * 19 + [(5, 40.0)], 240.0),
        ([(5, 100.0)] * 20, 300.0),
        ([(5, 1.0)] * 19, 300.0),
        ([(4, 1.0)] * 20, 300.0),
    ],
    ids=["quick", "once slower", "slow", "too few", "never so many records"],
)
def test_a_child_that_is_usually_quick_hangs_sooner_than_one_that_is_slow(
    batches: list[tuple[int, float]], limit_s: float
) -> None:
    time = Time()
    progress = _worked(time, *batches)
    time.passes(limit_s)
    assert seen(progress, time).stalled_by is None
    time.passes(1.0)
    assert seen(progress, time).stalled_by is WaitReason.CHILD


def test_the_time_before_a_checkpoint_within_a_batch_counts_too() -> None:
    time = Time()
    progress = _worked(time, *[(5, 1.0)] * 20)
    time.passes(60.0)
    progress.checkpoint_started()
    progress.checkpoint_ended(moved=True)
    time.passes(91.0)
    assert seen(progress, time).stalled_by is None
