"""`kcl-daemon run-child` delivers records from a file, with the daemon's own `ChildConnection` and checkpoint rules."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import anyio
import click
import orjson
from anyio.lowlevel import checkpoint

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import ChildOptions
from kcl_daemon.cli.common import EXIT_FAILURE, run
from kcl_daemon.config.children import ChildProtocol, ChildSettings
from kcl_daemon.config.dead_letters import file_at
from kcl_daemon.config.services import Endpoints
from kcl_daemon.consumer.child_session import end_child
from kcl_daemon.consumer.connection import ChildConnection, ChildMetrics, lease_lost, shard_ended
from kcl_daemon.consumer.set_aside import RejectsByHand
from kcl_daemon.errors import ChildError, ChildStartFailed
from kcl_daemon.leases.lease import CheckpointWindow, ShardId
from kcl_daemon.ports import NO_METERS, ChildPipes, Clock, Log, LogLevel
from kcl_daemon.records.batch_text import LINES
from kcl_daemon.records.changes import changes_of
from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.letters import (
    RECORD_RULES,
    BadLetter,
    check_fields,
    data_length,
    fields_of,
    looks_like_letter,
    parse_letter,
    record_of,
)
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import on_one_line
from kcl_protocol.errors import CheckpointError, CheckpointIllegalArgument
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    ProcessRecords,
    Record,
    Reject,
    RejectAnswer,
    ShutdownRequested,
)
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

End = Literal["shard-ended", "stopped", "lost"]
EXIT_GRACE_S: Final = 5.0
_NAME: Final = "run-child"
_TRACEBACK: Final = ("Traceback (most recent call last):", '  File "')
_TURNS: Final = 10  # of the event loop: what was written before the answer is read by then
_SWALLOWED: Final = (
    "processRecords was answered without a checkpoint and with a traceback on stderr: an exception of the program "
    "was caught, as amazon_kclpy does, and its records are not processed; catch it in process_records"
)


@dataclass(frozen=True, slots=True)
class ChildScript:
    shard_id: str
    batches: list[list[Record]]
    end: End
    settings: ChildSettings


@dataclass(slots=True)
class DriveResult:
    """`delivered` counts records in answered batches; `error` is the child's first fault."""

    checkpoints: MemoryCheckpoints
    delivered: int = 0
    exit_code: int | None = None
    error: str | None = None
    in_hand: list[Record] = field(default_factory=list[Record])
    rejected: dict[ExtendedSequenceNumber, tuple[Record, str]] = field(
        default_factory=dict[ExtendedSequenceNumber, tuple[Record, str]]
    )

    async def reject(self, request: Reject) -> RejectAnswer:
        asked = (request.sequence_number or "", request.sub_sequence_number or 0)
        for record in self.in_hand:
            if (record.sequence_number, record.sub_sequence_number) == asked:
                self.rejected[ExtendedSequenceNumber(*asked)] = record, request.reason
                return RejectAnswer(request.sequence_number, request.sub_sequence_number, None)
        return not_in_batch(request)


async def drive_child(script: ChildScript, *, clock: Clock, log: Log, tape: BinaryIO | None) -> DriveResult:
    outcome = DriveResult(MemoryCheckpoints(log))
    # With kcl_client's `concurrency`, only records of the open batch can be rejected.
    # Who takes frames is kcl_client; a replay of the tape offers none.
    options = ChildOptions(finish_batches=True, frames=tape is None)
    async with ProcessChildren(script.settings.command, log, clock, options) as children:
        try:
            child = await children.start(ShardId(script.shard_id))
        except ChildStartFailed as failed:
            outcome.error = failed.plain
            return outcome
        connection = ChildConnection(
            child if tape is None else RecordedPipes(child, tape),
            script.settings,
            clock=clock,
            log=log,
            metrics=ChildMetrics(NO_METERS, clock, {}),
            on_checkpoint=outcome.checkpoints.answer,
            rejects=RejectsByHand(outcome.reject),
        )
        async with anyio.create_task_group() as background:
            background.start_soon(connection.pump)
            try:
                await _converse(connection, script, outcome, clock.wall_ms(), lambda: child.stderr_tail)
            except ChildError as error:
                outcome.error = str(error)
            await end_child(child, clock=clock, grace_s=EXIT_GRACE_S, ask=outcome.error is None, log=log)
            background.cancel_scope.cancel()
        outcome.exit_code = await child.wait()
    if outcome.error is None and outcome.exit_code != 0:
        outcome.error = f"it exited with code {outcome.exit_code}"
    return outcome


