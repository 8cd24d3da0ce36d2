from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import click

from kcl_local.demo.changes import CopyOutcome, run_changes
from kcl_local.demo.check import monotonic_s
from kcl_local.demo.landing import LandingOutcome, run_landing
from kcl_local.demo.processes import Processes, RunningProcess, stoppable
from kcl_local.demo.screen import (
    DemoOutcome,
    DemoProgress,
    Screen,
    open_screen,
    report,
    shards_not_saved,
    short_name,
)
from kcl_local.demo.spark import SparkJob, spark_job
from kcl_local.demo.stage import POLL_EVERY_S, Stage, WriteRate, stage
from kcl_local.demo.text import DemoError, Feed, first_of, input_feed, library_feed

SETTLED_WITHIN_S: Final = 60.0
SPLIT_AT: Final = 0.25
MERGE_AT: Final = 0.5

Outcome: TypeAlias = DemoOutcome | LandingOutcome | CopyOutcome
Scenario: TypeAlias = Callable[[Processes, Screen], Awaitable[Outcome]]
EXIT_WRONG = 1
_EXIT_SIGNAL = 128


async def run_scenario(
    feed: Feed,
    pace: WriteRate,
    processes: Processes,
    screen: Screen,
    *,
    directory: Path,
    shards: int,
    with_spark: bool,
) -> DemoOutcome:
    """DemoError, in a group, if the run could not finish."""
    screen.say(f"files of this run: {directory}")
    screen.say("starting a local Kinesis and DynamoDB ...")
    async with stage(directory, processes, shards=shards) as set_up, AsyncExitStack() as stack:
        screen.say(f"stream {set_up.stream.name} with {shards} shards is ACTIVE at {set_up.urls.kinesis}")
        properties = set_up.write_properties("demo-worker")
        screen.say(f"starting the daemon: kcl-daemon --properties {properties}\n")
        screen.say(properties.read_text("ascii"))
        spark = None
        if with_spark:
            screen.say(
                "starting a second daemon: a windowed word count on Spark (starting takes a while) ...\n"
            )
            spark = await stack.enter_async_context(spark_job(set_up))
        daemon = await stack.enter_async_context(set_up.daemon(properties))
        load_s = await _play(set_up, screen, feed, pace, daemon=daemon, spark=spark)
        return await _close(set_up, screen, load_s, daemon=daemon, spark=spark)


async def _play(
    set_up: Stage,
    screen: Screen,
    feed: Feed,
    pace: WriteRate,
    *,
    daemon: RunningProcess,
    spark: SparkJob | None,
) -> float:
    """The seconds of writing. DemoError if a process ends."""
    load_s = 0.0
    needed = [daemon, set_up.endpoints, *([] if spark is None else [spark.running])]
    async with anyio.create_task_group() as watch:
        for process in needed:
            watch.start_soon(process.fail_when_ended)
        async with anyio.create_task_group() as live:
            live.start_soon(_show, set_up, screen, spark)
            load_s = await _load(set_up, screen, feed, pace)
            await set_up.settled(SETTLED_WITHIN_S)
            if spark is not None:
                await spark.settled(set_up.checker.written)
            live.cancel_scope.cancel()
        watch.cancel_scope.cancel()
    return load_s


async def _load(set_up: Stage, screen: Screen, feed: Feed, pace: WriteRate) -> float:
    screen.say(f"writing {feed.description}, line by line ...")
    started_s, written, load_s = monotonic_s(), anyio.Event(), 0.0

    async def reach(share: float) -> None:
        with anyio.move_on_after(max(0.0, started_s + pace.lasts_s * share - monotonic_s())):
            await written.wait()

    async def reshard() -> None:
        await reach(SPLIT_AT)
        parent = await set_up.stream.split()
        if parent is not None:
            screen.say(f"split shard {short_name(parent.shard_id)}")
        await reach(MERGE_AT)
        pair = await set_up.stream.merge()
        if pair is not None:
            screen.say(f"merged shards {' and '.join(short_name(shard.shard_id) for shard in pair)}")

    async with anyio.create_task_group() as load:
        load.start_soon(reshard)
        await set_up.producer().run(feed, pace)
        load_s = monotonic_s() - started_s
        written.set()
    return load_s


async def _show(set_up: Stage, screen: Screen, spark: SparkJob | None) -> None:
    while True:
        await set_up.poll()
        if spark is not None:
            await spark.poll()
        output = None if spark is None else spark.output
        screen.show(DemoProgress(set_up.elapsed_s(), set_up.checker.progress(), output))
        await anyio.sleep(POLL_EVERY_S)


