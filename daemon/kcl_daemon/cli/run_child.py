"""`kcl-daemon run-child`: a record processor on a file of records, without a stream and without AWS."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal

import anyio
import click

from kcl_daemon.cli.child_drive import End, Outcome, Script, drive
from kcl_daemon.cli.child_input import BadRecord, in_batches, records_of_json, records_of_lines
from kcl_daemon.cli.failures import EXIT_FAILURE
from kcl_daemon.config.log_settings import LogLevel
from kcl_daemon.config.settings import ChildProtocol
from kcl_daemon.consumer.dialect import Dialect
from kcl_daemon.observe.logs import build_log
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.system import SystemClock
from kcl_protocol.messages import Record

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
    dialect = Dialect(ChildProtocol(protocol.upper()))
    script = Script(shard, in_batches(given, batch), end, dialect, timeout)
    log = build_log(level=log_level, form="console", stream=sys.stderr, clock=clock)
    with ExitStack() as files:
        if transcript is not None:
            files.enter_context(transcript)
            transcript.write(b'{"about":"recorded by kcl-daemon run-child","ends":"over"}\n')
        outcome = anyio.run(partial(drive, command, script, clock=clock, log=log, tape=transcript))
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


def _summary(outcome: Outcome, given: int) -> str:
    return (
        f"delivered {outcome.delivered} of {given} records, {outcome.requests} checkpoints, "
        f"last at {outcome.checkpoint}"
    )
