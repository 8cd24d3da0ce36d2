"""A user's function as a processor: what is done, rejected, raised and checkpointed, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kcl_client import Batch, Record, RejectError, RejectRecord
from kcl_client._function_processors import processor_of as timed_processor_of
from kcl_client._processor import PlainRuntime, RecordProcessor, complete
from kcl_client._session import SessionOptions
from kcl_client._timed import TimedProcessor, TimedSession, Timer
from kcl_client.testing import Ending, Report, drive, make_record, processor_of
from kcl_protocol.errors import (
    CheckpointShutdown,
    CheckpointThrottled,
    NoDeadLetterDestination,
    RecordNotInBatch,
)
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    LeaseLost,
    Reject,
    RejectAnswer,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import SHARD_END
from tests.unit.client.support import BATCH, INITIALIZE, STORED, Wire


@dataclass
class Order:
    id: int


RECORDS = ['{"id": 1}', "no json", '{"id": 2}', '{"id": 0}']
DECODING = "cannot be decoded to Order: JSON is malformed: invalid character (byte 4)"
UNKNOWN = "no such order: 0"


class Functions:
    """Each form of the same: it notes orders, and rejects number 0."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def plain(self, order: Order) -> None:
        if order.id == 0:
            raise RejectRecord(UNKNOWN)
        self.seen.append(order.id)

    async def coroutine(self, order: Order) -> None:
        self.plain(order)

    def both(self, order: Order, record: Record) -> None:
        assert record.json() == {"id": order.id}
        self.plain(order)

    async def coroutine_of_both(self, order: Order, record: Record) -> None:
        self.both(order, record)


@pytest.mark.parametrize("form", ["plain", "coroutine", "both", "coroutine_of_both"])
def test_a_record_that_is_not_decoded_or_not_wanted_is_rejected_with_the_reason(form: str) -> None:
    functions = Functions()
    report = drive(processor_of(getattr(functions, form)), RECORDS, dead_letters=True)
    assert functions.seen == [1, 2]
    assert [reason for _, reason in report.rejected] == [DECODING, UNKNOWN]
    assert (report.exception, report.last_checkpoint) == (None, SHARD_END)


@pytest.mark.parametrize("form", ["plain", "coroutine"])
@pytest.mark.parametrize(
    ("records", "reason"),
    [(RECORDS[:2], DECODING.removeprefix("cannot be decoded to Order: ")), (RECORDS[3:], UNKNOWN)],
)
def test_where_no_letter_can_be_stored_the_record_fails_with_its_own_reason(
    form: str, records: list[str], reason: str
) -> None:
    report = drive(processor_of(getattr(Functions(), form)), records)
    assert isinstance(report.exception, NoDeadLetterDestination)
    assert report.exit_code == 70
    assert reason in str(report.exception.__cause__)
    noted = [
        *getattr(report.exception, "__notes__", ()),
        *getattr(report.exception.__cause__, "__notes__", ()),
    ]
    number = f"record 4964000000000000000000000000000000000000000000000000000{len(records)}"
    assert [note for note in noted if number in note]
    assert report.last_checkpoint != SHARD_END


def test_only_the_first_letter_is_waited_for() -> None:
    report = drive(
        processor_of(Functions().plain),
        ["a", "b", "c"],
        dead_letters=True,
        reject_errors=[None, RecordNotInBatch],
    )
    assert isinstance(report.exception, RejectError)
    assert len(report.rejected) == 2


class Failed(Exception):
    pass


def raising(order: Order) -> None:
    raise Failed(order.id)


async def raising_later(order: Order) -> None:
    raise Failed(order.id)


@pytest.mark.parametrize("function", [raising, raising_later])
def test_an_exception_of_a_function_ends_the_process_and_names_the_record(
    function: Callable[..., object],
) -> None:
    record = make_record('{"id": 3}', sequence_number="77", sub_sequence_number=2, partition_key="k'")
    report = drive(processor_of(function), [record])
    assert isinstance(report.exception, Failed)
    assert report.exception.__notes__ == [
        """kcl_client: at record 77, 2 in its aggregate, partition key "k'\""""
    ]
    assert (report.exit_code, report.checkpoints) == (70, ())


