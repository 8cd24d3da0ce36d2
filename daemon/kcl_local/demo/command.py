"""`kcl-daemon demo`: the command, its options, its exit code and its end by a signal.

Owns what surrounds a run: the directory of its files, Ctrl-C, and what is told at the end. The run itself is `perform`.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import click
from anyio.abc import TaskStatus

from kcl_local.demo.errors import DemoError
from kcl_local.demo.feed import Feed, input_feed, library_feed
from kcl_local.demo.perform import Plan, perform
from kcl_local.demo.processes import Processes
from kcl_local.demo.producer import Pace
from kcl_local.demo.report import Outcome, report
from kcl_local.demo.screen import Screen, open_screen

EXIT_WRONG = 1
_EXIT_SIGNAL = 128


@click.command(
    short_help="Try everything: local endpoints, real text, a real daemon; checks that every record was delivered."
)
@click.option(
    "--input",
    "input_name",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    help="Text to count the words of, line by line; - for standard input. Every 100 lines share a partition key. "
    "[default: licence and sources of this Python's standard library, keyed by file]",
)
@click.option(
    "--shards", type=click.IntRange(1, 64), default=4, show_default=True, help="Shards of the new stream."
)
@click.option("--records", type=click.IntRange(min=1), help="Stop writing after this many records.")
@click.option(
    "--rate",
    type=click.IntRange(1, 50_000),
    default=2_400,
    show_default=True,
    help="Records per second to write.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3_600),
    default=22,
    show_default=True,
    help="Stop writing after this long.",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep properties file, logs and ledgers in this new or empty directory.",
)
@click.option("--spark", is_flag=True, help="Add a second application on the same stream, on Spark.")
@click.option("--plain", is_flag=True, help="Plain lines, as when the output is no terminal.")
def demo(
    *,
    input_name: str | None,
    shards: int,
    records: int | None,
    rate: int,
    seconds: float,
    keep: Path | None,
    spark: bool,
    plain: bool,
) -> None:
    """Count the words of a real text with a real daemon, on this machine alone.

    Starts a local Kinesis and DynamoDB, creates a stream, writes the text into it and runs the daemon on an ordinary
    properties file with a word-count program as record processor. Meanwhile one shard is split and two are merged.
    At the end every record is accounted for, and the word counts are compared with those of the text.

    Needs no AWS account and touches none. Ends by itself, within a minute unless asked for more.

    Exit code: 0 all is right; 1 a record was lost, out of order or before its shard's parents were done, the counts
    differ, a checkpoint is missing or the daemon failed; 130 stopped by Ctrl-C.
    """
    plan = Plan(shards, Pace(rate=rate, seconds=seconds, records=records), spark=spark)
    with _directory(keep) as directory:
        try:
            feed = library_feed() if input_name is None else input_feed(input_name)
            code = _play(plan, feed, directory.path, plain=plain)
        except DemoError as error:
            click.echo(f"the demo failed: {error}", err=True)
            code = EXIT_WRONG
        except BrokenPipeError:
            directory.is_wanted = (
                False  # whoever read the output has seen enough, as in `kcl-daemon demo | head`
            )
            raise
        directory.is_wanted = code == EXIT_WRONG
    sys.exit(code)


class _Directory:
    """Where the files of a run are; they are kept while `is_wanted`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_wanted = True


@contextmanager
def _directory(keep: Path | None) -> Generator[_Directory]:
    """A directory for the files: the one to keep, or one that is removed after a run that went well."""
    if keep is not None:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.UsageError(f"--keep: {keep} is not empty; use a new or empty directory")
        yield _Directory(keep.resolve())
        return
    directory = _Directory(Path(tempfile.mkdtemp(prefix="kcl-demo-")).resolve())
    try:
        yield directory
    finally:
        if directory.is_wanted:
            click.echo(f"the files of this run are in {directory.path}", err=True)
        else:
            shutil.rmtree(directory.path, ignore_errors=True)


def _play(plan: Plan, feed: Feed, directory: Path, *, plain: bool) -> int:
    """Run it and tell of it; the exit code."""
    run = _Run(plan, feed, directory)
    with open_screen(plain=plain) as screen:
        try:
            anyio.run(run.main, screen)
        except* (DemoError, BrokenPipeError) as errors:
            if (
                run.stopped_by is None
            ):  # else they come of the stop: a second signal kills what others still use
                raise _first(errors) from errors
    if run.stopped_by is not None:
        click.echo(f"stopped by {run.stopped_by.name}")
        return _EXIT_SIGNAL + run.stopped_by
    assert run.outcome is not None, "a run that was not stopped has an outcome or an error"
    for line in report(run.outcome):
        click.echo(line)
    return 0 if run.outcome.is_right else EXIT_WRONG


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first single error of a group of groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Run:
    """A run and the signals that end it.

    Attributes:
        outcome: None where it was stopped.
        stopped_by: the first signal that came, if any.
    """

    def __init__(self, plan: Plan, feed: Feed, directory: Path) -> None:
        self._plan = plan
        self._feed = feed
        self._directory = directory
        self._processes = Processes()
        self.outcome: Outcome | None = None
        self.stopped_by: signal.Signals | None = None

    async def main(self, screen: Screen) -> None:
        """Run to the end or to the first signal."""
        async with anyio.create_task_group() as signals:
            with anyio.CancelScope() as playing:
                await signals.start(self._watch_signals, playing, screen)
                self.outcome = await perform(
                    self._plan,
                    self._feed,
                    directory=self._directory,
                    processes=self._processes,
                    screen=screen,
                )
            signals.cancel_scope.cancel()

    async def _watch_signals(
        self, playing: anyio.CancelScope, screen: Screen, *, task_status: TaskStatus[None]
    ) -> None:
        """The first signal ends the run in order, a second one kills all processes."""
        with anyio.open_signal_receiver(*_signals()) as received:
            task_status.started()
            async for number in received:
                if self.stopped_by is not None:
                    self._processes.kill_all()
                    continue
                self.stopped_by = number
                screen.say(f"{number.name}: stopping daemon and endpoints ...")
                playing.cancel()


def _signals() -> tuple[signal.Signals, ...]:
    """The signals that end a run; not SIGHUP where it was ignored from outside (nohup)."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return tuple(number for number in asked if signal.getsignal(number) is not signal.SIG_IGN)


if __name__ == "__main__":
    demo()
