"""The result of a demo: what came of it, whether that is right, and how it is told.

Owns the wording and the exit code. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kcl_local.demo.check import Checker, ShardProgress, Verdict
from kcl_local.demo.spark import SparkOutcome

FIRST_RECORD_WITHIN_S: Final = 5.0
TOP_WORDS: Final = 10
SHARD_END: Final = "SHARD_END"
TRIM_HORIZON: Final = "TRIM_HORIZON"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Args:
        verdict: of the checker.
        shards: how many the stream had in all.
        load_s: how long the producer wrote.
        first_record_s: from the stream being ACTIVE to the first delivered record; None: there was none.
        delivering_s: from the first to the last delivered record.
        daemon_exit_code: of the daemon, after SIGTERM.
        daemon_stop_s: how long it took to end after SIGTERM.
        not_saved: shards whose stored checkpoint is not where their processing ended.
        spark: the account of the application on Spark; None: there was none.
    """

    verdict: Verdict
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
        """Whether the demo may end with exit code 0. Being slow or repeating records is no failure."""
        spark_is_right = self.spark is None or self.spark.is_right
        return self.verdict.is_right and self.daemon_exit_code == 0 and not self.not_saved and spark_is_right


def shards_not_saved(checker: Checker, stored: Mapping[str, str]) -> tuple[str, ...]:
    """Shards whose stored checkpoint is not their last delivered record (open) or SHARD_END (closed).

    A closed shard without a row is fine: its lease is deleted some time after its end. An open shard that has delivered
    nothing is still at its start.
    """
    return tuple(
        shard.shard_id
        for shard in checker.progress()
        if stored.get(shard.shard_id) not in _right_checkpoints(checker, shard)
    )


def _right_checkpoints(checker: Checker, shard: ShardProgress) -> set[str | None]:
    if not shard.is_open:
        return {None, SHARD_END}
    last = checker.last_delivered(shard.shard_id)
    return {None, TRIM_HORIZON} if last is None else {str(last)}


def report(outcome: Outcome) -> Iterator[str]:
    """The result, line by line; the last says how many records were lost."""
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


def _first_record(outcome: Outcome) -> str:
    seconds = outcome.first_record_s
    if seconds is None:
        return "none"
    kept = (
        "" if seconds < FIRST_RECORD_WITHIN_S else f", later than the {FIRST_RECORD_WITHIN_S:g} s to expect"
    )
    return f"{seconds:.2f} s after the stream was ACTIVE{kept}"


def _throughput(outcome: Outcome) -> str:
    if outcome.delivering_s <= 0:
        return "too little to tell"
    return (
        f"{outcome.verdict.delivered / outcome.delivering_s:,.0f} records/s over {outcome.delivering_s:.1f} s"
    )


def _words(verdict: Verdict) -> str:
    delivered, written = verdict.words_delivered, verdict.words_written
    if verdict.words_agree:
        return f"{delivered.total():,} words, {len(delivered):,} different: the same as in the text written"
    return f"DIFFER: {delivered.total():,} words delivered, {written.total():,} written"


def _checkpoints(outcome: Outcome) -> str:
    if outcome.not_saved:
        return f"NOT where processing ended: {', '.join(outcome.not_saved)}"
    return "stored where processing ended, for every shard"
