"""`kcl-daemon run-child` and `replay`: test a record processor without AWS.

`run-child` delivers records from a file, with the daemon's own `ChildConnection` and checkpoint rules.
`replay` sends the daemon's half of a transcript and compares the answers.
"""

from __future__ import annotations

import re
import sys
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import anyio
import click
import orjson

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.cli.common import EXIT_FAILURE
from kcl_daemon.config.children import ChildProtocol, ChildSettings
from kcl_daemon.consumer.child_session import end_child
from kcl_daemon.consumer.connection import ChildConnection, ChildMetrics, lease_lost, shard_ended
from kcl_daemon.errors import ChildError, ChildExited, ChildStartFailed
from kcl_daemon.leases.lease import CheckpointWindow, ShardId
from kcl_daemon.ports import NO_METERS, Child, ChildPipes, Clock, Log, LogLevel
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import on_one_line
from kcl_protocol.codec import decode_child_line
from kcl_protocol.conversation import DaemonSide
from kcl_protocol.errors import CheckpointError
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    Initialize,
    ProcessRecords,
    Record,
    RecordSchema,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

End = Literal["shard-ended", "stopped", "lost"]
EXIT_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ChildScript:
    shard_id: str
    batches: list[list[Record]]
    end: End
    settings: ChildSettings


@dataclass(slots=True)
class DriveResult:
    """`delivered` counts records in answered batches; `error` is the child's first fault."""

    delivered: int = 0
    checkpoint: ExtendedSequenceNumber = TRIM_HORIZON
    requests: int = 0
    exit_code: int | None = None
    error: str | None = None


async def drive_child(script: ChildScript, *, clock: Clock, log: Log, tape: BinaryIO | None) -> DriveResult:
    outcome = DriveResult()
    checkpoints = _Checkpoints(outcome, log)
    async with ProcessChildren(script.settings.command, log, clock) as children:
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
            on_checkpoint=checkpoints.answer,
        )
        async with anyio.create_task_group() as background:
            background.start_soon(connection.pump)
            try:
                await _converse(connection, script, outcome, checkpoints, clock.wall_ms())
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
    checkpoints: _Checkpoints,
    token: int,
) -> None:
    perform, protocol = connection.perform, script.settings.protocol
    await perform(Initialize(script.shard_id, str(TRIM_HORIZON), 0, extra={"fencingToken": token}))
    for batch in script.batches:
        await perform(ProcessRecords(batch, 0), before_send=partial(checkpoints.delivering, batch[-1]))
        outcome.delivered += len(batch)
    if script.end == "shard-ended":
        await perform(shard_ended(protocol), before_send=checkpoints.shard_ended)
        if not outcome.checkpoint.is_shard_end:
            outcome.error = "it answered shardEnded without a checkpoint"
        return
    if script.end == "stopped":
        await perform(ShutdownRequested())
    await perform(lease_lost(protocol))


class _Checkpoints:
    """In memory, by the daemon's rules."""

    def __init__(self, outcome: DriveResult, log: Log) -> None:
        self._outcome = outcome
        self._log = log
        self._largest = TRIM_HORIZON
        self._shard_ended = False

    def delivering(self, last: Record) -> None:
        self._largest = ExtendedSequenceNumber(last.sequence_number, last.sub_sequence_number)

    def shard_ended(self) -> None:
        self._shard_ended = True

    async def answer(self, request: CheckpointRequest) -> CheckpointAnswer:
        self._outcome.requests += 1
        window = CheckpointWindow(self._outcome.checkpoint, self._largest, self._shard_ended)
        error: str | None = None
        try:
            self._outcome.checkpoint = window.position(request.sequence_number, request.sub_sequence_number)
        except CheckpointError as refused:
            error = refused.wire_name
            self._log.warning("checkpoint_refused", error=error, reason=str(refused))
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, error)


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
_SHOWN: Final = 40
_WHOLE: Final = "a whole number from 0"
_SEQUENCE_NUMBER: Final = re.compile(r"[0-9]{1,129}")
_SCHEMA_FIELDS: Final = ("schemaName", "schemaVersionId", "schemaDataFormat", "schemaDefinition")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_sequence_number(value: object) -> bool:
    """Quoted, because JSON rounds large numbers."""
    return isinstance(value, str | int) and _SEQUENCE_NUMBER.fullmatch(str(value)) is not None


