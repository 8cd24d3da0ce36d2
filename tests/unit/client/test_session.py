"""When a method is called, when its action counts as done, and what ends a session."""

from __future__ import annotations

import gc
from typing import NoReturn

import pytest

from kcl_client import (
    Batch,
    Checkpointer,
    CheckpointError,
    CheckpointInvalidState,
    CheckpointShutdown,
    Record,
    RecordProcessor,
    ShardStart,
)
from kcl_client._session import ProcessorFailed
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import TRIM_HORIZON
from tests.unit.client.support import BATCH, INITIALIZE, STORED, Handled, Idle, Wire, serve


class Diary(RecordProcessor):
    """Notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.start: ShardStart | None = None

    def initialize(self, start: ShardStart) -> None:
        self.start = start
        self.calls.append("initialize")

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        self.calls.append(f"process_records {len(batch)} {batch.millis_behind_latest}")

    def lease_lost(self) -> None:
        self.calls.append("lease_lost")

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self.calls.append("shard_ended")

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        self.calls.append("shutdown_requested")


def test_every_action_calls_its_method_and_is_reported_once() -> None:
    diary, wire = Diary(), Wire(INITIALIZE, BATCH, ShutdownRequested(), LeaseLost())
    serve(diary, wire)
    assert diary.calls == ["initialize", "process_records 2 0", "shutdown_requested", "lease_lost"]
    assert wire.statuses == ["initialize", "processRecords", "shutdownRequested", "leaseLost"]


def test_every_message_stands_on_a_line_of_its_own_whatever_was_written_before() -> None:
    wire = Wire(INITIALIZE)
    serve(Idle(), wire)
    assert wire.written == b'\n{"action":"status","responseFor":"initialize"}\n'


def test_the_start_tells_shard_position_and_further_scalars() -> None:
    diary = Diary()
    line = b'{"action":"initialize","shardId":"s","sequenceNumber":"17","subSequenceNumber":2,'
    serve(diary, Wire(line + b'"streamName":"orders","attempt":3,"fast":true,"none":null,"list":[1]}\n'))
    assert diary.start is not None
    assert (diary.start.shard_id, str(diary.start.sequence_number)) == ("s", "17/2")
    assert diary.start.extra == {"streamName": "orders", "attempt": 3, "fast": True, "none": None}


@pytest.mark.parametrize(("reported", "expected"), [(None, None), ("TRIM_HORIZON", TRIM_HORIZON)])
def test_a_shard_never_checkpointed_starts_at_a_sentinel_or_nowhere(
    reported: str | None, expected: object
) -> None:
    diary = Diary()
    serve(diary, Wire(Initialize("s", reported, None)))
    assert diary.start is not None
    assert diary.start.sequence_number == expected
    assert diary.start.extra == {}


@pytest.mark.parametrize(("reason", "method"), [("TERMINATE", "shard_ended"), ("ZOMBIE", "lease_lost")])
def test_the_shutdown_of_old_daemons_is_one_of_the_two_ends(reason: str, method: str) -> None:
    answers = [STORED] if method == "shard_ended" else []
    diary, wire = Diary(), Wire(INITIALIZE, Shutdown(reason), *answers)
    serve(diary, wire)
    assert diary.calls[-1] == method
    assert wire.statuses[-1] == "shutdown"


def test_an_exception_leaves_the_action_unreported() -> None:
    def fail(_batch: Batch, _checkpointer: Checkpointer) -> NoReturn:
        raise LookupError("mine")

    wire = Wire(INITIALIZE, BATCH, BATCH)
    with pytest.raises(ProcessorFailed) as caught:
        serve(Handled(fail), wire)
    assert caught.value.action == "processRecords"
    assert isinstance(caught.value.__cause__, LookupError)
    assert wire.statuses == ["initialize"]


def test_an_exhausted_iterator_in_user_code_is_a_failure_too() -> None:
    wire = Wire(INITIALIZE, BATCH)
    with pytest.raises(ProcessorFailed):
        serve(Handled(lambda _batch, _checkpointer: next(iter(()))), wire)
    assert wire.statuses == ["initialize"]


@pytest.mark.parametrize("wish", [SystemExit(3), KeyboardInterrupt()])
def test_the_processors_wish_to_exit_passes_unreported(wish: BaseException) -> None:
    def leave(_batch: Batch, _checkpointer: Checkpointer) -> NoReturn:
        raise wish

    wire = Wire(INITIALIZE, BATCH)
    with pytest.raises(type(wish)):
        serve(Handled(leave), wire)
    assert wire.statuses == ["initialize"]


def test_an_async_method_in_a_plain_processor_does_not_lose_its_records_silently() -> None:
    async def handle(_batch: Batch, _checkpointer: Checkpointer) -> None: ...

    class Wrong(RecordProcessor):
        process_records = staticmethod(handle)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - the mistake

    with pytest.raises(ProcessorFailed) as caught:
        serve(Wrong(), Wire(INITIALIZE, BATCH))
    assert "derive from AsyncRecordProcessor" in str(caught.value.__cause__)


def test_end_of_input_between_actions_is_the_orderly_end() -> None:
    wire = Wire()
    serve(Idle(), wire)
    assert wire.written == b""


def test_a_line_that_was_cut_off_is_dropped() -> None:
    wire = Wire(INITIALIZE, b'{"action":"processRecords","reco')
    serve(Idle(), wire)
    assert wire.statuses == ["initialize"]


def test_blank_lines_are_nothing() -> None:
    wire = Wire(b"\r\n \n\n", INITIALIZE, b"\n")
    serve(Idle(), wire)
    assert wire.statuses == ["initialize"]


@pytest.mark.parametrize("line", [b"no\n", b"[]\n", b'{"action":"dance"}\n', b'{"action":"shardEnded"}\n'])
def test_a_line_that_a_daemon_may_not_write_ends_the_session(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        serve(Idle(), Wire(line))


def test_a_start_that_is_no_position_is_the_daemons_fault_not_the_processors() -> None:
    with pytest.raises(RemoteProtocolError, match="not a position"):
        serve(Idle(), Wire(Initialize("s", "seventeen", 0)))


def test_a_line_over_the_limit_ends_the_session() -> None:
    with pytest.raises(RemoteProtocolError, match="max_line_bytes=50"):
        serve(Idle(), Wire(INITIALIZE), max_line_bytes=50)


def test_a_daemon_that_no_longer_reads_ends_the_session_in_order() -> None:
    class Broken(Wire):
        def write(self, data: bytes) -> None:
            raise BrokenPipeError

    serve(Idle(), Broken(INITIALIZE, BATCH))


def test_a_connection_that_breaks_off_is_the_end_of_input() -> None:
    class Reset(Wire):
        def read(self) -> bytes:
            return super().read() if not self.written else self._fail()

        def _fail(self) -> NoReturn:
            raise ConnectionResetError

    wire = Reset(INITIALIZE, BATCH)
    serve(Idle(), wire)
    assert wire.statuses == ["initialize"]


def test_end_of_input_in_a_checkpoint_is_a_shutdown_to_the_processor() -> None:
    wire = Wire(INITIALIZE, BATCH)
    serve(Handled(lambda _batch, checkpointer: checkpointer.checkpoint()), wire)
    assert wire.said == [Status("initialize"), CheckpointRequest()]


def test_end_of_input_in_a_checkpoint_ends_the_session_where_the_processor_goes_on() -> None:
    errors: list[CheckpointError] = []

    def insist(_batch: Batch, checkpointer: Checkpointer) -> None:
        for _ in range(2):
            try:
                checkpointer.checkpoint()
            except CheckpointError as error:
                errors.append(error)

    wire = Wire(INITIALIZE, BATCH)
    serve(Handled(insist), wire)
    assert [type(error) for error in errors] == [CheckpointShutdown, CheckpointShutdown]
    assert wire.said == [Status("initialize"), CheckpointRequest()]


def test_another_failure_after_the_end_of_input_is_still_reported() -> None:
    def fail(_batch: Batch, checkpointer: Checkpointer) -> None:
        try:
            checkpointer.checkpoint()
        except CheckpointShutdown:
            raise LookupError("mine") from None

    with pytest.raises(ProcessorFailed):
        serve(Handled(fail), Wire(INITIALIZE, BATCH))


def test_a_shutdown_error_of_the_processors_own_making_is_a_failure() -> None:
    def pretend(_batch: Batch, _checkpointer: Checkpointer) -> NoReturn:
        raise CheckpointShutdown

    wire = Wire(INITIALIZE, BATCH)
    with pytest.raises(ProcessorFailed):
        serve(Handled(pretend), wire)
    assert wire.statuses == ["initialize"]


def test_losing_the_lease_in_the_middle_of_the_work_is_no_failure() -> None:
    kept: list[Checkpointer] = []

    class Careless(Diary):
        def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
            kept.append(checkpointer)
            checkpointer.checkpoint()

    diary = Careless()
    wire = Wire(INITIALIZE, BATCH, CheckpointAnswer(None, None, "ShutdownException"), BATCH, LeaseLost())
    serve(diary, wire)
    assert diary.calls == ["initialize", "lease_lost"]
    assert wire.statuses == ["initialize", "processRecords", "processRecords", "leaseLost"]
    assert wire.said.count(CheckpointRequest()) == 1, "the second batch need not ask"


def test_another_message_in_place_of_an_answer_ends_the_session_even_where_the_processor_swallows_it() -> (
    None
):
    def swallow(_batch: Batch, checkpointer: Checkpointer) -> None:
        for _ in range(2):
            with pytest.raises(CheckpointInvalidState):
                checkpointer.checkpoint()

    wire = Wire(INITIALIZE, BATCH, BATCH)
    with pytest.raises(RemoteProtocolError):
        serve(Handled(swallow), wire)
    assert wire.said == [Status("initialize"), CheckpointRequest()]


def test_a_broken_conversation_is_not_blamed_on_the_processor() -> None:
    with pytest.raises(RemoteProtocolError):
        serve(
            Handled(lambda _batch, checkpointer: checkpointer.checkpoint()), Wire(INITIALIZE, BATCH, b"no\n")
        )


def test_an_idle_child_holds_no_records() -> None:
    held: list[int] = []

    def count() -> None:
        gc.collect()
        # Not isinstance, which asks the thing: among all that other tests have loaded are some that answer with an error.
        held.append(sum(type(thing) is Record for thing in gc.get_objects()))

    wire = Wire(INITIALIZE, BATCH, ShardEnded(), STORED)
    wire.before_read = count
    serve(Idle(), wire)
    assert held[1] == held[2], "before the batch, and after it"
