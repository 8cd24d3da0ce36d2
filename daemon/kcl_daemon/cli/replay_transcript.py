from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import anyio
import click
import orjson

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.cli.common import EXIT_FAILURE
from kcl_daemon.cli.run_child import EPILOG, EXIT_GRACE_S
from kcl_daemon.consumer.child_session import end_child
from kcl_daemon.errors import ChildExited, ChildStartFailed
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Child, Clock, Log
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import on_one_line
from kcl_protocol.codec import decode_child_line
from kcl_protocol.conversation import DaemonSide
from kcl_protocol.messages import CheckpointRequest, ChildMessage, Status


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """`expected` is None for a line of the daemon."""

    number: int
    line: bytes
    expected: ChildMessage | None


class BadTranscript(ValueError):
    """The message names the line."""


def lines_of(data: bytes) -> Iterator[TranscriptLine]:
    """Skips output of the child that is not a message."""
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


@click.command("replay-transcript", short_help="Replay a recorded session with a processor.", epilog=EPILOG)
@click.argument("transcript", type=click.File("rb", lazy=False))
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0.1), default=60.0, show_default=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def replay_transcript(*, transcript: BinaryIO, timeout: float, command: tuple[str, ...]) -> None:
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
        while not self._heard:
            piece = await self._child.receive()
            if not piece:
                return None
            heard = self._side.receive_data(piece)
            self._heard += [each for each in heard if isinstance(each, Status | CheckpointRequest)]
        return self._heard.pop(0)

    async def drain(self) -> None:
        """The child must not block in a write."""
        while await self._child.receive():
            pass