async def _close(
    set_up: Stage, screen: Screen, load_s: float, *, daemon: RunningProcess, spark: SparkJob | None
) -> DemoOutcome:
    screen.say("stopping the daemon (SIGTERM) ...")
    asked_s = monotonic_s()
    exit_code = await daemon.stop()
    stop_s = monotonic_s() - asked_s
    await set_up.poll()
    checker = set_up.checker
    screen.show(DemoProgress(set_up.elapsed_s(), checker.progress()))
    stored = {shard: lease.checkpoint for shard, lease in (await set_up.leases()).items()}
    first_s, last_s = checker.first_delivery_s, checker.last_delivery_s
    return DemoOutcome(
        verdict=checker.verdict(),
        shards=len(checker.progress()),
        load_s=load_s,
        first_record_s=None if first_s is None else first_s - set_up.active_at_s,
        delivering_s=0.0 if first_s is None or last_s is None else last_s - first_s,
        daemon_exit_code=exit_code,
        daemon_stop_s=stop_s,
        not_saved=shards_not_saved(checker, stored),
        spark=None if spark is None else await spark.close(checker.sequence_numbers()),
    )


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
@click.option(
    "--spark/--no-spark",
    default=None,
    help="Add a second application on the same stream, on Spark. [default: only with --dynamodb, if it is installed]",
)
@click.option(
    "--landing",
    is_flag=True,
    help="Instead: two daemons write a landing log, Spark reads it in a process of its own; a daemon, a lander and the Spark "
    "driver are killed meanwhile.",
)
@click.option(
    "--dynamodb",
    is_flag=True,
    help="Instead: a DynamoDB table is written, and a processor and Spark each build a copy of it from its stream; shards roll "
    "and split, processes are killed. At most 250 writes a second.",
)
@click.option("--plain", is_flag=True, help="Plain lines, as when the output is no terminal.")
def demo(
    *,
    input_name: str | None,
    shards: int,
    records: int | None,
    rate: int,
    seconds: float,
    keep: Path | None,
    spark: bool | None,
    landing: bool,
    dynamodb: bool,
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
    if landing and (spark or dynamodb):
        raise click.UsageError(
            f"--landing and --{'spark' if spark else 'dynamodb'} are two demos; give one of them"
        )
    pace = WriteRate(rate=rate, seconds=seconds, records=records)
    directory = _directory(keep)
    is_wanted = True
    try:
        feed = library_feed() if input_name is None else input_feed(input_name)
        play: Scenario = partial(
            run_scenario, feed, pace, directory=directory, shards=shards, with_spark=bool(spark)
        )
        if landing:
            play = partial(run_landing, feed, pace, directory=directory, shards=shards)
        if dynamodb:
            play = partial(run_changes, pace, directory=directory, with_spark=spark is not False)
        code = _run_demo(play, plain=plain)
        is_wanted = code == EXIT_WRONG
    except DemoError as error:
        click.echo(f"the demo failed: {error}", err=True)
        code = EXIT_WRONG
    except BrokenPipeError:
        is_wanted = False  # the reader left, as in `kcl-daemon demo | head`
        raise
    finally:
        if keep is None:
            _leave(directory, is_wanted=is_wanted)
    sys.exit(code)


def _directory(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="kcl-demo-")).resolve()
    keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise click.UsageError(f"--keep: {keep} is not empty; use a new or empty directory")
    return keep.resolve()


def _leave(directory: Path, *, is_wanted: bool) -> None:
    if is_wanted:
        click.echo(f"the files of this run are in {directory}", err=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _run_demo(play: Scenario, *, plain: bool) -> int:
    stopped_by: list[signal.Signals] = []
    outcome = None
    with open_screen(plain=plain) as screen:
        try:
            outcome = anyio.run(_main, play, screen, stopped_by)
        except* (DemoError, BrokenPipeError) as errors:
            if not stopped_by:
                raise first_of(errors) from errors
    if stopped_by:
        click.echo(f"stopped by {stopped_by[0].name}")
        return _EXIT_SIGNAL + stopped_by[0]
    assert outcome is not None, "a run that was not stopped has an outcome or an error"
    for line in report(outcome) if isinstance(outcome, DemoOutcome) else outcome.lines():
        click.echo(line)
    return 0 if outcome.is_right else EXIT_WRONG


async def _main(play: Scenario, screen: Screen, stopped_by: list[signal.Signals]) -> Outcome | None:
    processes = Processes()
    return await stoppable(
        partial(play, processes, screen),
        stopped_by,
        first=lambda number: screen.say(f"{number.name}: stopping daemon and endpoints ..."),
        again=lambda _: processes.kill_all(),
    )


if __name__ == "__main__":
    demo()