async def _converse(
    connection: ChildConnection,
    script: ChildScript,
    outcome: DriveResult,
    token: int,
    stderr: Callable[[], tuple[str, ...]],
) -> None:
    perform, protocol, checkpoints = connection.perform, script.settings.protocol, outcome.checkpoints
    await perform(Initialize(script.shard_id, str(TRIM_HORIZON), 0, extra={"fencingToken": token}))
    for batch in script.batches:
        outcome.in_hand, requests, said = batch, checkpoints.requests, stderr()
        await perform(ProcessRecords(batch, 0), before_send=partial(checkpoints.delivering, batch[-1]))
        is_plain = (
            connection.encoder.framing is LINES
        )  # kcl_client takes frames, and ends with its exceptions
        if checkpoints.requests == requests and is_plain:
            for _ in range(_TURNS):
                await checkpoint()
            if any(line.startswith(_TRACEBACK) for line in new_lines(said, stderr())):
                outcome.error = _SWALLOWED
                return
        outcome.delivered += len(batch)
    if script.end == "shard-ended":
        await perform(shard_ended(protocol), before_send=checkpoints.shard_ended)
        if not checkpoints.position.is_shard_end:
            outcome.error = "it answered shardEnded without a checkpoint"
        return
    if script.end == "stopped":
        await perform(ShutdownRequested())
    await perform(lease_lost(protocol))


def new_lines(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    kept = next(count for count in range(len(now), -1, -1) if before[len(before) - count :] == now[:count])
    return now[kept:]


async def _nothing(_position: ExtendedSequenceNumber) -> None:
    pass


class MemoryCheckpoints:
    """By the daemon's rules. `on_stored` is awaited before the child has its answer."""

    def __init__(
        self, log: Log, on_stored: Callable[[ExtendedSequenceNumber], Awaitable[None]] = _nothing
    ) -> None:
        self._log = log
        self._on_stored = on_stored
        self._largest = TRIM_HORIZON
        self._shard_ended = False
        self.position = TRIM_HORIZON
        self.requests = 0

    def begin_again(self) -> None:
        self._largest = self.position

    def delivering(self, last: Record) -> None:
        self._largest = ExtendedSequenceNumber(last.sequence_number, last.sub_sequence_number)

    def shard_ended(self) -> None:
        self._shard_ended = True

    async def answer(self, request: CheckpointRequest) -> CheckpointAnswer:
        self.requests += 1
        window = CheckpointWindow(self.position, self._largest, self._shard_ended)
        error: str | None = None
        try:
            self.position = window.position(request.sequence_number, request.sub_sequence_number)
        except CheckpointError as refused:
            error = refused.wire_name
            self._log.warning("checkpoint_refused", error=error, reason=str(refused))
        else:
            await self._on_stored(self.position)
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, error)


def not_in_batch(request: Reject) -> RejectAnswer:
    number, sub = request.sequence_number, request.sub_sequence_number
    why = "no record of this batch has this sequence number"
    return RejectAnswer(number, sub, CheckpointIllegalArgument.wire_name, why)


class RecordedPipes:
    def __init__(self, child: ChildPipes, tape: BinaryIO) -> None:
        self._child = child
        self._tape = tape
        self._rest = b""

    async def send(self, line: bytes) -> None:
        self._record("daemon", line)
        await self._child.send(line)

    async def receive(self) -> bytes:
        piece = await self._child.receive()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                self._record("child", line)
        return piece

    async def wait(self) -> int:
        return await self._child.wait()

    def _record(self, speaker: str, line: bytes) -> None:
        entry = {"from": speaker, "line": line.strip().decode(errors="replace")}
        self._tape.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))


FIRST_NUMBER: Final = 49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
_FIRST_ARRIVAL_MS: Final = 1_735_689_600_000
_ARN: Final = "arn:aws:dynamodb:us-east-1:000000000000:table/table/stream/2025-01-01T00:00:00.000"
_FIELDS: Final = frozenset({*RECORD_RULES, "data", "action"})


