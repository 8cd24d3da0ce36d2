"""Tells the daemon the figures of queries and shards from time to time; it has them in its metrics.

Owns the event `spark_figures` and its pace. A shard is in it while a relay serves it, a query while the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Final

from kcl_spark.control import Tell
from kcl_spark.conversation import ShardState
from kcl_spark.progress import Progress
from kcl_spark.tally import ShardFigures

FIGURES_S: Final = 2.0
"""From one time to the next. The daemon forgets what is much older."""


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """A query, as Spark told of it last.

    Args:
        running: whether it runs; one that failed waits to be started again.
        failures: since the engine's start.
        input_rows_per_s: that came in; None: Spark has not told yet.
        processed_rows_per_s: that it worked through.
        batch_s: how long its last batch with records took.
        state_rows: rows in the state of its windows and joins; None: it keeps none.
        late_rows: that Spark has dropped as later than the watermark, since the engine's start; None: it keeps no state.
    """

    running: bool
    failures: int = 0
    input_rows_per_s: float | None = None
    processed_rows_per_s: float | None = None
    batch_s: float | None = None
    state_rows: int | None = None
    late_rows: int | None = None


def query_figures(
    told: Mapping[str, Any] | None, before: QueryFigures, failures: int, late_rows: int | None = None
) -> QueryFigures:
    """The figures of a query that runs.

    Args:
        told: Spark's progress of it; None: it has none yet.
        before: its figures the last time: looks without records tell no duration.
        failures: since the engine's start.
        late_rows: dropped since then.
    """
    if told is None:
        return QueryFigures(running=True, failures=failures, late_rows=late_rows)
    took_ms: Mapping[str, int] = told["durationMs"]
    states = [int(each["numRowsTotal"]) for each in told["stateOperators"]]
    return QueryFigures(
        running=True,
        failures=failures,
        input_rows_per_s=_rate(told["inputRowsPerSecond"]),
        processed_rows_per_s=_rate(told["processedRowsPerSecond"]),
        batch_s=took_ms["triggerExecution"] / 1000 if "addBatch" in took_ms else before.batch_s,
        state_rows=sum(states) if states else None,
        late_rows=late_rows,
    )


def _rate(told: float | str | None) -> float:
    """Spark divides by the time between two batches, which there may not be: then it tells no number."""
    rate = 0.0 if told is None else float(told)
    return rate if isfinite(rate) else 0.0


class LateRows:
    """Adds up what Spark tells of the rows that it dropped, batch by batch; each of its reports counts once."""

    def __init__(self) -> None:
        self._newest: tuple[object, ...] = ()
        self.count: int | None = None

    def take(self, newest_first: Iterable[Mapping[str, Any]]) -> int:
        """Spark's last reports of a query; those that are known are not asked for. How many more rows were dropped."""
        more, newest = 0, self._newest
        for number, each in enumerate(newest_first):
            key = (each["runId"], each["timestamp"], each["batchId"])
            if key == self._newest:
                break
            newest = newest if number else key
            if each["stateOperators"]:
                self.count = self.count or 0
                more += sum(int(state["numRowsDroppedByWatermark"]) for state in each["stateOperators"])
        self._newest = newest
        self.count = self.count if self.count is None else self.count + more
        return more


class Figures:
    """Tells them.

    Args:
        states: of every shard that is or was served.
        shards: what the spool knows of them.
        progress: of the queries, by their books.
        queries: by Spark; asked each time, which may be a call to a server.
        tell: the daemon.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[ShardState]],
        shards: Callable[[], Mapping[str, ShardFigures]],
        progress: Progress,
        queries: Callable[[], Mapping[str, QueryFigures]],
        tell: Tell,
    ) -> None:
        self._states = states
        self._shards = shards
        self._progress = progress
        self._queries = queries
        self._tell = tell
        self._next_s = 0.0

    def tell_when_due(self, now_s: float) -> None:
        """Tell them if the last time was long enough ago."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + FIGURES_S
        batches, ages_s = self._progress.batches(), self._progress.ages_s()
        queries = {
            name: {**asdict(each), "batch": batches.get(name, -1), "since_commit_s": ages_s.get(name, 0.0)}
            for name, each in self._queries().items()
        }
        known = self._shards()
        shards = {
            state.shard_id: {
                **asdict(known[state.shard_id]),
                "behind_ms": state.behind_ms,
                "trimmed": state.trimmed,
            }
            for state in self._states()
            if not state.ended and state.shard_id in known
        }
        self._tell("debug", "spark_figures", queries=queries, shards=shards)
