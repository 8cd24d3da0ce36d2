"""What a checkpoint asks for, what is tried again, and how a shard ends."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_client import (
    Batch,
    CheckpointDependencyFailed,
    Checkpointer,
    CheckpointError,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointThrottled,
    ExtendedSequenceNumber,
    RecordProcessor,
    ShardStart,
    UnknownCheckpointError,
)
from kcl_client._processor import PlainRuntime, PlainTurn, complete
from kcl_client._session import Session, SessionOptions
from kcl_client.testing import Ending, Report, drive, make_record
from kcl_protocol.messages import CheckpointRequest, Status
from kcl_protocol.sequence import SHARD_END, Sentinel
from tests.unit.client.support import BATCH, INITIALIZE, STORED, Handled, Handler, Idle, Wire, no_wait

RECORDS = [make_record(text, sequence_number=str(7 + index)) for index, text in enumerate("abcd")]


def requests_of(report: Report) -> list[CheckpointRequest]:
    return [message for message in report.messages if isinstance(message, CheckpointRequest)]


def driven(handler: Handler, *errors: type[CheckpointError] | str | None) -> Report:
    return drive(Handled(handler), RECORDS, ending=Ending.CLOSED, checkpoint_errors=errors)


def test_no_position_means_everything_delivered() -> None:
    report = driven(lambda _batch, checkpointer: checkpointer.checkpoint())
    assert requests_of(report) == [CheckpointRequest(None, None)]
    assert report.checkpoints == (ExtendedSequenceNumber("10"),)


def test_a_record_and_its_position_ask_for_the_same() -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint(batch.records[1])
        checkpointer.checkpoint(batch.records[1].position)

    assert requests_of(driven(handle)) == [CheckpointRequest("8", 0)] * 2


def test_a_sentinel_goes_out_as_its_name() -> None:
    report = driven(
        lambda _batch, checkpointer: checkpointer.checkpoint(SHARD_END), "IllegalArgumentException"
    )
    assert requests_of(report) == [CheckpointRequest(Sentinel.SHARD_END.value, 0)]


def test_a_throttled_write_is_tried_five_times_with_waits_that_double() -> None:
    report = driven(lambda _batch, checkpointer: checkpointer.checkpoint(), *[CheckpointThrottled] * 5)
    assert len(requests_of(report)) == 5
    assert report.backoffs_s == (0.5, 1.0, 2.0, 4.0)
    assert isinstance(report.exception, CheckpointThrottled)


def test_a_retry_may_succeed() -> None:
    report = driven(
        lambda _batch, checkpointer: checkpointer.checkpoint(),
        CheckpointThrottled,
        CheckpointDependencyFailed,
    )
    assert report.checkpoints == (ExtendedSequenceNumber("10"),)
    assert report.exit_code == 0


def test_attempts_bound_the_tries() -> None:
    report = driven(lambda _batch, checkpointer: checkpointer.checkpoint(attempts=1), CheckpointThrottled)
    assert (len(requests_of(report)), report.backoffs_s) == (1, ())


def test_a_checkpoint_with_0_attempts_raises_value_error() -> None:
    report = driven(lambda _batch, checkpointer: checkpointer.checkpoint(attempts=0))
    assert isinstance(report.exception, ValueError)


@pytest.mark.parametrize("error", [CheckpointIllegalArgument, CheckpointInvalidState])
def test_a_checkpoint_that_cannot_succeed_later_is_not_tried_again(error: type[CheckpointError]) -> None:
    report = driven(lambda _batch, checkpointer: checkpointer.checkpoint(), error)
    assert isinstance(report.exception, error)
    assert len(requests_of(report)) == 1


def test_an_unknown_error_keeps_its_name() -> None:
    report = driven(lambda _batch, checkpointer: checkpointer.checkpoint(), "OddException")
    assert isinstance(report.exception, UnknownCheckpointError)
    assert report.exception.name == "OddException"


def test_a_refused_checkpoint_may_be_followed_by_another() -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        with pytest.raises(CheckpointIllegalArgument):
            checkpointer.checkpoint(ExtendedSequenceNumber("999"))
        checkpointer.checkpoint(batch.records[0])

    assert driven(handle).checkpoints == (ExtendedSequenceNumber("7"),)


class Hoarder(Idle):
    """Keeps its checkpointer and uses it where it may not."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Checkpointer | None = None

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        self.kept = checkpointer

    def lease_lost(self) -> None:
        assert self.kept is not None
        self.kept.checkpoint()


def test_a_checkpoint_after_the_lease_is_lost_is_refused_without_asking() -> None:
    report = drive(Hoarder(), RECORDS, ending=Ending.LEASE_LOST)
    assert isinstance(report.exception, CheckpointInvalidState)
    assert requests_of(report) == []