def records_of_lines(data: bytes) -> Iterator[Record]:
    for number, line in enumerate(data.splitlines()):
        yield _record(number, b64encode(line).decode("ascii"), {})


def records_of_json(data: bytes) -> list[Record]:
    """Each line is an object with `data` (base64) or `text`, or a dead letter; blank lines are skipped.

    Dead letters may be of several shards, so all are sorted: positions must not go back. Raises BadLetter.
    """
    records: list[Record] = []
    has_letters = False
    for line_number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            text, fields = _fields(line)
        except BadLetter as error:
            raise BadLetter(f"line {line_number}: {error}") from None
        records.append(_record(len(records), text, fields))
        has_letters |= looks_like_letter(fields)
    if has_letters:
        records.sort(key=lambda each: (int(each.sequence_number), each.sub_sequence_number))
    return records


def records_of_changes(data: bytes, form: ChangeForm) -> list[Record]:
    """Of an event of AWS Lambda, an answer of GetRecords, or one record of either in each line. Raises BadLetter."""
    try:
        shapes = list(map(orjson.loads, (data,) if data.count(b"\n") == 0 else _texts(data)))
        events = [event for shape in shapes for event in shape.get("Records", (shape,))]
        arn = next((event["eventSourceARN"] for event in events if "eventSourceARN" in event), _ARN)
        return changes_of(orjson.dumps({"Records": events}), form, arn)[0].decoded()
    except (ValueError, AttributeError, TypeError) as error:
        raise BadLetter(f"no records of a DynamoDB stream: {error}") from None


def _texts(data: bytes) -> list[bytes]:
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        orjson.loads(lines[0])
    except (orjson.JSONDecodeError, IndexError):
        return [data]
    return lines


def in_batches(records: Sequence[Record], most: int, bytes_most: int | None = None) -> list[list[Record]]:
    batches: list[list[Record]] = []
    left_bytes = 0
    for record in records:
        size_bytes = len(record.data) * 3 // 4 - record.data.endswith("=") - record.data.endswith("==")
        if not batches or len(batches[-1]) == most or (bytes_most is not None and size_bytes > left_bytes):
            batches.append([])
            left_bytes = bytes_most or 0
        batches[-1].append(record)
        left_bytes -= size_bytes
    return batches


def _fields(line: bytes) -> tuple[str, dict[str, Any]]:
    fields = fields_of(line)
    if looks_like_letter(fields):
        letter = parse_letter(line, "")
        if letter.data_at is not None:
            raise BadLetter(f"its data is at {letter.data_at}; use kcl-daemon letters replay")
        return letter.letter.record.data, fields
    if unknown := fields.keys() - _FIELDS:
        raise BadLetter(f"unknown field {min(unknown)!r}; known fields: {', '.join(sorted(_FIELDS))}")
    if ("data" in fields) is ("text" in fields):
        raise BadLetter("needs either data (base64) or text")
    check_fields(fields, RECORD_RULES)
    if "text" in fields:
        return b64encode(fields["text"].encode("utf-8", "surrogatepass")).decode("ascii"), fields
    data_length(fields["data"])
    return fields["data"], fields


def _record(number: int, data: str, fields: dict[str, Any]) -> Record:
    return record_of(
        {
            "partitionKey": "key",
            "sequenceNumber": FIRST_NUMBER + number,
            "approximateArrivalTimestamp": _FIRST_ARRIVAL_MS + number,
            **fields,
        },
        data,
    )


_timeout: Final = click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(0.1), default=60.0, show_default=True
)
_CHANGES: Final = tuple(form.value.lower() for form in ChangeForm)

EPILOG: Final = """\b
Exit codes:
  0  the processor followed the protocol
  1  it did not; the last line says what it did
  2  wrong command line or records
"""