_RULES: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    **dict.fromkeys(("text", "partitionKey", *_SCHEMA_FIELDS), (_is_text, "a string")),
    "sequenceNumber": (_is_sequence_number, "digits in quotes"),
    "subSequenceNumber": (_is_whole, _WHOLE),
    "approximateArrivalTimestamp": (
        lambda value: value is None or _is_whole(value),
        f"{_WHOLE}, or null",
    ),
}
_FIELDS: Final = frozenset({*_RULES, "data", "action"})


class BadRecord(ValueError):
    """Raised for a line that is not a record; the message says why."""


def records_of_lines(data: bytes) -> Iterator[Record]:
    for number, line in enumerate(data.splitlines()):
        yield _record(number, b64encode(line).decode("ascii"), {})


def records_of_json(data: bytes) -> Iterator[Record]:
    """Each line is an object with `data` (base64) or `text`; blank lines are skipped.

    Raises:
        BadRecord: a line is not such an object.
    """
    number = 0
    for line_number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _record(number, *_fields(line))
        except BadRecord as error:
            raise BadRecord(f"line {line_number}: {error}") from None
        number += 1


def in_batches(records: Sequence[Record], most: int) -> list[list[Record]]:
    return [list(records[start : start + most]) for start in range(0, len(records), most)]


