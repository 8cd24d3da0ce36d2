"""`kcl-daemon replay`: the daemon's half of a recorded conversation, and whether a processor says its own as recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final

import anyio
import click
import orjson

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.cli.child_drive import EXIT_GRACE_S
from kcl_daemon.cli.failures import EXIT_FAILURE
from kcl_daemon.cli.run_child import EPILOG
from kcl_daemon.consumer.ending import end_child
from kcl_daemon.errors import ChildExited, ChildStartFailed
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.observe.logs import build_log
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.ports import Child, Clock, Log
from kcl_daemon.system import SystemClock
from kcl_protocol import Echo, Stray, decode_child_line
from kcl_protocol.framing import LineFramer, OversizedLine
from kcl_protocol.messages import ChildMessage

_LINE_MOST_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a transcript.

    Args:
        number: in its file.
        line: as it stands on the pipe, without its end.
        expected: what a child means by it; None: the daemon says it.
    """

    number: int
    line: bytes
    expected: ChildMessage | None


class BadTranscript(ValueError):
    """Raised where a file is no transcript; the message has the line and what is wrong."""


def lines_of(data: bytes) -> Iterator[Line]:
    """The messages of a transcript; lines of the child that are none are left out.

    Raises:
        BadTranscript: it is not one.
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
            yield Line(number, line, None)
        elif (expected := _message(line)) is not None:
            yield Line(number, line, expected)


def _message(line: bytes) -> ChildMessage | None:
    meant = decode_child_line(line)
    return None if isinstance(meant, Stray | Echo) else meant


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
    command: tuple[str, ...], lines: list[Line], *, timeout_s: float, clock: Clock, log: Log
) -> str | None:
    """The first difference, None where there is none."""
    async with ProcessChildren(command, log, clock) as children:
        try:
            child = await children.start(ShardId("replay"))
        except ChildStartFailed as failed:
            return failed.plain
        ear = _Ear(child)
        for line in lines:
            difference: str | None = f"line {line.number}: no answer within {timeout_s:g} s"
            with clock.move_on_after(timeout_s):
                difference = await _one(child, ear, line)
            if difference is not None:
                return difference
        async with anyio.create_task_group() as beside:
            beside.start_soon(ear.drain)
            await end_child(child, clock=clock, grace_s=EXIT_GRACE_S, ask=True, log=log)
            beside.cancel_scope.cancel()
        code = await child.wait()
        return None if code == 0 else f"it exited with code {code}"


async def _one(child: Child, ear: _Ear, line: Line) -> str | None:
    if line.expected is None:
        try:
            await child.send(line.line + b"\n")
        except ChildExited:
            return f"line {line.number}: it exited with code {await child.wait()}"
        return None
    said = await ear.message()
    if said is None:
        return f"line {line.number}: it exited instead of sending {line.expected}"
    return (
        None if said == line.expected else f"line {line.number}: it sent {said}, recorded was {line.expected}"
    )


class _Ear:
    """The messages of a child, one by one."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._framer = LineFramer(_LINE_MOST_BYTES)
        self._heard: list[ChildMessage] = []

    async def message(self) -> ChildMessage | None:
        """The next one; None when its stdout has ended."""
        while not self._heard:
            piece = await self._child.receive()
            if not piece:
                return None
            whole = [line for line in self._framer.feed(piece) if not isinstance(line, OversizedLine)]
            self._heard += [message for line in whole if (message := _message(line)) is not None]
        return self._heard.pop(0)

    async def drain(self) -> None:
        """Read on, so that it does not hang in a write."""
        while await self._child.receive():
            pass