@click.command(
    "run-child",
    short_help="Test a processor with a file of records.",
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": False},
)
@click.option(
    "-r",
    "--records",
    metavar="FILE",
    type=click.File("rb", lazy=False),
    help="File of records; - is stdin. Default: no records.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "lines", *_CHANGES]),
    help="jsonl: one object per line with data (base64) or text, and optional other fields of a record, or a "
    "dead letter. lines: each line is the data of a record. kcl1, lambda, plain: changes of a DynamoDB table, from "
    "an event of AWS Lambda, an answer of GetRecords, or a record of them per line; as childRecordFormat. Default: "
    "jsonl for *.jsonl files, otherwise lines.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Records per batch, as batchMaxRecords.",
)
@click.option(
    "--batch-bytes",
    metavar="N",
    type=click.IntRange(1),
    help="Bytes per batch, as batchMaxBytes. Default: no limit.",
)
@click.option(
    "--end",
    type=click.Choice(["shard-ended", "stopped", "lost"]),
    default="shard-ended",
    show_default=True,
    help="What happens after the last record.",
)
@click.option(
    "--shard", metavar="ID", default="shardId-000000000000", show_default=True, help="Name of the shard."
)
@_timeout
@click.option(
    "--protocol",
    type=click.Choice([each.value for each in ChildProtocol], case_sensitive=False),
    default=ChildProtocol.CURRENT.value,
    show_default=True,
    help="Same as the property childProtocol.",
)
@click.option(
    "--transcript",
    metavar="FILE",
    type=click.File("wb", lazy=False),
    help="Record the session for `kcl-daemon replay-transcript`.",
)
@click.option(
    "--letters",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Store rejected records as dead letters in this file.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_child(
    *,
    records: BinaryIO | None,
    form: str | None,
    batch: int,
    batch_bytes: int | None,
    end: End,
    shard: str,
    timeout: float,
    protocol: str,
    transcript: BinaryIO | None,
    letters: Path | None,
    log_level: LogLevel,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as the daemon does for one shard, with the records of a file. Put -- before COMMAND.

    Checkpoints are kept in memory and follow the daemon's rules. What COMMAND rejects is printed. Warnings and the stderr of COMMAND go to stderr.
    """
    clock = SystemClock()
    given = _records(records, form)
    settings = ChildSettings(command, timeout_s=timeout, protocol=ChildProtocol(protocol.upper()))
    script = ChildScript(shard, in_batches(given, batch, batch_bytes), end, settings)
    log = build_log(level=log_level, form="console", stream=sys.stderr, clock=clock)
    with ExitStack() as files:
        if transcript is not None:
            files.enter_context(transcript)
            transcript.write(b'{"about":"recorded by kcl-daemon run-child","ends":"over"}\n')
        outcome = anyio.run(partial(drive_child, script, clock=clock, log=log, tape=transcript))
    for record, reason in outcome.rejected.values():
        click.echo(on_one_line(f"rejected {record.sequence_number}/{record.sub_sequence_number}: {reason}"))
    if letters is not None:
        _store_rejected(outcome, letters, shard, clock.wall_ms())
    click.echo(_summary(outcome, len(given)))
    if outcome.error is not None:
        click.echo(on_one_line(f"failed: {outcome.error}"), err=True)
        sys.exit(EXIT_FAILURE)


def _records(file: BinaryIO | None, form: str | None) -> list[Record]:
    if file is None:
        return []
    read: Callable[[bytes], Iterable[Record]] = records_of_lines
    if form == "jsonl" or (form is None and Path(str(getattr(file, "name", ""))).suffix == ".jsonl"):
        read = records_of_json
    elif form in _CHANGES:
        read = partial(records_of_changes, form=ChangeForm(form.upper()))
    try:
        return list(read(file.read()))
    except BadLetter as error:
        said = str(error)
        if read is records_of_json:
            said += "; where each line is the data of a record, add --format lines"
        raise click.BadParameter(said, param_hint="--records") from None


def _store_rejected(outcome: DriveResult, file: Path, shard: str, now_ms: int) -> None:
    async def store() -> None:
        async with file_at(str(file)).writer(Endpoints(), None) as letters:
            for record, reason in outcome.rejected.values():
                names = (_NAME, _NAME, None, shard, _NAME)
                await letters.store(DeadLetter(record, *names, now_ms, 0, reason, (), LetterCause.REJECTED))

    run(store)


def _summary(outcome: DriveResult, given: int) -> str:
    return (
        f"delivered {outcome.delivered} of {given} records, {outcome.checkpoints.requests} checkpoints, "
        f"last at {outcome.checkpoints.position}"
    )
