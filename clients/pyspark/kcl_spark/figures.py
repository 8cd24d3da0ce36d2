"""What the daemon is told of queries and shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Final, TypeAlias

from kcl_landing.control import EmitEvent
from kcl_landing.positions import Position
from kcl_spark.conversation import CommitProgress, ShardState
from kcl_spark.spool import ShardFigures

ReportKey: TypeAlias = tuple[object, ...]
FIGURES_S: Final = 2.0
QUIET_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """None: a query without state."""

    running: bool
    failures: int = 0
    input_rows_per_s: float | None = None
    processed_rows_per_s: float | None = None
    batch_s: float | None = None
    state_rows: int | None = None
    late_rows: int | None = None


def query_figures(
    reported: Mapping[str, Any] | None, before: QueryFigures, failures: int, late_rows: int | None = None
) -> QueryFigures:
    """Without a batch the duration of `before` stays."""
    if reported is None:
        return QueryFigures(running=True, failures=failures, late_rows=late_rows)
    took_ms: Mapping[str, int] = reported["durationMs"]
    states = [int(each["numRowsTotal"]) for each in reported["stateOperators"]]
    return QueryFigures(
        running=True,
        failures=failures,
        input_rows_per_s=_rate(reported["inputRowsPerSecond"]),
        processed_rows_per_s=_rate(reported["processedRowsPerSecond"]),
        batch_s=took_ms["triggerExecution"] / 1000 if "addBatch" in took_ms else before.batch_s,
        state_rows=sum(states) if states else None,
        late_rows=late_rows,
    )


def _rate(reported: float | str | None) -> float:
    """Not finite if no time was between two batches."""
    rate = 0.0 if reported is None else float(reported)
    return rate if isfinite(rate) else 0.0


def late_rows(newest_first: Iterable[Mapping[str, Any]], seen: ReportKey) -> tuple[int | None, ReportKey]:
    """Since the report `seen`, which the newest one replaces. None: no state."""
    more: int | None = None
    newest = seen
    for number, each in enumerate(newest_first):
        key = (each["runId"], each["timestamp"], each["batchId"])
        if key == seen:
            break
        newest = newest if number else key
        if states := each["stateOperators"]:
            more = (more or 0) + sum(int(state["numRowsDroppedByWatermark"]) for state in states)
    return more, newest


def figure_reporter(
    states: Callable[[], Sequence[ShardState]],
    shards: Callable[[], Mapping[str, ShardFigures]],
    progress: CommitProgress,
    queries: Callable[[], Mapping[str, QueryFigures]],
    log_event: EmitEvent,
) -> Callable[[float], None]:
    next_s = 0.0

    def report_when_due(now_s: float) -> None:
        nonlocal next_s
        if now_s < next_s:
            return
        next_s = now_s + FIGURES_S
        batches = {name: batch for name, batch in progress.batches().items() if batch >= 0}
        ages_s, known = progress.ages_s(), shards()
        of_queries = {
            name: {**asdict(each), "batch": batches.get(name), "since_commit_s": ages_s.get(name, 0.0)}
            for name, each in queries().items()
        }
        of_shards = {
            each.shard_id: {
                **asdict(known[each.shard_id]),
                "behind_ms": each.behind_ms,
                "trimmed": each.trimmed,
            }
            for each in states()
            if not each.ended and each.shard_id in known
        }
        log_event("debug", "spark_figures", queries=of_queries, shards=of_shards)

    return report_when_due


class CaughtUp:
    """For so long that child shards would have started."""

    def __init__(
        self,
        states: Callable[[], Sequence[ShardState]],
        committed: Callable[[str], Position],
        mark: Callable[[str], Position],
    ) -> None:
        self._states = states
        self._committed = committed
        self._mark = mark
        self._since_s = 0.0
        self._seen: frozenset[str] = frozenset()
        self._reported = False

    def is_so(self, now_s: float) -> bool:
        states = self._states()
        shards = frozenset(state.shard_id for state in states)
        done = bool(states) and all(self._is_done(state) for state in states)
        if not done or shards != self._seen:
            self._seen, self._since_s = shards, now_s
        return now_s - self._since_s >= QUIET_S

    def report_once(self, log_event: EmitEvent) -> None:
        if not self._reported:
            self._reported = True
            log_event("info", "caught_up", shards=len(self._seen))

    def _is_done(self, state: ShardState) -> bool:
        done = max(self._committed(state.shard_id), state.checkpoint)
        return state.ended or (state.behind_ms == 0 and done >= self._mark(state.shard_id))
