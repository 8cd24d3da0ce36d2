"""What becomes a dead letter by a processor's will, when the daemon is asked, and what a refusal does."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client's asynchronous form is asyncio's
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_client import (
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Batch,
    Checkpointer,
    CheckpointShutdown,
    DeadLetterTooLarge,
    ExtendedSequenceNumber,
    ItemFailures,
    NoDeadLetterDestination,
    Record,
    RecordNotInBatch,
    RecordProcessor,
    RejectError,
    RejectRecord,
)
from kcl_client._processor import batch_of, failed_records
from kcl_client._session import ProcessorFailed
from kcl_client.testing import Ending, Report, drive, make_record
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.frames import Columns, encode_frame
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    LeaseLost,
    ProcessRecords,
    Reject,
    RejectAnswer,
    Status,
)
from kcl_protocol.sequence import SHARD_END
from tests.examples import examples
from tests.unit.client.support import (
    BATCH,
    INITIALIZE,
    STORED,
    Handled,
    Handler,
    Idle,
    Wire,
    serve,
    serve_async,
)

RECORDS = [make_record(text, sequence_number=str(7 + index)) for index, text in enumerate("abcd")]
LETTER = RejectAnswer("1", 0, None)
DONE = [Status("initialize"), Status("processRecords")]


def driven(handler: Handler, *, dead_letters: bool = True, **options: Any) -> Report:
    return drive(Handled(handler), RECORDS, ending=Ending.CLOSED, dead_letters=dead_letters, **options)


def at(number: int, sub_number: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number), sub_number)


def reject_first(batch: Batch, _checkpointer: Checkpointer) -> None:
    batch.reject(batch.records[0], "bad")


def failure(handler: Handler, *said: RejectAnswer | CheckpointAnswer | bytes, **options: Any) -> Any:
    with pytest.raises(ProcessorFailed) as caught:
        serve(Handled(handler), Wire(INITIALIZE, BATCH, *said), **options)
    return caught.value.__cause__


class Rejecting(AsyncRecordProcessor):
    """Rejects every second record."""

    async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
        for record in batch.records[::2]:
            batch.reject(record, "second")
        await checkpointer.checkpoint()


def test_records_are_rejected_together_and_their_answers_read_before_the_batch_is_answered() -> None:
    def handle(batch: Batch, _checkpointer: Checkpointer) -> None:
        for record in batch:
            batch.reject(record, LookupError("no customer"))

    wire = Wire(INITIALIZE, BATCH, LETTER, RejectAnswer("2", 0, None))
    serve(Handled(handle), wire)
    rejects = [Reject("1", 0, "no customer"), Reject("2", 0, "no customer")]
    assert wire.said == [DONE[0], *rejects, DONE[1]]


def test_a_checkpoint_comes_after_the_letters_that_it_covers() -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        batch.reject(batch.records[1], "bad")
        checkpointer.checkpoint()
        batch.reject(batch.records[2], "worse")

    report = driven(handle)
    asked = [message for message in report.messages if isinstance(message, Reject | CheckpointRequest)]
    assert asked == [Reject("8", 0, "bad"), CheckpointRequest(), Reject("9", 0, "worse")]
    assert report.rejected == ((at(8), "bad"), (at(9), "worse"))
    assert (report.checkpoints, report.exit_code) == ((at(10),), 0)


def test_the_asynchronous_form_rejects_in_the_same_way() -> None:
    report = drive(Rejecting(), RECORDS, dead_letters=True)
    assert report.rejected == ((at(7), "second"), (at(9), "second"))
    assert report.checkpoints == (at(10), SHARD_END)


def test_one_may_wait_for_the_letters_alone() -> None:
    class Waiting(AsyncRecordProcessor):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            batch.reject(batch.records[0], "bad")
            with pytest.raises(NoDeadLetterDestination):
                await checkpointer.wait_for_letters()
            await checkpointer.wait_for_letters()

    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        batch.reject(batch.records[0], "bad")
        checkpointer.wait_for_letters()
        assert wire.said == [DONE[0], Reject("1", 0, "bad")]
        batch.reject(batch.records[1], "bad")
        with pytest.raises(CheckpointShutdown):
            checkpointer.wait_for_letters()

    wire = Wire(INITIALIZE, BATCH, LETTER, RejectAnswer("2", 0, "ShutdownException"))
    serve(Handled(handle), wire)
    assert wire.statuses == ["initialize", "processRecords"]
    report = drive(Waiting(), RECORDS)
    assert (report.exit_code, report.rejected, report.checkpoints) == (0, (), (SHARD_END,))


def test_a_refusal_whose_asker_was_cancelled_is_not_forgotten() -> None:
    class Impatient(AsyncRecordProcessor):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            batch.reject(batch.records[0], "bad")
            asking = asyncio.create_task(checkpointer.checkpoint())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    wire = Wire(INITIALIZE, BATCH, RejectAnswer("1", 0, "DeadLetterTooLarge"))
    with pytest.raises(ProcessorFailed) as caught:
        serve_async(Impatient(), wire)
    assert isinstance(caught.value.__cause__, DeadLetterTooLarge)
    assert wire.said == [DONE[0], Reject("1", 0, "bad")]


def test_threads_may_reject_while_another_checkpoints() -> None:
    records = [make_record("x", sequence_number=str(n)) for n in range(1, 401)]

    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        with ThreadPoolExecutor(8) as pool:
            done = [pool.submit(batch.reject, record, "bad") for record in batch]
            for record in batch.records[::40]:
                checkpointer.checkpoint(record)
            for each in done:
                each.result()

    report = drive(Handled(handle), records, batch_size=200, dead_letters=True)
    assert sorted(report.rejected) == [(at(n), "bad") for n in range(1, 401)]
    assert (report.exit_code, report.last_checkpoint) == (0, SHARD_END)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reject_while_a_checkpoint_waits_for_its_answer_is_sent_after_it(is_async: bool) -> None:
    wire = Wire(INITIALIZE, BATCH, STORED, RejectAnswer("2", 0, None))

    def prepare(batch: Batch) -> None:
        def reject_once() -> None:
            wire.before_read = lambda: None
            batch.reject(batch.records[1], "bad")

        wire.before_read = reject_once

    class Plain(Idle):
        def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
            prepare(batch)
            checkpointer.checkpoint(batch.records[0])

    class Asynchronous(AsyncRecordProcessor):
        async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
            prepare(batch)
            await checkpointer.checkpoint(batch.records[0])

    if is_async:
        serve_async(Asynchronous(), wire)
    else:
        serve(Plain(), wire)
    assert wire.said == [DONE[0], CheckpointRequest("1", 0), Reject("2", 0, "bad"), DONE[1]]


@pytest.mark.parametrize(("length", "kept"), [(4_000, 4_000), (4_001, 4_001), (10**7, 4_001)])
def test_a_long_reason_is_cut(length: int, kept: int) -> None:
    report = driven(lambda batch, _: batch.reject(batch.records[0], "é" * length))
    assert len(report.rejected[0][1]) == kept


def test_without_a_destination_the_daemon_refuses_and_the_batch_is_not_done() -> None:
    report = driven(reject_first, dead_letters=False)
    assert isinstance(report.exception, NoDeadLetterDestination)
    assert (report.rejected, report.exit_code) == ((), 70)
    assert report.messages[-1] == RejectAnswer("7", 0, "NoDeadLetterDestination")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NoDeadLetterDestination", NoDeadLetterDestination),
        ("DeadLetterTooLarge", DeadLetterTooLarge),
        ("IllegalArgumentException", RecordNotInBatch),
        ("InvalidStateException", RejectError),
        ("FromTheFuture", RejectError),
    ],
)
def test_a_refusal_has_its_class_its_name_and_the_words_of_the_daemon(
    name: str, kind: type[Exception]
) -> None:
    error = failure(reject_first, RejectAnswer("1", 0, name, "set this"))
    assert (type(error), error.wire_name, str(error)) == (kind, name, "record 1: set this")


def test_a_checkpoint_tells_of_the_refusal_and_is_not_asked_for() -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        batch.reject(batch.records[0], "bad")
        with pytest.raises(DeadLetterTooLarge):
            checkpointer.checkpoint()
        checkpointer.checkpoint()  # the processor has found another place for it

    report = driven(handle, reject_errors=[DeadLetterTooLarge])
    assert (report.checkpoints, report.rejected, report.exit_code) == ((at(10),), (), 0)


def test_the_others_are_letters_where_one_is_refused() -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            batch.reject(record, "bad")
        with pytest.raises(RejectError, match="record 8: Odd"):
            checkpointer.checkpoint()

    report = driven(handle, reject_errors=[None, "Odd"])
    assert [position for position, _ in report.rejected] == [at(7), at(9), at(10)]


def test_a_record_of_another_batch_is_refused() -> None:
    kept: list[Record] = []

    def handle(batch: Batch, _checkpointer: Checkpointer) -> None:
        kept.extend(batch)
        batch.reject(kept[0], "late")

    report = driven(handle, batch_size=2)
    assert isinstance(report.exception, RecordNotInBatch)
    assert report.rejected == ((at(7), "late"),)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_letter_that_could_not_be_stored_before_a_stop_is_no_failure_and_nothing_is_stored_after(
    goes_on: bool,
) -> None:
    def handle(batch: Batch, checkpointer: Checkpointer) -> None:
        batch.reject(batch.records[0], "bad")
        if goes_on:
            for _ in range(2):
                with pytest.raises(CheckpointShutdown):
                    checkpointer.checkpoint()
            batch.reject(batch.records[1], "bad")

    wire = Wire(INITIALIZE, BATCH, RejectAnswer("1", 0, "ShutdownException"), LeaseLost())
    serve(Handled(handle), wire)
    assert wire.said == [DONE[0], Reject("1", 0, "bad"), DONE[1], Status("leaseLost")]


def test_the_end_of_input_in_a_reject_ends_the_session_in_order() -> None:
    wire = Wire(INITIALIZE, BATCH)
    serve(Handled(reject_first), wire)
    assert wire.said == [DONE[0], Reject("1", 0, "bad")]


@pytest.mark.parametrize("said", [b"no\n", STORED])
def test_another_message_in_place_of_the_answer_breaks_the_conversation(
    said: bytes | CheckpointAnswer,
) -> None:
    with pytest.raises(RemoteProtocolError):
        serve(Handled(reject_first), Wire(INITIALIZE, BATCH, said))


def test_a_daemon_that_takes_no_rejects_is_not_asked() -> None:
    wire = Wire(INITIALIZE, BATCH)
    with pytest.raises(ProcessorFailed) as caught:
        serve(Handled(reject_first), wire, takes_rejects=False)
    assert "KCL_REJECTS is not in the environment" in str(caught.value.__cause__)
    assert wire.said == [DONE[0]]


def test_nothing_can_be_rejected_once_the_batch_is_answered() -> None:
    class Late(Idle):
        def __init__(self) -> None:
            super().__init__()
            self.kept: Batch | None = None

        def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
            self.kept = batch

        def shutdown_requested(self, checkpointer: Checkpointer) -> None:
            assert self.kept is not None
            self.kept.reject(self.kept.records[0], "late")

    report = drive(Late(), RECORDS, ending=Ending.SHUTDOWN, dead_letters=True)
    assert "only while process_records runs" in str(report.exception)


def test_a_batch_of_ones_own_and_a_copy_have_no_daemon() -> None:
    def handle(batch: Batch, _checkpointer: Checkpointer) -> None:
        copy = pickle.loads(pickle.dumps(batch))
        assert [record.data for record in copy] == [record.data for record in batch]
        for other in (copy, Batch(batch.records)):
            with pytest.raises(RejectError, match="did not come from a daemon"):
                other.reject(other.records[0], "bad")

    assert driven(handle).exit_code == 0


def test_the_exception_for_single_records_says_what_to_do_with_a_batch() -> None:
    def handle(_batch: Batch, _checkpointer: Checkpointer) -> None:
        raise RejectRecord("bad")

    error = failure(handle)
    assert (str(error), error.__notes__) == (
        "bad",
        ["kcl_client: in process_records call batch.reject(record, reason) instead"],
    )


def lambda_answer(*identifiers: object) -> dict[str, object]:
    return {"batchItemFailures": [{"itemIdentifier": each} for each in identifiers]}


class Failing(Idle):
    """Names the bad ones of a batch, all of them or the first, and keeps what it has done, and saw."""

    def __init__(self, *bad: str, only_first: bool = True, rule: ItemFailures = ItemFailures()) -> None:  # noqa: B008 - a value
        super().__init__()
        self.item_failures = rule
        self.seen: list[list[str]] = []
        self.done: list[str] = []
        self._bad, self._only_first = bad, only_first

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> dict[str, object]:
        self.seen.append([record.sequence_number for record in batch])
        named: list[object] = []
        for record in batch:
            if record.sequence_number in self._bad:
                named.append(record.sequence_number)
                if self._only_first:
                    break
            else:
                self.done.append(record.sequence_number)
        return lambda_answer(*named)


def test_the_records_after_a_first_failure_are_delivered_and_it_is_a_letter_after_its_attempts() -> None:
    processor = Failing("8")
    report = drive(processor, RECORDS, dead_letters=True)
    assert processor.seen == [["7", "8", "9", "10"], ["8", "9", "10"], ["8", "9", "10"], ["9", "10"]]
    assert processor.done == ["7", "9", "10"]
    assert report.rejected == ((at(8), "named in batchItemFailures"),)
    assert report.checkpoints[:3] == (at(7), at(8), at(10))
    assert report.backoffs_s == (0.5, 1.0)


def test_pauses_grow_while_every_record_fails_and_begin_anew_once_one_does_not() -> None:
    report = drive(Failing("7", "8", "10"), RECORDS, dead_letters=True)
    assert report.backoffs_s == (0.5, 1.0, 2.0, 4.0, 0.5, 1.0)
    assert [where for where, _ in report.rejected] == [at(7), at(8), at(10)]


def test_without_a_destination_what_is_below_the_lowest_failure_is_done_and_no_more() -> None:
    for rule in (ItemFailures(), ItemFailures(attempts=1), ItemFailures(exact=True)):
        report = drive(Failing("8", rule=rule), RECORDS)
        assert isinstance(report.exception, NoDeadLetterDestination)
        assert report.checkpoints == (at(7),)


def test_a_failure_with_0_attempts_ends_the_process_without_a_letter() -> None:
    report = drive(Failing("8", rule=ItemFailures(attempts=0)), RECORDS, dead_letters=True)
    assert "named in batchItemFailures" in str(report.exception)
    assert (report.checkpoints, report.rejected, report.exit_code) == ((at(7),), (), 70)


def test_exactly_the_named_records_are_letters_where_that_is_wanted() -> None:
    processor = Failing("9", "7", only_first=False, rule=ItemFailures(exact=True))
    report = drive(processor, RECORDS, dead_letters=True)
    assert len(processor.seen) == 1
    assert [where for where, _ in report.rejected] == [at(7), at(9)]
    assert report.checkpoints[0] == at(10)


@given(st.sets(st.integers(1, 12)), st.integers(1, 4), st.booleans(), st.integers(1, 12))
def test_each_record_is_done_or_a_letter_whatever_fails(
    bad: set[int], attempts: int, only_first: bool, batch_size: int
) -> None:
    processor = Failing(*map(str, bad), only_first=only_first, rule=ItemFailures(attempts))
    records = [make_record("x", sequence_number=str(number)) for number in range(1, 13)]
    report = drive(processor, records, dead_letters=True, batch_size=batch_size)
    assert [where for where, _ in report.rejected] == [at(number) for number in sorted(bad)]
    assert set(map(int, processor.done)) == set(range(1, 13)) - bad
    assert report.exit_code == 0


def test_a_record_that_fails_for_a_while_is_no_letter() -> None:
    class Healed(Failing):
        def process_records(self, batch: Batch, checkpointer: Checkpointer) -> dict[str, object]:
            if len(self.seen) == 2:
                self._bad = ()
            return super().process_records(batch, checkpointer)

    processor = Healed("8")
    report = drive(processor, RECORDS, dead_letters=True)
    assert (processor.done, report.rejected) == (["7", "8", "9", "10"], ())


@pytest.mark.parametrize("answer", [lambda_answer(), {"batchItemFailures": None}])
def test_lambdas_answer_without_failures_checkpoints_the_batch(answer: object) -> None:
    report = driven(lambda _batch, _checkpointer: answer)
    assert (report.rejected, report.checkpoints) == ((), (at(10),))


@pytest.mark.parametrize("answer", [None, {}, {"statusCode": 200}, [], True, "batchItemFailures"])
def test_any_other_result_has_no_effect(answer: object) -> None:
    report = driven(lambda _batch, _checkpointer: answer)
    assert (report.rejected, report.checkpoints, report.exit_code) == ((), (), 0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda_answer("7", "77"), "not in the batch: [\"'77'\"]"),
        (lambda_answer(""), "not in the batch"),
        (lambda_answer(None), "not in the batch"),
        (lambda_answer(7), "not in the batch: "),
        (lambda_answer("7:1"), "not in the batch"),
        (lambda_answer(["7"]), "must be a list of"),
        ({"batchItemFailures": [{"itemidentifier": "7"}]}, "must be a list of"),
        ({"batchItemFailures": ["7"]}, "must be a list of"),
        ({"batchItemFailures": 7}, "must be a list of"),
        ({"batchItemFailures": ""}, "must be a list of"),
        ({"batchItemFailures": {}}, "must be a list of"),
    ],
)
def test_an_answer_that_names_no_record_fails_the_batch_and_rejects_nothing(
    answer: object, text: str
) -> None:
    report = driven(lambda _batch, _checkpointer: answer)
    assert isinstance(report.exception, ValueError)
    assert text in str(report.exception)
    assert (report.rejected, report.checkpoints) == ((), ())


@pytest.mark.parametrize(("identifier", "rejected"), [("7", [0, 1, 2]), ("7:1", [1])])
def test_a_number_names_a_whole_aggregate_and_a_pair_one_record_of_it(
    identifier: str, rejected: list[int]
) -> None:
    parts = [make_record("x", sequence_number="7", sub_sequence_number=part) for part in range(3)]
    report = drive(Handled(lambda _batch, _checkpointer: lambda_answer(identifier)), parts, dead_letters=True)
    assert [position for position, _ in report.rejected] == [at(7, part) for part in rejected]
    assert report.exit_code == (0 if len(rejected) == 3 else 70), "the rest comes again, and is named wrongly"


positions = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), unique=True, max_size=12).map(sorted)


@given(positions, st.data())
@settings(max_examples=examples(200))
def test_exactly_the_named_records_of_a_batch_are_found(
    numbers: list[tuple[int, int]], data: st.DataObject
) -> None:
    wire = [make_record("x", sequence_number=str(n), sub_sequence_number=sub) for n, sub in numbers]
    named = data.draw(st.lists(st.sampled_from(numbers), unique=True) if numbers else st.just([]))
    failed = failed_records(
        lambda_answer(*(f"{n}:{sub}" for n, sub in named)), batch_of(ProcessRecords(wire, 0))
    )
    assert failed is not None
    assert [record.position for group in failed for record in group] == [at(*pair) for pair in sorted(named)]


def test_a_record_of_a_frame_is_rejected_by_its_numbers() -> None:
    frame = encode_frame(Columns([b"x", b"y"], [b"a", b"b"], ["5", "5"], [0, 0], [1, 2]), 0)
    wire = Wire(INITIALIZE, frame, RejectAnswer("5", 2, None))
    serve(Handled(lambda batch, _: batch.reject(batch.records[1], "bad")), wire, takes_frames=True)
    assert wire.said[1:] == [Reject("5", 2, "bad"), DONE[1]]


class Singles(AsyncRecordProcessor):
    """Rejects the records whose number is in `bad`, once the others had many turns."""

    def __init__(self, *bad: int) -> None:
        self._bad = bad

    async def process_record(self, record: Record) -> None:
        for _ in range(int(record.sequence_number) * 7919 % 13):
            await asyncio.sleep(0)
        if int(record.sequence_number) in self._bad:
            raise RejectRecord(f"bad {record.sequence_number}")


def singles(*bad: int, **options: Any) -> Report:
    records = [make_record("x", sequence_number=str(n), partition_key=str(n % 7)) for n in range(1, 61)]
    return drive(Singles(*bad), records, concurrency=8, batch_size=20, **options)


@pytest.mark.parametrize("order", ["key", "none"])
def test_single_records_are_rejected_before_their_batch_is_answered_and_before_it_is_stored(
    order: str,
) -> None:
    report = singles(3, 20, 41, dead_letters=True, order=order)
    assert set(report.rejected) == {(at(n), f"bad {n}") for n in (3, 20, 41)}
    assert (report.last_checkpoint, report.exit_code) == (SHARD_END, 0)
    batches = [
        message for message in report.messages if isinstance(message, ProcessRecords | Reject | Status)
    ]
    assert [type(message) for message in batches[1:8]] == [
        *(ProcessRecords, Reject, Reject, Status),
        *(ProcessRecords, Status),
        ProcessRecords,
    ]


def test_single_records_cannot_be_rejected_without_a_destination() -> None:
    report = singles(3)
    assert isinstance(report.exception, NoDeadLetterDestination)
    assert isinstance(report.exception.__cause__, RejectRecord)
    assert not any(isinstance(message, Reject) for message in report.messages)


def test_a_refusal_stores_nothing_more_as_the_window_takes_the_record_for_done() -> None:
    report = singles(3, dead_letters=True, reject_errors=[DeadLetterTooLarge])
    assert isinstance(report.exception, DeadLetterTooLarge)
    assert (report.checkpoints, report.rejected) == ((), ())
    assert not any(isinstance(message, CheckpointRequest) for message in report.messages)


def test_a_failure_beside_a_rejected_record_stores_its_letter_with_what_is_below() -> None:
    class Failing(Singles):
        async def process_record(self, record: Record) -> None:
            if record.sequence_number == "30":
                for _ in range(20):
                    await asyncio.sleep(0)
                raise LookupError("mine")
            await super().process_record(record)

    records = [make_record("x", sequence_number=str(n), partition_key=str(n)) for n in range(1, 61)]
    report = drive(Failing(25), records, concurrency=60, dead_letters=True)
    assert isinstance(report.exception, LookupError)
    assert [position for position, _ in report.rejected] == [at(25)]
    assert report.checkpoints == (at(29),)


class Breaker(Idle):
    """Asks for a pause in each batch."""

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        batch.pause(99)
        batch.pause(int(batch.records[0].text()) / 1000)


def test_a_pause_is_in_the_answer_to_its_batch_and_in_no_other() -> None:
    report = drive(Breaker(), ["1500", "0", "1", "900000"], batch_size=1, ending=Ending.SHUTDOWN)
    statuses = [message for message in report.messages if isinstance(message, Status)]
    assert [status.pause_ms for status in statuses] == [None, 1500, None, 1, 900_000, None, None]
    assert report.pauses_s == (1.5, 0.001, 900.0)


@pytest.mark.parametrize("seconds", [-1, 901, float("nan"), float("inf")])
def test_a_pause_of_no_sense_is_a_mistake(seconds: float) -> None:
    report = driven(lambda batch, _: batch.pause(seconds))
    assert isinstance(report.exception, ValueError)
    assert "from 0 to 900" in str(report.exception)


def test_under_a_daemon_that_takes_no_pauses_the_client_waits_before_it_answers() -> None:
    wire = Wire(INITIALIZE, BATCH, BATCH)
    waited: list[tuple[float, int]] = []
    handler: list[float] = [2.5, 0]
    serve(
        Handled(lambda batch, _: batch.pause(handler.pop(0))),
        wire,
        takes_rejects=False,
        sleep=lambda seconds: waited.append((seconds, len(wire.said))),
    )
    assert waited == [(2.5, 1)]
    assert wire.said == [DONE[0], DONE[1], DONE[1]]


def example(page: str, heading: str) -> str:
    text = (Path(__file__).parents[3] / "docs" / page).read_text("utf-8")
    return text.partition(f"# {heading}\n")[2].partition("```py\n")[2].partition("```")[0]


def processor_of(text: str) -> RecordProcessor:
    names: dict[str, Any] = {"__name__": "orders"}
    exec(text, names)
    orders: RecordProcessor = names["Orders"]()
    return orders


def test_the_example_of_rejects_gives_up_what_is_no_json() -> None:
    report = drive(
        processor_of(example("failures.md", "Rejecting in Python")), ["1", "no", "3"], dead_letters=True
    )
    ((_, reason),) = report.rejected
    assert "Expecting value" in reason
    assert report.last_checkpoint == SHARD_END


class ServiceDown(Exception):
    """Of the example's module."""


@pytest.mark.parametrize("ending", [Ending.SHARD_ENDED, Ending.SHUTDOWN])
def test_the_example_of_a_pause_stores_nothing_that_was_not_sent(
    monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    sent: list[bytes] = []
    is_down = iter([False, True, True, True])

    def send(data: bytes) -> None:
        if next(is_down, False):
            raise ServiceDown
        sent.append(data)

    module = ModuleType("orders")
    vars(module).update(ServiceDown=ServiceDown, send=send)
    monkeypatch.setitem(sys.modules, "orders", module)
    processor = processor_of(example("flow.md", "In Python"))
    report = drive(processor, ["a", "b", "c", "d"], batch_size=1, ending=ending)
    assert (report.exit_code, report.pauses_s, len(report.checkpoints)) == (
        0,
        (30.0, 30.0, 30.0),
        2 if ending is Ending.SHARD_ENDED else 1,
    )
    assert sent == ([b"a", b"b", b"c", b"d"] if ending is Ending.SHARD_ENDED else [b"a"])
