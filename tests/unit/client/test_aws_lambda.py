"""Handlers of AWS Lambda: their events, answers and windows; and handlers that cannot be had."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_client import Batch, ExtendedSequenceNumber, ItemFailures, NoDeadLetterDestination, aws_lambda
from kcl_client._processor import Checkpointer, PlainRuntime, Record, complete
from kcl_client._session import Session, SessionOptions
from kcl_client.aws_lambda import Event, LambdaContext, LambdaProcessor
from kcl_client.aws_lambda._events import STATE_MOST_BYTES, Source, Window, runs_of
from kcl_client.aws_lambda._runtime import (
    NoHandler,
    find_handler,
    function_name_of,
    set_up_logging,
    set_variables,
)
from kcl_client.logs import DaemonLogHandler
from kcl_client.testing import Ending, MemoryDaemon, Report, drive, make_record
from kcl_protocol.messages import Action, Initialize, LeaseLost, ProcessRecords, ShutdownRequested
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.unit.client.lambda_facts import VARIABLES, assert_event

ARN: Final = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
TABLE_ARN: Final = "arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/2026-11-20T20:51:10.252"
MINUTE_MS: Final = 60_000
NOON_MS: Final = 1_735_732_800_000


class Handled:
    """A handler that keeps what it was given; `answer` makes its answer."""

    def __init__(self, answer: Callable[[Event], object] = lambda _: None) -> None:
        self.events: list[Event] = []
        self.contexts: list[LambdaContext] = []
        self._answer = answer

    def __call__(self, event: Event, context: LambdaContext) -> object:
        self.events.append(json.loads(json.dumps(event)))
        self.contexts.append(context)
        return self._answer(event)


def processor_of(handler: Handled, **options: Any) -> LambdaProcessor:
    given: dict[str, Any] = {"stream_arn": ARN, "function_name": "orders", **options}
    return LambdaProcessor(handler, **given)


def numbers(event: Event) -> list[str]:
    return [record["kinesis"]["sequenceNumber"] for record in event["Records"]]


def at(position: int, arrival_ms: int = NOON_MS, data: str = "1", key: str = "key") -> Any:
    return make_record(data, sequence_number=str(position), arrival_ms=arrival_ms, partition_key=key)


def positions(report: Report) -> list[ExtendedSequenceNumber]:
    return list(report.checkpoints)


def position(number: int) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number))


# Events and context


def test_a_record_without_a_key_has_null_in_the_event_as_in_lambda() -> None:
    handler = Handled()
    drive(processor_of(handler), [make_record("x", partition_key=None)])
    (event,) = handler.events
    assert_event(event)
    assert event["Records"][0]["kinesis"]["partitionKey"] is None


def test_the_event_is_as_documented_field_by_field() -> None:
    handler = Handled()
    records = [at(7, 1_545_084_650_987, "Hello, this is a test.", "1"), at(8, 1_545_084_711_166, "")]
    drive(processor_of(handler), records, shard_id="shardId-000000000006")
    (event,) = handler.events
    assert_event(event)
    first, second = event["Records"]
    assert first["kinesis"] == {
        "kinesisSchemaVersion": "1.0",
        "partitionKey": "1",
        "sequenceNumber": "7",
        "data": "SGVsbG8sIHRoaXMgaXMgYSB0ZXN0Lg==",
        "approximateArrivalTimestamp": 1545084650.987,
    }
    assert first["eventID"] == "shardId-000000000006:7"
    assert (first["awsRegion"], first["eventSourceARN"]) == ("eu-west-1", ARN)
    assert first["invokeIdentityArn"] == "arn:aws:iam::111122223333:role/orders"
    assert second["kinesis"]["data"] == ""


def test_the_stream_is_the_one_that_the_daemon_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCL_STREAM_ARN", ARN)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    handler = Handled()
    drive(processor_of(handler, stream_arn=None), ["a"])
    assert handler.events[0]["Records"][0]["eventSourceARN"] == ARN
    assert handler.contexts[0].invoked_function_arn == "arn:aws:lambda:eu-west-1:111122223333:function:orders"


def test_without_a_daemon_that_names_it_the_event_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KCL_STREAM_ARN", "KCL_STREAM_NAME", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    handler = Handled()
    drive(processor_of(handler, stream_arn=None), ["a"])
    assert_event(handler.events[0])


@pytest.mark.parametrize(
    "arn", ["orders", "arn:aws:sqs:eu-west-1:111122223333:orders", ARN.replace("orders", "")]
)
def test_a_text_that_is_no_arn_of_a_stream_is_refused(arn: str) -> None:
    with pytest.raises(ValueError, match="not the ARN of a stream"):
        processor_of(Handled(), stream_arn=arn)


def test_the_context_has_what_lambda_gives() -> None:
    time_s = 5.0
    handler = Handled()
    drive(processor_of(handler, timeout_s=3, clock=lambda: time_s), ["a", "b"], batch_size=1)
    first, second = handler.contexts
    assert (first.function_name, first.function_version) == ("orders", "$LATEST")
    assert first.memory_limit_in_mb.isdecimal()
    assert (first.identity, first.client_context, first.tenant_id) == (None, None, None)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first.aws_request_id)
    assert first.aws_request_id != second.aws_request_id
    assert first.get_remaining_time_in_millis() == 3000
    time_s = 7.5
    assert first.get_remaining_time_in_millis() == 500
    time_s = 100.0
    assert first.get_remaining_time_in_millis() == 0


# Answers


@pytest.mark.parametrize("answer", [None, {}, "done", {"batchItemFailures": []}, {"batchItemFailures": None}])
def test_a_batch_is_one_invocation_and_then_checkpointed(answer: object) -> None:
    handler = Handled(lambda _: answer)
    report = drive(processor_of(handler), [at(1), at(2), at(3)], batch_size=2)
    assert list(map(numbers, handler.events)) == [["1", "2"], ["3"]]
    assert positions(report) == [position(2), position(3), SHARD_END]
    assert report.exit_code == 0


def failures(*names: object) -> Callable[[Event], object]:
    return lambda _: {"batchItemFailures": [{"itemIdentifier": name} for name in names]}


def failing(*bad: str) -> Handled:
    """Names those of these that it sees."""

    def answer(event: Event) -> object:
        named = [{"itemIdentifier": number} for number in numbers(event) if number in bad]
        return {"state": {"seen": numbers(event)}, "batchItemFailures": named}

    return Handled(answer)


def test_from_the_lowest_failure_on_all_is_invoked_again_until_it_is_a_letter() -> None:
    handler = failing("2")
    report = drive(
        processor_of(handler, item_failures=ItemFailures(2)), [at(1), at(2), at(3)], dead_letters=True
    )
    assert list(map(numbers, handler.events)) == [["1", "2", "3"], ["2", "3"], ["3"]]
    assert len({context.aws_request_id for context in handler.contexts}) == 3
    assert report.rejected == ((position(2), "named in batchItemFailures"),)
    assert positions(report) == [position(1), position(2), position(3), SHARD_END]


def test_named_records_are_rejected_at_once_where_that_is_wanted() -> None:
    handler = failing("2", "3")
    report = drive(
        processor_of(handler, item_failures=ItemFailures(exact=True)),
        [at(1), at(2), at(3)],
        dead_letters=True,
    )
    assert len(handler.events) == 1
    assert [where for where, _ in report.rejected] == [position(2), position(3)]
    assert positions(report) == [position(1), position(3), SHARD_END]


@pytest.mark.parametrize("answer", [{1}, {"batchItemFailures": object()}, b"done", Batch(())])
def test_an_answer_that_json_cannot_say_fails_the_batch_as_in_lambda(answer: object) -> None:
    report = drive(processor_of(Handled(lambda _: answer)), [at(1)])
    assert (type(report.exception), positions(report)) == (TypeError, [])


def test_an_answer_with_a_decimal_is_one_that_lambda_takes() -> None:
    report = drive(processor_of(Handled(lambda _: {"sum": Decimal("1.5")})), [at(1)])
    assert positions(report) == [position(1), SHARD_END]


def test_without_a_place_for_letters_what_comes_before_the_failure_is_done() -> None:
    """As in Lambda, which goes on with the lowest of the numbers."""
    report = drive(processor_of(Handled(failures("3", "2"))), [at(1), at(2), at(3)])
    assert isinstance(report.exception, NoDeadLetterDestination)
    assert positions(report) == [position(1)]
    assert report.exit_code == 70


def test_if_the_first_record_fails_nothing_is_done() -> None:
    report = drive(processor_of(Handled(failures("1"))), [at(1), at(2)])
    assert (positions(report), report.exit_code) == ([], 70)


def bad_key(_: Event) -> object:
    return {"batchItemFailures": [{"id": "1"}]}


@pytest.mark.parametrize(
    "answer",
    [
        failures(""),
        failures(None),
        failures("9"),
        failures("1", "9"),
        bad_key,
    ],
)
def test_an_answer_that_names_no_record_fails_the_whole_batch(answer: Callable[[Event], object]) -> None:
    report = drive(processor_of(Handled(answer)), [at(1), at(2)], dead_letters=True)
    assert isinstance(report.exception, ValueError)
    assert (report.rejected, positions(report)) == ((), [])


def test_a_handler_that_raises_ends_the_process_and_nothing_is_checkpointed() -> None:
    def fail(_: Event) -> object:
        raise LookupError("no customer")

    report = drive(processor_of(Handled(fail)), ["a"])
    assert (type(report.exception), report.exit_code, positions(report)) == (LookupError, 70, [])


# DynamoDB


CHANGE: Final = {
    "eventID": "1",
    "eventName": "INSERT",
    "eventVersion": "1.1",
    "eventSource": "aws:dynamodb",
    "awsRegion": "eu-west-1",
    "dynamodb": {"Keys": {"Id": {"N": "101"}}, "SequenceNumber": "111", "StreamViewType": "KEYS_ONLY"},
    "eventSourceARN": TABLE_ARN,
}


def test_changes_of_a_table_are_the_records_of_lambdas_event() -> None:
    handler = Handled()
    drive(processor_of(handler, stream_arn=TABLE_ARN), [make_record(json.dumps(CHANGE))])
    assert handler.events == [{"Records": [CHANGE]}]


@pytest.mark.parametrize("data", ['{"dynamodb": {}}', "[]", "no JSON", b"\xff"])
def test_another_form_is_refused_with_what_to_set(data: bytes | str) -> None:
    handler = Handled()
    report = drive(processor_of(handler, stream_arn=TABLE_ARN), [make_record(data)])
    assert "childRecordFormat = lambda" in str(report.exception)
    assert handler.events == []


# Windows


def counting(event: Event) -> object:
    state = event["state"]
    for record in event["Records"]:
        key = record["kinesis"]["partitionKey"]
        state[key] = state.get(key, 0) + 1
    return {"state": state}


def finals(handler: Handled) -> dict[str, Event]:
    """The states at the ends, by the start of their window."""
    ends = [each for each in handler.events if each["isFinalInvokeForWindow"]]
    found = {each["window"]["start"]: each["state"] for each in ends}
    assert len(found) == len(ends), "a window has ended twice"
    return found


def in_windows(handler: Handled, **options: Any) -> LambdaProcessor:
    return processor_of(handler, **{"tumbling_window_s": 60, "now": lambda: NOON_MS, **options})


def spoken(processor: LambdaProcessor, *actions: Action) -> MemoryDaemon:
    """A conversation with batches that `drive` does not make, such as empty ones."""
    begin = Initialize("shardId-000000000000", "TRIM_HORIZON", 0)
    daemon = MemoryDaemon([begin, *actions], (), (), TRIM_HORIZON, dead_letters=False)
    runtime = PlainRuntime(daemon.read, daemon.write, lambda _: None)
    session = Session(processor, Checkpointer, runtime, SessionOptions(takes_rejects=True))
    complete(session.serve())
    return daemon


def test_the_windowed_event_is_as_documented_field_by_field() -> None:
    handler = Handled(counting)
    drive(in_windows(handler), [at(1, NOON_MS + 1), at(2, NOON_MS + 2)], batch_size=1)
    for event in handler.events:
        assert_event(event, is_windowed=True)
    first, second, final = handler.events
    assert first["window"] == {"start": "2025-01-01T12:00:00Z", "end": "2025-01-01T12:01:00Z"}
    assert [each["state"] for each in handler.events] == [{}, {"key": 1}, {"key": 2}]
    assert [each["isFinalInvokeForWindow"] for each in handler.events] == [False, False, True]
    assert final["Records"] == [] and final["shardId"] == "shardId-000000000000"
    assert final["eventSourceARN"] == second["eventSourceARN"] == ARN


def test_a_batch_is_cut_where_its_windows_meet_and_only_their_ends_are_checkpointed() -> None:
    handler = Handled(counting)
    records = [at(n, NOON_MS + (n - 1) * MINUTE_MS // 2) for n in range(1, 6)]
    report = drive(in_windows(handler), records, ending=Ending.SHUTDOWN)
    assert finals(handler) == {"2025-01-01T12:00:00Z": {"key": 2}, "2025-01-01T12:01:00Z": {"key": 2}}
    assert positions(report) == [position(2), position(4)]
    assert numbers(handler.events[-1]) == ["5"]


@pytest.mark.parametrize("ending", [Ending.SHUTDOWN, Ending.LEASE_LOST, Ending.CLOSED])
def test_an_open_window_is_not_checkpointed_when_the_process_ends(ending: Ending) -> None:
    handler = Handled(counting)
    report = drive(in_windows(handler), [at(1), at(2)], ending=ending)
    assert (positions(report), finals(handler), report.exit_code) == ([], {}, 0)


def test_the_end_of_the_shard_ends_its_window() -> None:
    handler = Handled(counting)
    report = drive(in_windows(handler), [at(1), at(2)], ending=Ending.SHARD_ENDED)
    assert finals(handler) == {"2025-01-01T12:00:00Z": {"key": 2}}
    assert positions(report) == [position(2), SHARD_END]


def test_a_late_record_belongs_to_the_window_that_is_open() -> None:
    handler = Handled(counting)
    drive(in_windows(handler), [at(1), at(2, NOON_MS + MINUTE_MS), at(3, NOON_MS + 5)], batch_size=1)
    assert finals(handler) == {"2025-01-01T12:00:00Z": {"key": 1}, "2025-01-01T12:01:00Z": {"key": 2}}


Moment = tuple[float, int | None]
"""Seconds after the end of the window, and how far behind an empty batch says it is."""


@pytest.mark.parametrize(
    ("moments", "ends"),
    [
        pytest.param([(7, 0), (8, 0)], True, id="nothing is left to read"),
        pytest.param([(7, 0), (7.5, 0), (8, 0)], True, id="and nothing comes"),
        pytest.param([(7, 0)], False, id="it may have waited in the daemon"),
        pytest.param([(500, 0), (500.001, 0), (500.002, 0)], False, id="so may have many"),
        pytest.param([(5, 0), (6.9, 0)], False, id="a record may be seen late"),
        pytest.param([(7, 0), (500, 1)], False, id="something is left to read"),
        pytest.param([(7, 0), (8, 1), (8.5, 0)], False, id="it begins anew"),
        pytest.param([(119, None), (120, None)], False, id="not known, and too early"),
        pytest.param([(120, None), (121, None)], True, id="not known for two minutes"),
    ],
)
def test_empty_batches_end_a_window_once_no_record_of_it_can_come(
    moments: Sequence[Moment], *, ends: bool
) -> None:
    handler = Handled(counting)
    daemon = after_the_window(handler, [ProcessRecords([], behind_ms) for _, behind_ms in moments], moments)
    assert (daemon.checkpoints == [position(1)]) is ends
    assert (finals(handler) == {"2025-01-01T12:00:00Z": {"key": 1}}) is ends


class Timed(LambdaProcessor):
    """Each batch comes at its moment."""

    def __init__(self, handler: Handled, times_ms: Sequence[int]) -> None:
        self._times_ms = iter(times_ms)
        self._now_ms = 0
        super().__init__(handler, stream_arn=ARN, tumbling_window_s=60, now=lambda: self._now_ms)

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        self._now_ms = next(self._times_ms)
        super().process_records(batch, checkpointer)


def after_the_window(handler: Handled, actions: Sequence[Action], moments: Sequence[Moment]) -> MemoryDaemon:
    """A record at noon, then these actions at these moments."""
    times_ms = [NOON_MS, *(NOON_MS + MINUTE_MS + round(after_s * 1000) for after_s, _ in moments)]
    first = ProcessRecords([at(1)], 0)
    return spoken(Timed(handler, times_ms), first, *actions, ShutdownRequested(), LeaseLost())


def test_after_the_end_of_a_window_a_late_record_does_not_open_it_again() -> None:
    handler = Handled(counting)
    quiet: list[Action] = [ProcessRecords([], 0)] * 2
    late = ProcessRecords([at(2, NOON_MS + 59_999)], 0)
    after = ProcessRecords([at(3, NOON_MS + 2 * MINUTE_MS)], 0)
    after_the_window(handler, [*quiet, late, after], [(7, 0), (8, 0), (9, 0), (60, 0)])
    assert finals(handler) == {"2025-01-01T12:00:00Z": {"key": 1}, "2025-01-01T12:01:00Z": {"key": 1}}


def test_a_record_between_empty_batches_begins_the_quiet_anew() -> None:
    handler = Handled(counting)
    empty, late = ProcessRecords([], 0), ProcessRecords([at(2, NOON_MS + 1)], 0)
    after_the_window(handler, [empty, late, empty], [(7, 0), (7.1, 0), (8, 0)])
    assert finals(handler) == {}


def test_empty_batches_without_an_open_window_invoke_nothing() -> None:
    for windows in (0, 60):
        handler = Handled(counting)
        spoken(processor_of(handler, tumbling_window_s=windows), ProcessRecords([], 0), ShutdownRequested())
        assert handler.events == []


def test_a_state_that_is_too_large_ends_the_window_early() -> None:
    def hoard(event: Event) -> object:
        texts = [base64.b64decode(each["kinesis"]["data"]).decode() for each in event["Records"]]
        return {"state": {"texts": event["state"].get("texts", "") + "".join(texts)}}

    handler = Handled(hoard)
    half = "x" * (STATE_MOST_BYTES // 2)
    report = drive(in_windows(handler), [at(1, data=half), at(2, data=half), at(3, data="y")], batch_size=1)
    ends = [
        (each["isWindowTerminatedEarly"], len(each["state"]["texts"]))
        for each in handler.events
        if each["isFinalInvokeForWindow"]
    ]
    assert ends == [(True, 2 * len(half)), (False, 1)]
    assert {each["window"]["start"] for each in handler.events} == {"2025-01-01T12:00:00Z"}
    assert positions(report) == [position(2), position(3), SHARD_END]


@pytest.mark.parametrize("answer", [None, {}, {"state": None}, {"state": [1]}, {"state": {"a": {1}}}])
def test_without_a_state_the_invocation_has_failed(answer: object) -> None:
    report = drive(in_windows(Handled(lambda _: answer)), [at(1)])
    assert (type(report.exception), positions(report)) == (TypeError, [])


def test_a_state_is_kept_as_json_keeps_it() -> None:
    handler = Handled(lambda event: {"state": event["state"] or {7: (1, 2)}})
    drive(in_windows(handler), [at(1), at(2)], batch_size=1)
    assert handler.events[1]["state"] == {"7": [1, 2]}


def test_a_failure_in_a_window_comes_again_with_its_state_and_does_not_checkpoint_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler, waited = failing("2"), list[float]()
    monkeypatch.setattr(aws_lambda, "sleep_s", waited.append)
    report = drive(in_windows(handler), [at(1), at(2), at(3)], dead_letters=True, ending=Ending.SHUTDOWN)
    assert list(map(numbers, handler.events)) == [["1", "2", "3"], ["2", "3"], ["2", "3"], ["3"]]
    assert [event["state"] for event in handler.events[1:3]] == [
        {"seen": ["1", "2", "3"]},
        {"seen": ["2", "3"]},
    ]
    assert ([where for where, _ in report.rejected], waited) == ([position(2)], [0.5, 1.0])
    assert positions(report) == []


def test_a_window_with_a_letter_ends_after_its_last_record() -> None:
    processor = in_windows(failing("3"), item_failures=ItemFailures(exact=True))
    report = drive(processor, [at(1), at(2), at(3)], dead_letters=True)
    assert positions(report) == [position(3), SHARD_END]


def test_a_state_that_is_too_large_beside_a_failure_closes_what_is_done_only() -> None:
    def answer(event: Event) -> object:
        named = [{"itemIdentifier": number} for number in numbers(event) if number == "2"]
        text = "x" * STATE_MOST_BYTES if "1" in numbers(event) else ""
        return {"state": {"text": text}, "batchItemFailures": named}

    handler = Handled(answer)
    processor = in_windows(handler, item_failures=ItemFailures(1))
    report = drive(processor, [at(1), at(2), at(3)], dead_letters=True)
    assert [each["isFinalInvokeForWindow"] for each in handler.events] == [False, True, False, True]
    assert positions(report) == [position(2), position(3), SHARD_END]


def test_the_last_invocation_of_a_window_that_names_a_failure_has_failed() -> None:
    def answer(event: Event) -> object:
        named = [{"itemIdentifier": "1"}] if event["isFinalInvokeForWindow"] else []
        return {"state": {}, "batchItemFailures": named}

    report = drive(in_windows(Handled(answer)), [at(1)], dead_letters=True)
    assert (type(report.exception), positions(report)) == (ValueError, [])


def test_without_a_place_for_letters_a_failure_repeats_the_window() -> None:
    report = drive(
        in_windows(
            Handled(lambda _: {"state": {}, "batchItemFailures": [{"itemIdentifier": "2"}]}),
            item_failures=ItemFailures(1),
        ),
        [at(1), at(2)],
    )
    assert (type(report.exception), positions(report)) == (NoDeadLetterDestination, [])


@given(st.lists(st.integers(0, 500_000), max_size=30), st.integers(1, 900), st.integers(0, 400))
def test_every_record_is_in_one_window_and_windows_never_go_back(
    moments: Sequence[int], length_s: int, not_before_s: int
) -> None:
    records = [Record(at(number, moment)) for number, moment in enumerate(moments)]
    not_before_s = not_before_s // length_s * length_s
    runs = list(runs_of(records, length_s, not_before_s, 0))
    assert [record for _, run in runs for record in run] == records
    starts = [window.start_s for window, _ in runs]
    assert starts == sorted(set(starts))
    for window, run in runs:
        assert window.start_s % length_s == 0 and window.end_s == window.start_s + length_s
        assert window.start_s >= not_before_s
        first = run[0].arrival_ms
        assert first is not None and Window.at(max(first, not_before_s * 1000), length_s) == window


@pytest.mark.parametrize("options", [{"tumbling_window_s": 901}, {"tumbling_window_s": -1}, {"timeout_s": 0}])
def test_figures_out_of_range_are_refused(options: Mapping[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be above 0|1 to 900"):
        processor_of(Handled(), **options)


# What surrounds a handler


def test_the_variables_of_the_runtime_are_set_but_for_those_that_are_set_already() -> None:
    environment = {"KCL_STREAM_ARN": ARN, "AWS_LAMBDA_FUNCTION_NAME": "mine"}
    set_variables(environment, Source(ARN, "orders"), "app.handler", Path("/srv/app"))
    assert environment.keys() == {*VARIABLES, "KCL_STREAM_ARN"}
    for name, form in VARIABLES.items():
        assert re.fullmatch(form, environment[name]), name
    assert environment["AWS_LAMBDA_LOG_GROUP_NAME"] == "/aws/lambda/mine"
    assert (environment["AWS_REGION"], environment["_HANDLER"]) == ("eu-west-1", "app.handler")


def test_an_unknown_region_is_not_made_up() -> None:
    environment: dict[str, str] = {}
    set_variables(environment, Source(ARN, "orders"), "app.handler", Path("/srv/app"))
    assert "AWS_REGION" not in environment


@pytest.mark.parametrize(
    ("handler", "name"),
    [("app.handler", "app"), ("src/orders.handle", "orders"), ("a.b.handle", "b"), ("app", "app")],
)
def test_a_function_is_called_as_its_module(handler: str, name: str) -> None:
    assert function_name_of(handler) == name


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """In which handlers are found; what they import is forgotten."""
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_handler_is_found_by_lambdas_notation(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "found-app.py").write_text(
        "import os\nos.write(1, b'raw')\ndef handle(event, context): return 7\n"
    )
    handler = find_handler("deep/found-app.handle", folder)
    assert handler({}, None) == 7
    assert "raw" in capfd.readouterr().err, "what is written meanwhile must not be in the conversation"


@pytest.mark.parametrize(
    ("text", "source", "said"),
    [
        ("wrong_a", "", "must be MODULE.FUNCTION, such as app.handler, not 'wrong_a'"),
        ("wrong..f", "", "must be MODULE.FUNCTION"),
        (".f", "", "must be MODULE.FUNCTION"),
        ("wrong_none.f", "", "there is no module wrong_none in "),
        ("wrong_b.f", "\n\nimport no_such_module\n", "wrong_b.py:3: ModuleNotFoundError: No module named"),
        ("wrong_c.f", "\ndef f(:\n", "wrong_c.py:2: SyntaxError: "),
        ("wrong_d.f", "def g(): raise KeyError('x')\ng()\n", "wrong_d.py:1: KeyError: 'x'"),
        ("wrong_e.f", "", "wrong_e.py has no function 'f'"),
        ("wrong_f.f", "f = 7\n", "wrong_f.py has no function 'f'"),
        ("wrong_g.f", "\nasync def f(event, context): ...\n", "wrong_g.py:2: f must not be `async def`"),
    ],
)
def test_a_handler_that_cannot_be_had_is_explained_with_its_place(
    text: str, source: str, said: str, folder: Path
) -> None:
    (folder / f"{text.partition('.')[0]}.py").write_text(source) if "none" not in text else None
    with pytest.raises(NoHandler, match=re.escape(said)):
        find_handler(text, folder)


@pytest.fixture
def root_logger() -> Generator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_root_logger_writes_lines_of_lambda(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KCL_LOG_MESSAGES", raising=False)
    set_up_logging()

    def say(_: Event) -> object:
        logging.getLogger("orders").warning("no customer %d", 7)
        logging.getLogger("orders").info("not at this level")
        return None

    handler = Handled(say)
    drive(processor_of(handler), ["a"])
    line = capsys.readouterr().err
    request_id = handler.contexts[0].aws_request_id
    assert re.fullmatch(rf"\[WARNING\]\t[0-9T:.-]+Z\t{request_id}\tno customer 7\n", line)
    logging.basicConfig(level="DEBUG")
    assert root_logger.level == logging.WARNING, "user code finds it set up, as in Lambda"


def test_the_level_is_that_of_lambdas_variable(
    root_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_LAMBDA_LOG_LEVEL", "info")
    monkeypatch.setenv("KCL_LOG_MESSAGES", "true")
    set_up_logging()
    assert root_logger.level == logging.INFO
    assert isinstance(root_logger.handlers[-1], DaemonLogHandler)


def test_the_processor_leaves_the_environment_of_this_process_alone() -> None:
    before = dict(os.environ)
    drive(processor_of(Handled()), ["a"])
    assert dict(os.environ) == before