def _fields(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        fields: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadRecord(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRecord("not an object")
    if unknown := fields.keys() - _FIELDS:
        raise BadRecord(f"unknown field {min(unknown)!r}; known fields: {', '.join(sorted(_FIELDS))}")
    if ("data" in fields) is ("text" in fields):
        raise BadRecord("needs either data (base64) or text")
    for name, value in fields.items():
        is_good, allowed = _RULES.get(name, (None, ""))
        if is_good is not None and not is_good(value):
            written = orjson.dumps(value).decode()
            shown = written if len(written) <= _SHOWN else f"{written[:_SHOWN]}..."
            raise BadRecord(f"{name} is {shown}, not {allowed}")
    if "text" in fields:
        return b64encode(fields["text"].encode()).decode("ascii"), fields
    data = fields["data"]
    try:
        b64decode(data, validate=True)
    except (NotBase64, TypeError, ValueError):
        raise BadRecord("data is not base64; use text for plain text") from None
    return str(data), fields


def _record(number: int, data: str, fields: dict[str, Any]) -> Record:
    """Fills in missing fields: client libraries need every field."""
    schema = RecordSchema(*(fields.get(name, "") for name in _SCHEMA_FIELDS))
    return Record(
        data,
        fields.get("partitionKey", "key"),
        str(fields.get("sequenceNumber", FIRST_NUMBER + number)),
        approximate_arrival_timestamp=fields.get("approximateArrivalTimestamp", _FIRST_ARRIVAL_MS + number),
        sub_sequence_number=fields.get("subSequenceNumber", 0),
        schema=schema if fields.keys() & set(_SCHEMA_FIELDS) else None,
    )


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
    type=click.Choice(["jsonl", "lines"]),
    help="jsonl: one object per line with data (base64) or text, and optional other fields of a record. "
    "lines: each line is the data of a record. Default: jsonl for *.jsonl files, otherwise lines.",
)
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Records per batch."
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
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0.1), default=60.0, show_default=True)
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
    help="Record the session for `kcl-daemon replay`.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_child(
    *,
    records: BinaryIO | None,
    form: Literal["jsonl", "lines"] | None,
    batch: int,
    end: End,
    shard: str,
    timeout: float,
    protocol: str,
    transcript: BinaryIO | None,
    log_level: LogLevel,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as the daemon does for one shard, with the records of a file. Put -- before COMMAND.

    Checkpoints are kept in memory and follow the daemon's rules. Warnings and the stderr of COMMAND go to stderr.
    """
    clock = SystemClock()
    given = _records(records, form)
    settings = ChildSettings(command, timeout_s=timeout, protocol=ChildProtocol(protocol.upper()))
    script = ChildScript(shard, in_batches(given, batch), end, settings)
    log = build_log(level=log_level, form="console", stream=sys.stderr, clock=clock)
    with ExitStack() as files:
        if transcript is not None:
            files.enter_context(transcript)
            transcript.write(b'{"about":"recorded by kcl-daemon run-child","ends":"over"}\n')
        outcome = anyio.run(partial(drive_child, script, clock=clock, log=log, tape=transcript))
    click.echo(_summary(outcome, len(given)))
    if outcome.error is not None:
        click.echo(on_one_line(f"failed: {outcome.error}"), err=True)
        sys.exit(EXIT_FAILURE)


def _records(file: BinaryIO | None, form: Literal["jsonl", "lines"] | None) -> list[Record]:
    if file is None:
        return []
    read = records_of_lines
    if form == "jsonl" or (form is None and Path(str(getattr(file, "name", ""))).suffix == ".jsonl"):
        read = records_of_json
    try:
        return list(read(file.read()))
    except BadRecord as error:
        raise click.BadParameter(str(error), param_hint="--records") from None


def _summary(outcome: DriveResult, given: int) -> str:
    return (
        f"delivered {outcome.delivered} of {given} records, {outcome.requests} checkpoints, "
        f"last at {outcome.checkpoint}"
    )


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """`line` has no line end. `expected` is None for a line of the daemon."""

    number: int
    line: bytes
    expected: ChildMessage | None


class BadTranscript(ValueError):
    """Raised for a file that is not a transcript; the message names the line."""


def lines_of(data: bytes) -> Iterator[TranscriptLine]:
    """Skips output of the child that is not a message.

    Raises:
        BadTranscript: a line lacks `from` or `line`.
    """
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            entry: dict[str, str] = orjson.loads(text)
            if number == 1 and "about" in entry:
                continue
            speaker, line = entry["from"], entry["line"].encode()
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise BadTranscript(f'line {number}: not an object with "from" and "line"') from None
        if speaker == "daemon":
            yield TranscriptLine(number, line, None)
        elif isinstance(expected := decode_child_line(line), Status | CheckpointRequest):
            yield TranscriptLine(number, line, expected)


@click.command("replay", short_help="Replay a recorded session with a processor.", epilog=EPILOG)
@click.argument("transcript", type=click.File("rb", lazy=False))
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0.1), default=60.0, show_default=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def replay(*, transcript: BinaryIO, timeout: float, command: tuple[str, ...]) -> None:
    """Send the daemon's lines of TRANSCRIPT to COMMAND and compare its answers with the recording. Put -- before COMMAND.

    Messages are compared by meaning; other lines on stdout are ignored. Record transcripts with `run-child --transcript`.
    """
    try:
        lines = list(lines_of(transcript.read()))
    except BadTranscript as error:
        raise click.BadParameter(str(error), param_hint="TRANSCRIPT") from None
    clock = SystemClock()
    log = build_log(level="info", form="console", stream=sys.stderr, clock=clock)
    difference = anyio.run(partial(_replay, command, lines, timeout_s=timeout, clock=clock, log=log))
    if difference is not None:
        click.echo(on_one_line(f"failed: {difference}"), err=True)
        sys.exit(EXIT_FAILURE)
    click.echo(f"as recorded: {len(lines)} messages")


async def _replay(
    command: tuple[str, ...], lines: list[TranscriptLine], *, timeout_s: float, clock: Clock, log: Log
) -> str | None:
    async with ProcessChildren(command, log, clock) as children:
        try:
            child = await children.start(ShardId("replay"))
        except ChildStartFailed as failed:
            return failed.plain
        reader = _MessageReader(child)
        for line in lines:
            difference: str | None = f"line {line.number}: no answer within {timeout_s:g} s"
            with clock.move_on_after(timeout_s):
                difference = await _one(child, reader, line)
            if difference is not None:
                return difference
        async with anyio.create_task_group() as background:
            background.start_soon(reader.drain)
            await end_child(child, clock=clock, grace_s=EXIT_GRACE_S, ask=True, log=log)
            background.cancel_scope.cancel()
        code = await child.wait()
        return None if code == 0 else f"it exited with code {code}"


async def _one(child: Child, reader: _MessageReader, line: TranscriptLine) -> str | None:
    if line.expected is None:
        try:
            await child.send(line.line + b"\n")
        except ChildExited:
            return f"line {line.number}: it exited with code {await child.wait()}"
        return None
    said = await reader.message()
    if said is None:
        return f"line {line.number}: it exited instead of sending {line.expected}"
    return (
        None if said == line.expected else f"line {line.number}: it sent {said}, recorded was {line.expected}"
    )


class _MessageReader:
    def __init__(self, child: Child) -> None:
        self._child = child
        self._side = DaemonSide()
        self._heard: list[ChildMessage] = []

    async def message(self) -> ChildMessage | None:
        """None when stdout has ended."""
        while not self._heard:
            piece = await self._child.receive()
            if not piece:
                return None
            heard = self._side.receive_data(piece)
            self._heard += [each for each in heard if isinstance(each, Status | CheckpointRequest)]
        return self._heard.pop(0)

    async def drain(self) -> None:
        """Keeps reading, so that the child does not block in a write."""
        while await self._child.receive():
            pass
