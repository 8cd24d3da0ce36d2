from __future__ import annotations

import os
import re
import signal
import stat
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import click
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from kcl_daemon.aws.build import open_kinesis_client
from kcl_daemon.cli.common import EXIT_FAILURE, run, say
from kcl_daemon.cli.stream.place import CLOCK, StreamPlace, open_place, with_place
from kcl_daemon.cli.stream.writer import Writer
from kcl_daemon.ports import Randomness
from kcl_daemon.records.producing import BadLine, KeyedLine, Line, Lines, checked, key_in, keyed
from kcl_daemon.system import SystemRandomness
from kcl_daemon.text import counted, on_one_line, size
from kcl_daemon.transport.kinesis import HttpKinesis, put_records

_STDIN: Final = Path("-")
_PIECE_BYTES: Final = 64 * 1024
_PIECES_READ_AHEAD: Final = 16
# What is there at once goes into as few requests as possible.
_LINES_AT_ONCE: Final = 5_000
_BYTES_AT_ONCE: Final = 4 * 2**20
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(/s)?")
_EVEN_S: Final = 0.2
# For a request on its way when a signal comes.
_GRACE_S: Final = 3.0
EXIT_SIGNAL: Final = 128
_BAD_LINES_SAID: Final = 20

EPILOG: Final = """\b
Each line is a record, without its line feed. Its partition key is a new random one, which spreads lines over all
shards, unless --key or --key-text says another.

\b
Exit codes:
  0    every line was put
  1    some lines were not put; the error says which
  2    wrong command line or properties file
  130  interrupted, after saying how many were put
"""


def _rate(text: str) -> float:
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[1]) > 0:
        raise click.BadParameter(f"{text!r} is not a rate such as 100/s")
    return float(match[1])


@dataclass(frozen=True, slots=True)
class LineForm:
    """Without `key_path` and `key_text`, keys are random."""

    randomness: Randomness
    key_path: tuple[str, ...] = ()
    key_text: str | None = None
    in_base64: bool = False
    packed: bool = False


def read_line(form: LineForm, line: Line) -> KeyedLine:
    whole = checked(line, in_base64=form.in_base64)
    if form.key_path:
        key = key_in(whole.data, form.key_path)
    else:
        key = form.randomness.token() if form.key_text is None else form.key_text
    return keyed(whole, key, packed=form.packed)