def test_a_checkpoint_outside_every_action_is_refused_without_asking() -> None:
    hoarder = Hoarder()
    report = drive(hoarder, RECORDS, ending=Ending.CLOSED)
    assert hoarder.kept is not None
    with pytest.raises(CheckpointInvalidState, match="possible only while"):
        hoarder.kept.checkpoint()
    assert requests_of(report) == []


def test_threads_of_the_processor_take_turns() -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        threads = [
            threading.Thread(target=checkpointer.checkpoint, args=(batch.records[-1],)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    report = driven(handle)
    assert len(report.checkpoints) == 4
    assert report.messages[-1] == Status("processRecords")


def test_no_status_goes_out_in_the_middle_of_a_threads_checkpoint() -> None:
    asked, wanted = threading.Event(), threading.Event()
    main = threading.current_thread()
    threads: list[threading.Thread] = []

    class Watched(PlainTurn):
        async def __aenter__(self) -> None:
            if threading.current_thread() is main and asked.is_set():
                wanted.set()
            await super().__aenter__()

    class Slow(Wire):
        def read(self) -> bytes:
            if threading.current_thread() is not main:
                asked.set()
                assert wanted.wait(60), "the status did not wait for its turn"
            return super().read()

    def handle(_batch: Batch, checkpointer: Checkpointer) -> None:
        threads.append(threading.Thread(target=checkpointer.checkpoint))
        threads[0].start()
        assert asked.wait(60)  # the method returns while its thread waits for the answer

    wire = Slow(INITIALIZE, BATCH, STORED)
    runtime = PlainRuntime(wire.read, wire.write, no_wait)
    runtime.turn = Watched()
    complete(Session(Handled(handle), Checkpointer, runtime, SessionOptions()).serve())
    threads[0].join(60)
    assert wire.said == [Status("initialize"), CheckpointRequest(), Status("processRecords")]


def test_a_shutdown_request_checkpoints_everything_delivered() -> None:
    report = drive(Idle(), RECORDS, ending=Ending.SHUTDOWN)
    assert report.checkpoints == (ExtendedSequenceNumber("10"),)
    assert report.messages[-1] == Status("leaseLost")


def test_the_end_of_the_shard_is_checkpointed_for_the_processor() -> None:
    assert drive(Idle(), RECORDS).last_checkpoint == SHARD_END


class Ender(Idle):
    """Ends its shard with the given checkpoints; refusals are its own business."""

    def __init__(self, *positions: ExtendedSequenceNumber | None) -> None:
        super().__init__()
        self._positions = positions

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        for position in self._positions:
            try:
                checkpointer.checkpoint(position)
            except CheckpointIllegalArgument:
                continue


def test_the_end_of_the_shard_is_not_checkpointed_twice() -> None:
    assert drive(Ender(None), RECORDS).checkpoints == (SHARD_END,)


def test_the_last_position_alone_does_not_count_as_the_end() -> None:
    assert drive(Ender(ExtendedSequenceNumber("10")), RECORDS).last_checkpoint == SHARD_END


@given(
    st.lists(
        st.none() | st.integers(0, 12).map(lambda number: ExtendedSequenceNumber(str(number))), max_size=5
    )
)
def test_every_order_of_checkpoints_at_the_end_stores_the_end(
    positions: list[ExtendedSequenceNumber | None],
) -> None:
    report = drive(Ender(*positions), RECORDS)
    assert report.last_checkpoint == SHARD_END
    assert report.exit_code == 0


def test_a_processor_may_keep_the_end_of_its_shard_to_itself() -> None:
    class Keeper(Idle):
        checkpoint_at_shard_end = False

    assert drive(Keeper(), RECORDS).checkpoints == ()


def test_an_end_that_cannot_be_stored_is_a_failure() -> None:
    report = drive(Idle(), RECORDS, checkpoint_errors=[CheckpointThrottled] * 5)
    assert isinstance(report.exception, CheckpointThrottled)
    assert Status("shardEnded") not in report.messages


def test_a_batch_may_hold_several_checkpoints_each_with_its_own_answer() -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            try:
                checkpointer.checkpoint(record, attempts=1)
            except CheckpointThrottled:
                continue

    report = driven(handle, None, CheckpointThrottled, None, CheckpointThrottled)
    assert [str(position) for position in report.checkpoints] == ["7", "9"]
    assert report.refusals == ("ThrottlingException",) * 2


def test_the_constructor_is_the_users_own() -> None:
    class Own(RecordProcessor):
        def __init__(self, needed: str) -> None:
            self.needed = needed

        def initialize(self, start: ShardStart) -> None:
            self.needed += start.shard_id

        def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None: ...

    own = Own("x-")
    drive(own, [], shard_id="shardId-7")
    assert own.needed == "x-shardId-7"