def test_sys_exit_in_a_function_is_that_of_the_process() -> None:
    def leaves(record: Record) -> None:
        sys.exit(3)

    assert drive(processor_of(leaves), ["a"]).exit_code == 3


def test_a_plain_function_that_returns_a_coroutine_is_refused() -> None:
    def forgets(order: Order) -> object:
        return raising_later(order)

    def forgets_of_batch(batch: Batch) -> object:
        return raising_later(Order(1))

    for each in (forgets, forgets_of_batch):
        report = drive(processor_of(each), ['{"id": 1}'])
        assert isinstance(report.exception, TypeError)
        assert "returned a coroutine, which nobody runs; make it `async def`" in str(report.exception)


class OfBatches:
    def __init__(self, result: Callable[[Batch], object] = lambda _: None) -> None:
        self.sizes: list[int] = []
        self.result = result

    def plain(self, batch: Batch) -> object:
        self.sizes.append(len(batch))
        return self.result(batch)

    async def coroutine(self, batch: Batch) -> object:
        return self.plain(batch)


@pytest.mark.parametrize("form", ["plain", "coroutine"])
def test_a_batch_is_checkpointed_when_the_function_returns(form: str) -> None:
    functions = OfBatches()
    report = drive(
        processor_of(getattr(functions, form)), ["a", "b", "c"], batch_size=2, ending=Ending.CLOSED
    )
    assert functions.sizes == [2, 1]
    assert [int(each.sequence_number) % 10 for each in report.checkpoints] == [2, 3]


@pytest.mark.parametrize("form", ["plain", "coroutine"])
def test_a_function_of_a_batch_that_returns_its_first_failure_gets_the_rest(form: str) -> None:
    done: list[str] = []

    def first(batch: Batch) -> object:
        for record in batch:
            if record.data == b"bad":
                return {"batchItemFailures": [{"itemIdentifier": record.sequence_number}]}
            done.append(record.text())
        return None

    report = drive(
        processor_of(getattr(OfBatches(first), form)),
        ["a", "bad", "c", "d"],
        ending=Ending.CLOSED,
        dead_letters=True,
    )
    assert done == ["a", "c", "d"]
    assert [reason for _, reason in report.rejected] == ["named in batchItemFailures"]
    assert int(report.checkpoints[-1].sequence_number) % 10 == 4


@pytest.mark.parametrize("form", ["plain", "coroutine"])
def test_an_empty_batch_is_no_call(form: str) -> None:
    functions = OfBatches()
    processor = processor_of(getattr(functions, form))
    assert drive(processor, [], ending=Ending.SHUTDOWN).exception is None
    assert functions.sizes == []


def run_with_interval(every_s: float, ending: Ending = Ending.CLOSED) -> Report:
    processor = timed_processor_of(Functions().plain, checkpoint_every_s=every_s)
    return drive(processor, RECORDS[::2], batch_size=1, ending=ending)


def test_a_position_is_stored_when_it_is_due_and_at_every_end() -> None:
    assert len(run_with_interval(1e-9).checkpoints) == 2
    assert len(run_with_interval(1e9).checkpoints) == 0
    assert len(run_with_interval(1e9, Ending.SHUTDOWN).checkpoints) == 1
    assert run_with_interval(1e9, Ending.SHARD_ENDED).checkpoints == (SHARD_END,)
    assert run_with_interval(1e9, Ending.LEASE_LOST).checkpoints == ()


def test_a_position_is_stored_between_two_records_too_and_never_above_one_that_is_not_done() -> None:
    done: list[int] = []

    def until_three(order: Order) -> None:
        if order.id == 3:
            raise Failed
        done.append(order.id)

    report = drive(
        timed_processor_of(until_three, checkpoint_every_s=1e-9),
        [f'{{"id": {number}}}' for number in (1, 2, 3)],
    )
    assert done == [1, 2]
    assert [int(each.sequence_number) % 10 for each in report.checkpoints] == [1, 2]