@dataclass(slots=True)
class PutRun:
    files: Sequence[Path]
    form: LineForm
    rate: float | None
    aggregates: bool
    signal: int | None = None
    writer: Writer | None = None
    bad: int = 0

    async def run(self, place: StreamPlace) -> None:
        randomness = self.form.randomness
        async with open_place(place) as clients, open_kinesis_client(clients, CLOCK) as client:
            self.writer = Writer(
                partial(put_records, client),
                HttpKinesis(client),
                place.ref,
                CLOCK,
                randomness,
                say,
                aggregates=self.aggregates,
            )
            with anyio.CancelScope() as whole:
                async with anyio.create_task_group() as tasks:
                    send, receive = anyio.create_memory_object_stream[list[Line]](_PIECES_READ_AHEAD)
                    reading, stopped = anyio.CancelScope(), anyio.Event()
                    tasks.start_soon(self._watch, self.writer, whole, reading, stopped)
                    tasks.start_soon(self._read, send, reading)
                    await self._write(receive, self.writer, stopped)
                    tasks.cancel_scope.cancel()

    async def _watch(
        self, writer: Writer, whole: anyio.CancelScope, reading: anyio.CancelScope, stopped: anyio.Event
    ) -> None:
        """The first signal ends reading and trying; what is on its way gets a moment."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
            async for number in received:
                if self.signal is None:
                    self.signal, writer.is_stopping = number, True
                    reading.cancel()
                    stopped.set()
                    whole.deadline = anyio.current_time() + _GRACE_S
                else:
                    whole.cancel()

    async def _read(self, send: MemoryObjectSendStream[list[Line]], reading: anyio.CancelScope) -> None:
        with reading:
            async with send:
                for path in self.files:
                    lines = Lines("" if path == _STDIN and len(self.files) == 1 else on_one_line(str(path)))
                    async for piece in pieces_of(path):
                        if found := lines.fed(piece):
                            await send.send(found)
                    if found := lines.end():
                        await send.send(found)

    async def _write(
        self, receive: MemoryObjectReceiveStream[list[Line]], writer: Writer, stopped: anyio.Event
    ) -> None:
        with receive:
            async for found in receive:
                some, size_bytes = found, sum(len(line.data) for line in found)
                while len(some) < _LINES_AT_ONCE and size_bytes < _BYTES_AT_ONCE:
                    try:
                        more = receive.receive_nowait()
                    except (anyio.WouldBlock, anyio.EndOfStream):
                        break
                    some += more
                    size_bytes += sum(len(line.data) for line in more)
                await self._put(some, writer, stopped)
                if writer.is_stopping:
                    return

    async def _put(self, lines: Sequence[Line], writer: Writer, stopped: anyio.Event) -> None:
        good = list[KeyedLine]()
        for line in lines:
            try:
                good.append(read_line(self.form, line))
            except BadLine as bad:
                self.bad += 1
                if self.bad <= _BAD_LINES_SAID:
                    say(f"{line.place} is not put: {bad}")
                elif self.bad == _BAD_LINES_SAID + 1:
                    say("more such lines are counted only")
        if self.rate is None:
            await writer.put(good)
            return
        step = max(1, int(self.rate * _EVEN_S))
        for start in range(0, len(good), step):
            began_s, some = CLOCK.monotonic(), good[start : start + step]
            await writer.put(some)
            if writer.is_stopping:
                return
            with CLOCK.move_on_after(len(some) / self.rate - (CLOCK.monotonic() - began_s)):
                await stopped.wait()

    def exit_code(self, stream: str) -> int:
        writer = self.writer
        if writer is None:
            return EXIT_FAILURE
        counts = writer.counts
        records = "" if counts.records == counts.lines else f" as {counted(counts.records, 'record')}"
        not_put = counts.refused + self.bad
        say(
            f"put {counted(counts.lines, 'line')}, {size(counts.bytes)}, into {stream}{records}"
            f"{f'; {not_put} not put' if not_put else ''}"
        )
        if writer.on_the_way is not None:
            say(f"{writer.on_the_way} and what comes after it may not be put")
        if self.signal is not None:
            return EXIT_SIGNAL + self.signal
        return EXIT_FAILURE if not_put else 0


async def pieces_of(path: Path) -> AsyncGenerator[bytes]:
    """As soon as it is there. OSError if it cannot be read."""
    descriptor = sys.stdin.fileno() if path == _STDIN else os.open(path, os.O_RDONLY)
    try:
        waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
        while True:
            if waits:
                try:
                    await anyio.wait_readable(descriptor)
                except PermissionError:
                    waits = False  # such as /dev/null, which cannot be waited for
            piece = os.read(descriptor, _PIECE_BYTES)
            if not piece:
                return
            yield piece
    finally:
        if path != _STDIN:
            os.close(descriptor)


@click.command("put", short_help="Put lines into a stream.", epilog=EPILOG)
@with_place
@click.argument(
    "files",
    metavar="[FILE]...",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)
@click.option(
    "--key", metavar="FIELD", help="Partition key: this field of the JSON in the line, such as order.id."
)
@click.option("--key-text", metavar="TEXT", help="Partition key: this text, for all lines.")
@click.option("--aggregate", is_flag=True, help="Pack many lines into a record, as the KPL does.")
@click.option("--gzip", "packed", is_flag=True, help="Compress each line.")
@click.option("--base64", "in_base64", is_flag=True, help="Lines are base64; put what they stand for.")
@click.option("--rate", metavar="N/s", type=_rate, help="Put at most so many lines a second.")
def put(
    *,
    place: StreamPlace,
    files: tuple[Path, ...],
    key: str | None,
    key_text: str | None,
    aggregate: bool,
    packed: bool,
    in_base64: bool,
    rate: float | None,
) -> None:
    """Put the lines of stdin, or of FILEs, into STREAM, a name or an ARN."""
    if key is not None and key_text is not None:
        raise click.UsageError("--key and --key-text cannot go together")
    if place.ref.source.has_tables:
        raise click.BadParameter(
            "the stream of a table is written by changes of its items", param_hint="STREAM"
        )
    path = tuple((key or "").split(".")) if key else ()
    if not files and sys.stdin.isatty():
        say("each line you type is a record; Ctrl-D ends")
    form = LineForm(SystemRandomness(), path, key_text, in_base64, packed)
    done = PutRun(files or (_STDIN,), form, rate, aggregate)
    try:
        run(partial(done.run, place))
    except SystemExit:
        done.exit_code(place.ref.name)
        raise
    sys.exit(done.exit_code(place.ref.name))
