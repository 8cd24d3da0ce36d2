from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import click
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from kcl_local.demo.check import Checker, CheckResult, ShardProgress, ShardState
from kcl_local.demo.spark import SparkOutcome, SparkOutput

PLAIN_EVERY_S: Final = 1.0
_TABLE_PER_SECOND: Final = 4
_PREFIX: Final = "shardId-"
_SIGNS: Final = {
    ShardState.WAITING: ".",
    ShardState.READING: "+",
    ShardState.STOPPED: "-",
    ShardState.ENDED: "=",
}
FIRST_RECORD_WITHIN_S: Final = 5.0
TOP_WORDS: Final = 10
SHARD_END: Final = "SHARD_END"
TRIM_HORIZON: Final = "TRIM_HORIZON"


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """`elapsed_s` counts from the stream being ACTIVE."""

    elapsed_s: float
    shards: Sequence[ShardProgress]
    spark: SparkOutput | None = None

    @property
    def written(self) -> int:
        return sum(shard.written for shard in self.shards)

    @property
    def delivered(self) -> int:
        return sum(shard.delivered for shard in self.shards)

    @property
    def behind(self) -> int:
        return sum(shard.behind for shard in self.shards)


def short_name(shard_id: str) -> str:
    """`shardId-000000000012` is `12`."""
    return shard_id.removeprefix(_PREFIX).lstrip("0") or "0"


def state_in_words(shard: ShardProgress) -> str:
    match shard.state:
        case ShardState.WAITING:
            return "awaits parents" if shard.parents else "waits"
        case ShardState.READING:
            return "reads" if shard.is_open else "reads to its end"
        case ShardState.STOPPED:
            return "stopped"
        case ShardState.ENDED:
            return "ended"


def checkpoint_in_words(shard: ShardProgress) -> str:
    if shard.state is ShardState.ENDED and shard.unsaved == 0:
        return "SHARD_END"
    if shard.delivered == 0:
        return "-"
    return f"{shard.unsaved:,} behind" if shard.unsaved else "all"


class PlainScreen:
    def __init__(self) -> None:
        self._shown_at_s: float | None = None

    def say(self, text: str) -> None:
        click.echo(text)

    def show(self, progress: DemoProgress) -> None:
        if self._shown_at_s is not None and progress.elapsed_s - self._shown_at_s < PLAIN_EVERY_S:
            return
        self._shown_at_s = progress.elapsed_s
        click.echo(plain_line(progress))


def plain_line(progress: DemoProgress) -> str:
    """For each shard: number, sign (`.` waits, `+` reads, `-` stopped, `=` ended), delivered/written."""
    shards = "  ".join(
        f"{short_name(shard.shard_id)}{_SIGNS[shard.state]}{shard.delivered}/{shard.written}"
        for shard in progress.shards
    )
    totals = f"written {progress.written:,} delivered {progress.delivered:,} behind {progress.behind:,}"
    spark = "" if progress.spark is None else f" | spark {spark_in_words(progress.spark)}"
    return f"{progress.elapsed_s:5.1f} s  {totals} | {shards}{spark}"


def spark_in_words(spark: SparkOutput) -> str:
    top = ", ".join(f"{word} {count:,}" for word, count in spark.top())
    return f"{len(spark.seen):,} records in {spark.batches} batches, {spark.windows} windows: {top or 'starting'}"


class TableScreen:
    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show(self, progress: DemoProgress) -> None:
        self._live.update(progress_table(progress))