def test_letters_are_stored_before_a_position_between_two_records() -> None:
    processor = timed_processor_of(Functions().plain, checkpoint_every_s=1e-9)
    report = drive(processor, [*RECORDS, *RECORDS], dead_letters=True)
    kinds = [
        type(each).__name__
        for each in report.messages
        if isinstance(each, Reject | RejectAnswer | CheckpointRequest)
    ]
    assert len(report.rejected) == 4
    for index, kind in enumerate(kinds):
        if kind == "CheckpointRequest":
            assert kinds[:index].count("Reject") == kinds[:index].count("RejectAnswer")


def test_a_throttled_position_is_stored_with_a_later_batch() -> None:
    processor = timed_processor_of(Functions().plain, checkpoint_every_s=1e-9)
    report = drive(
        processor,
        RECORDS[::2],
        batch_size=1,
        ending=Ending.CLOSED,
        checkpoint_errors=[CheckpointThrottled],
    )
    assert (len(report.checkpoints), report.refusals, report.backoffs_s) == (1, ("ThrottlingException",), ())
    assert report.exception is None


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Quiet(TimedProcessor):
    """Its timer follows a clock that moves while the session waits."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Timer(10.0, clock))

    def process_records(self, batch: Batch, checkpointer: object) -> None:
        self.timer.position = batch.records[-1].position


def converse(*said: object, clock: Clock) -> tuple[list[object], list[float]]:
    """What a quiet processor says if nothing comes for as long as it waits."""
    wire, waited = Wire(*said), list[float]()  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    def waits(seconds: float) -> bool:
        waited.append(seconds)
        clock.now_s += seconds
        return False

    runtime = PlainRuntime(wire.read, wire.write, lambda _: None)
    session = TimedSession(Quiet(clock), runtime, waits, SessionOptions())
    complete(session.serve())
    return list(wire.said), waited


ASKED = CheckpointRequest("2", 0)


def test_a_position_is_stored_while_no_batch_comes() -> None:
    said, waited = converse(INITIALIZE, BATCH, STORED, LeaseLost(), clock=Clock())
    assert said == [Status("initialize"), Status("processRecords"), ASKED, Status("leaseLost")]
    assert waited == [10.0]


def test_the_next_action_may_come_before_the_answer() -> None:
    said, _ = converse(INITIALIZE, BATCH, ShutdownRequested(), STORED, STORED, LeaseLost(), clock=Clock())
    assert said == [
        Status("initialize"),
        Status("processRecords"),
        ASKED,
        CheckpointRequest(),
        Status("shutdownRequested"),
        Status("leaseLost"),
    ]


def test_a_throttled_checkpoint_is_asked_for_again_later() -> None:
    throttled = CheckpointAnswer("2", 0, CheckpointThrottled.wire_name)
    said, waited = converse(INITIALIZE, BATCH, throttled, STORED, LeaseLost(), clock=Clock())
    assert said.count(ASKED) == 2
    assert waited == [10.0, 10.0]


def test_after_a_lost_lease_nothing_more_is_asked_for() -> None:
    lost = CheckpointAnswer("2", 0, CheckpointShutdown.wire_name)
    said, _ = converse(INITIALIZE, BATCH, lost, LeaseLost(), clock=Clock())
    assert said.count(ASKED) == 1


def test_before_a_batch_there_is_nothing_to_store() -> None:
    said, waited = converse(INITIALIZE, LeaseLost(), clock=Clock())
    assert (said, waited) == ([Status("initialize"), Status("leaseLost")], [])


def test_a_daemon_that_goes_before_it_answers_ends_the_session() -> None:
    said, _ = converse(INITIALIZE, BATCH, clock=Clock())
    assert said == [Status("initialize"), Status("processRecords"), ASKED]


def test_a_timer_counts_from_the_last_time_that_something_was_stored() -> None:
    clock = Clock()
    timer = Timer(10.0, clock)
    assert timer.left_s() is None
    timer.position = SHARD_END
    clock.now_s += 4
    assert timer.left_s() == 6.0
    clock.now_s += 60
    assert timer.left_s() == 0.0
    timer.stored()
    assert timer.left_s() is None
    timer.position = SHARD_END
    assert timer.left_s() == 10.0


def test_a_plain_function_is_a_record_processor() -> None:
    assert isinstance(processor_of(raising), RecordProcessor)
