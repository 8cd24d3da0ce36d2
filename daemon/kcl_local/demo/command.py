"""`kcl-daemon demo`: write text, run a daemon, split and merge shards meanwhile, check every record."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import click
from anyio.abc import TaskStatus

from kcl_local.demo.check import monotonic_s
from kcl_local.demo.processes import Processes, RunningProcess
from kcl_local.demo.screen import (
    DemoOutcome,
    DemoProgress,
    Screen,
    open_screen,
    report,
    shards_not_saved,
    short_name,
)
from kcl_local.demo.spark import SparkJob, SparkProgress, spark_job
from kcl_local.demo.stage import POLL_EVERY_S, Stage, WriteRate, stage
from kcl_local.demo.text import DemoError, Feed, input_feed, library_feed

SETTLED_WITHIN_S: Final = 60.0
SPLIT_AT: Final = 0.25
MERGE_AT: Final = 0.5


@dataclass(frozen=True, slots=True)
class DemoPlan:
    shards: int
    pace: WriteRate
    spark: bool = False

    @property
    def load_s(self) -> float:
        records = self.pace.records
        return self.pace.seconds if records is None else min(self.pace.seconds, records / self.pace.rate)


async def run_scenario(
    plan: DemoPlan, feed: Feed, *, directory: Path, processes: Processes, screen: Screen
) -> DemoOutcome:
    """Run in an empty directory; DemoError, in a group, if the run could not finish."""
    screen.say(f"files of this run: {directory}")
    screen.say("starting a local Kinesis and DynamoDB ...")
    async with stage(directory, processes, shards=plan.shards) as set_up:
        screen.say(
            f"stream {set_up.stream.name} with {plan.shards} shards is ACTIVE at {set_up.urls.kinesis}"
        )
        properties = set_up.write_properties("demo-worker")
        screen.say(f"starting the daemon: kcl-daemon --properties {properties}\n")
        screen.say(properties.read_text("ascii"))
        async with AsyncExitStack() as stack:
            spark = None
            if plan.spark:
                screen.say(
                    "starting a second daemon: a windowed word count on Spark (starting takes a while) ...\n"
                )
                spark = await stack.enter_async_context(spark_job(set_up))
            daemon = await stack.enter_async_context(set_up.daemon(properties))
            return await _Scenario(plan, feed, set_up, screen, spark).run(daemon)


class _Scenario:
    def __init__(
        self, plan: DemoPlan, feed: Feed, set_up: Stage, screen: Screen, spark: SparkJob | None = None
    ) -> None:
        self._plan = plan
        self._feed = feed
        self._stage = set_up
        self._screen = screen
        self._spark = spark
        self._written = anyio.Event()
        self._load_s = 0.0

    async def run(self, daemon: RunningProcess) -> DemoOutcome:
        async with anyio.create_task_group() as watch:
            watch.start_soon(daemon.fail_when_ended)
            watch.start_soon(self._stage.endpoints.fail_when_ended)
            if self._spark is not None:
                watch.start_soon(self._spark.running.fail_when_ended)
            async with anyio.create_task_group() as live:
                live.start_soon(self._show)
                await self._load()
                await self._stage.settled(SETTLED_WITHIN_S)
                if self._spark is not None:
                    await self._spark.settled(self._stage.checker.written)
                live.cancel_scope.cancel()
            watch.cancel_scope.cancel()
        return await self._close(daemon)

    async def _load(self) -> None:
        async with anyio.create_task_group() as load:
            load.start_soon(self._write)
            load.start_soon(self._reshard)

    async def _write(self) -> None:
        self._screen.say(f"writing {self._feed.description}, line by line ...")
        started_s = monotonic_s()
        await self._stage.producer().run(self._feed, self._plan.pace)
        self._load_s = monotonic_s() - started_s
        self._written.set()

    async def _reshard(self) -> None:
        started_s = monotonic_s()
        await self._until(started_s + self._plan.load_s * SPLIT_AT)
        parent = await self._stage.stream.split()
        if parent is not None:
            self._screen.say(f"split shard {short_name(parent.shard_id)}")
        await self._until(started_s + self._plan.load_s * MERGE_AT)
        pair = await self._stage.stream.merge()
        if pair is not None:
            self._screen.say(f"merged shards {' and '.join(short_name(shard.shard_id) for shard in pair)}")

    async def _until(self, moment_s: float) -> None:
        with anyio.move_on_after(max(0.0, moment_s - monotonic_s())):
            await self._written.wait()

    async def _show(self) -> None:
        while True:
            await self._stage.poll()
            self._show_now(None if self._spark is None else await self._spark.poll())
            await anyio.sleep(POLL_EVERY_S)

    def _show_now(self, spark: SparkProgress | None = None) -> None:
        elapsed_s = monotonic_s() - self._stage.active_at_s
        self._screen.show(DemoProgress(elapsed_s, self._stage.checker.progress(), spark))

    async def _close(self, daemon: RunningProcess) -> DemoOutcome:
        self._screen.say("stopping the daemon (SIGTERM) ...")
        asked_s = monotonic_s()
        exit_code = await daemon.stop()
        stop_s = monotonic_s() - asked_s
        await self._stage.poll()
        self._show_now()
        checker = self._stage.checker
        stored = {shard: lease.checkpoint for shard, lease in (await self._stage.leases()).items()}
        spark = None if self._spark is None else await self._spark.close(checker.sequence_numbers())
        first_s, last_s = checker.first_delivery_s, checker.last_delivery_s
        return DemoOutcome(
            verdict=checker.verdict(),
            shards=len(checker.progress()),
            load_s=self._load_s,
            first_record_s=None if first_s is None else first_s - self._stage.active_at_s,
            delivering_s=0.0 if first_s is None or last_s is None else last_s - first_s,
            daemon_exit_code=exit_code,
            daemon_stop_s=stop_s,
            not_saved=shards_not_saved(checker, stored),
            spark=spark,
        )


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
    plan = DemoPlan(shards, WriteRate(rate=rate, seconds=seconds, records=records), spark=spark)
    with _directory(keep) as directory:
        try:
            feed = library_feed() if input_name is None else input_feed(input_name)
            code = _run_demo(plan, feed, directory.path, plain=plain)
        except DemoError as error:
            click.echo(f"the demo failed: {error}", err=True)
            code = EXIT_WRONG
        except BrokenPipeError:
            directory.is_wanted = False  # the reader left, as in `kcl-daemon demo | head`
            raise
        directory.is_wanted = code == EXIT_WRONG
    sys.exit(code)


class _Directory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_wanted = True


@contextmanager
def _directory(keep: Path | None) -> Generator[_Directory]:
    """Removed after a successful run, except with `--keep`."""
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


def _run_demo(plan: DemoPlan, feed: Feed, directory: Path, *, plain: bool) -> int:
    run = _Run(plan, feed, directory)
    with open_screen(plain=plain) as screen:
        try:
            anyio.run(run.main, screen)
        except* (DemoError, BrokenPipeError) as errors:
            if run.stopped_by is None:  # errors after a stop are its consequence
                raise _first(errors) from errors
    if run.stopped_by is not None:
        click.echo(f"stopped by {run.stopped_by.name}")
        return _EXIT_SIGNAL + run.stopped_by
    assert run.outcome is not None, "a run that was not stopped has an outcome or an error"
    for line in report(run.outcome):
        click.echo(line)
    return 0 if run.outcome.is_right else EXIT_WRONG


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Run:
    def __init__(self, plan: DemoPlan, feed: Feed, directory: Path) -> None:
        self._plan = plan
        self._feed = feed
        self._directory = directory
        self._processes = Processes()
        self.outcome: DemoOutcome | None = None
        self.stopped_by: signal.Signals | None = None

    async def main(self, screen: Screen) -> None:
        async with anyio.create_task_group() as signals:
            with anyio.CancelScope() as playing:
                await signals.start(self._watch_signals, playing, screen)
                self.outcome = await run_scenario(
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
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return tuple(number for number in asked if signal.getsignal(number) is not signal.SIG_IGN)


if __name__ == "__main__":
    demo()