def progress_table(progress: DemoProgress) -> Table:
    table = Table(
        title=f"{progress.elapsed_s:.0f} s", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for heading in ("shard", "parents", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("written", "delivered", "behind", "checkpoint"):
        table.add_column(heading, justify="right", no_wrap=True)
    for shard in progress.shards:
        table.add_row(
            short_name(shard.shard_id),
            " ".join(map(short_name, shard.parents)),
            state_in_words(shard),
            *_figures(shard),
            checkpoint_in_words(shard),
        )
    table.add_section()
    table.add_row("all", "", "", *_figures(progress), "")
    if progress.spark is not None:
        table.caption = f"on Spark: {spark_in_words(progress.spark)}"
        table.caption_justify = "left"
    return table


def _figures(of: ShardProgress | DemoProgress) -> tuple[str, str, str]:
    return f"{of.written:,}", f"{of.delivered:,}", f"{of.behind:,}"


Screen: TypeAlias = PlainScreen | TableScreen


@contextmanager
def open_screen(*, plain: bool) -> Generator[Screen]:
    if plain or not sys.stdout.isatty():
        yield PlainScreen()
        return
    console = Console()
    with Live(console=console, refresh_per_second=_TABLE_PER_SECOND, transient=False) as live:
        yield TableScreen(console, live)


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """`first_record_s` counts from ACTIVE to the first delivery, `delivering_s` from the first to the last."""

    verdict: CheckResult
    shards: int
    load_s: float
    first_record_s: float | None
    delivering_s: float
    daemon_exit_code: int
    daemon_stop_s: float
    not_saved: tuple[str, ...]
    spark: SparkOutcome | None = None

    @property
    def is_right(self) -> bool:
        spark_is_right = self.spark is None or self.spark.is_right
        return self.verdict.is_right and self.daemon_exit_code == 0 and not self.not_saved and spark_is_right


def shards_not_saved(checker: Checker, stored: Mapping[str, str]) -> tuple[str, ...]:
    """Those whose checkpoint is not where processing ended. A closed shard may have no row: its lease is deleted later."""
    return tuple(
        shard.shard_id
        for shard in checker.progress()
        if stored.get(shard.shard_id) not in _right_checkpoints(shard)
    )


def _right_checkpoints(shard: ShardProgress) -> set[str | None]:
    if not shard.is_open:
        return {None, SHARD_END}
    delivered = shard.first_delivered_s
    return {str(max(delivered))} if delivered else {None, TRIM_HORIZON}


def report(outcome: DemoOutcome) -> Iterator[str]:
    verdict = outcome.verdict
    yield f"written         {verdict.written:,} records to {outcome.shards} shards in {outcome.load_s:.1f} s"
    yield f"delivered       {verdict.delivered:,}"
    yield f"first record    {_first_record(outcome)}"
    yield f"throughput      {_throughput(outcome)}"
    yield f"word counts     {_words(verdict)}"
    for word, count in verdict.words_delivered.most_common(TOP_WORDS):
        yield f"                {count:>8,}  {word}"
    yield f"daemon          exit code {outcome.daemon_exit_code}, {outcome.daemon_stop_s:.1f} s after SIGTERM"
    yield f"checkpoints     {_checkpoints(outcome)}"
    if verdict.unknown:
        yield f"never written   {verdict.unknown:,} of the delivered records: not from this stream"
    if outcome.spark is not None:
        yield from _spark(outcome.spark)
    yield f"repeated        {verdict.repeated:,}"
    yield f"out of order    {verdict.out_of_order:,}"
    yield f"before parents  {verdict.before_parents:,}"
    yield f"result          {'right' if outcome.is_right else 'WRONG'}"
    yield f"lost {verdict.lost}"


def _spark(spark: SparkOutcome) -> Iterator[str]:
    agree = "the same as in a batch computation over all records"
    counts = f"{spark.windows} windows, {agree}" if spark.words_agree else f"NOT {agree}"
    yield f"on Spark        {spark.records:,} records, lost {spark.lost}, repeated {spark.repeated}"
    yield f"                word counts in {counts}; exit code {spark.exit_code}"


def _first_record(outcome: DemoOutcome) -> str:
    seconds = outcome.first_record_s
    if seconds is None:
        return "none"
    kept = (
        "" if seconds < FIRST_RECORD_WITHIN_S else f", later than the {FIRST_RECORD_WITHIN_S:g} s to expect"
    )
    return f"{seconds:.2f} s after the stream was ACTIVE{kept}"


def _throughput(outcome: DemoOutcome) -> str:
    if outcome.delivering_s <= 0:
        return "too little to tell"
    return (
        f"{outcome.verdict.delivered / outcome.delivering_s:,.0f} records/s over {outcome.delivering_s:.1f} s"
    )


def _words(verdict: CheckResult) -> str:
    delivered, written = verdict.words_delivered, verdict.words_written
    if verdict.words_agree:
        return f"{delivered.total():,} words, {len(delivered):,} different: the same as in the text written"
    return f"DIFFER: {delivered.total():,} words delivered, {written.total():,} written"


def _checkpoints(outcome: DemoOutcome) -> str:
    if outcome.not_saved:
        return f"NOT where processing ended: {', '.join(outcome.not_saved)}"
    return "stored where processing ended, for every shard"
