"""The streaming queries of a pipeline.

A failed query starts again after growing pauses. After too many failures in one batch the engine gives up; nothing is
skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kcl_landing.control import EmitEvent, Refused, epoch_ms, monotonic_s, pause
from kcl_landing.positions import START, Position, to_text
from kcl_spark.api import QueryContext, register
from kcl_spark.declared import DeclaredQuery, by_name, file_sink_path
from kcl_spark.figures import QueryFigures, ReportKey, late_rows, query_figures
from kcl_spark.outputs import OutputTaken, ahead_s, claim_path
from kcl_spark.positions import QueryLog
from kcl_spark.session import EngineOptions
from kcl_spark.source import LostRange
from kcl_spark.state import StateFolder
from kcl_spark.stores import FolderStore, StoredShard

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_ERROR_CHARACTERS: Final = 4_000
_LINE_CHARACTERS: Final = 300
_NO_WAIT: Final = "0 seconds"
_FULL: Final = ("No space left on device", "Disk quota exceeded")


def shortened(error: str) -> str:
    """Without stack frames. The cause comes last."""
    if len(error) > _ERROR_CHARACTERS:
        error = "\n".join(line for line in error.splitlines() if line.strip() and not line[0].isspace())
    if len(error) > _ERROR_CHARACTERS:
        half = _ERROR_CHARACTERS // 2
        error = f"{error[:half]}\n...\n{error[-half:]}"
    return error


class PipelineFailed(Exception): ...


@dataclass(slots=True)
class _Query:
    declared: DeclaredQuery
    writer: DataStreamWriter
    context: QueryContext
    running: StreamingQuery | None = None
    failures: int = 0
    all_failures: int = 0
    failed_at_batch: int | None = None
    start_at_s: float = 0.0
    late_rows: int | None = None
    newest_report: ReportKey = ()
    figures: QueryFigures = field(default_factory=lambda: QueryFigures(running=False))


class Queries:
    def __init__(
        self,
        spark: SparkSession,
        writers: list[DataStreamWriter],
        state: StateFolder,
        options: EngineOptions,
        log_event: EmitEvent,
    ) -> None:
        self._spark = spark
        self._options = options
        self._state = state
        self._log_event = log_event
        self._queries: dict[str, _Query] = {}
        for about, writer in by_name(writers).values():
            log = QueryLog(state.query_folder(about.name))
            planned = log.read().planned_batch
            context = QueryContext(about.name, log, state.state_id, planned)
            self._queries[about.name] = _Query(about, self._prepared(writer, about, log), context)
        register({name: query.context for name, query in self._queries.items()})

    def logs(self) -> dict[str, QueryLog]:
        return {name: query.context.log for name, query in self._queries.items()}

    def claim_outputs(self) -> None:
        """Refused: a file sink's path belongs to others."""
        for name, query in self._queries.items():
            if (path := file_sink_path(query.declared)) is not None:
                is_new = query.context.log.read().planned_batch is None
                try:
                    claim_path(self._spark, path, state_id=self._state.state_id, query=name, is_new=is_new)
                except OutputTaken as error:
                    raise Refused(str(error)) from error

    def start(self) -> None:
        changes = self._state.compare(self._queries)
        for name in changes.added:
            self._log_event("info", "spark_query_added", query=name)
        for name in changes.put_back:
            self._log_event("warning", "spark_query_put_back", query=name)
        for name in changes.removed:
            self._log_event("info", "spark_query_removed", query=name)
        for name, query in self._queries.items():
            if (seconds := ahead_s(query.context.log.watermark_ms(), epoch_ms())) is not None:
                self._log_event("warning", "spark_watermark_ahead", query=name, ahead_s=seconds)
            query.running = query.writer.start()

    def check(self) -> None:
        """PipelineFailed: too often in one batch."""
        for name, query in self._queries.items():
            if query.running is None:
                if monotonic_s() >= query.start_at_s:
                    query.context.planned_before = query.context.log.read().planned_batch
                    query.running = query.writer.start()
            elif not query.running.isActive:
                self._failed(name, query, query.running.exception())

    def figures(self) -> dict[str, QueryFigures]:
        """In the thread of `check`."""
        for name, query in self._queries.items():
            if query.running is None:
                query.figures = QueryFigures(
                    running=False, failures=query.all_failures, late_rows=query.late_rows
                )
            else:
                self._count_late(name, query, query.running)
                query.figures = query_figures(
                    query.running.lastProgress, query.figures, query.all_failures, query.late_rows
                )
        return {name: query.figures for name, query in self._queries.items()}

    def stop(self, timeout_s: float) -> None:
        """A batch that is interrupted runs again."""
        deadline_s = monotonic_s() + timeout_s
        for query in self._queries.values():
            if query.running is None:
                continue
            while (
                query.running.isActive
                and query.running.status["isTriggerActive"]
                and monotonic_s() < deadline_s
            ):
                pause(0.02)
            query.running.stop()

    def _count_late(self, name: str, query: _Query, running: StreamingQuery) -> None:
        more, query.newest_report = late_rows(_newest_first(running), query.newest_report)
        if more is not None:
            before, query.late_rows = query.late_rows, (query.late_rows or 0) + more
            if more and not before:
                self._log_event("warning", "spark_rows_late", query=name, rows=query.late_rows)

    def _prepared(self, writer: DataStreamWriter, about: DeclaredQuery, log: QueryLog) -> DataStreamWriter:
        writer = writer.option("checkpointLocation", str(log.folder))
        if about.has_trigger:
            return writer
        interval = _NO_WAIT if self._options.is_available_now else self._options.trigger
        return writer.trigger(processingTime=interval)

    def _failed(self, name: str, query: _Query, error: StreamingQueryException | None) -> None:
        said = "it was stopped" if error is None else str(error)
        if LostRange.__name__ in said and self._leave(name, query):
            return
        books = query.context.log.read()
        batch_id = books.planned_batch
        query.failures = query.failures + 1 if query.failed_at_batch == batch_id else 1
        full = next((line for line in said.splitlines() if any(each in line for each in _FULL)), None)
        if full is not None:
            query.failures = min(query.failures, self._options.query_retries)
            self._log_event("warning", "spark_disk_full", what=f"query {name}", error=full[:_LINE_CHARACTERS])
        query.failed_at_batch = batch_id
        query.all_failures += 1
        said = shortened(said)
        ranges = {
            shard: _range(books.committed.get(shard, START), last)
            for shard, last in books.planned.items()
            if last != books.committed.get(shard)
        }
        if query.failures > self._options.query_retries:
            raise PipelineFailed(
                f"query {name!r} failed {query.failures} times in batch {batch_id} with {ranges}: {said}"
            )
        pause_s = min(_FIRST_PAUSE_S * 2 ** (query.failures - 1), _LONGEST_PAUSE_S)
        query.running, query.start_at_s = None, monotonic_s() + pause_s
        self._log_event(
            "warning",
            "query_failed",
            query=name,
            batch=batch_id,
            ranges=ranges,
            failures=query.failures,
            restart_in_s=pause_s,
            error=said,
        )

    def _leave(self, name: str, query: _Query) -> bool:
        """What other hosts have now; False: nothing."""
        stored = FolderStore(self._options.spool).poll()
        log = query.context.log
        left = log.leave(
            lambda shard, after, last: stored.get(shard, StoredShard()).is_lost(shard, after, last)
        )
        if left:
            query.running, query.start_at_s = None, monotonic_s()
            ranges = {shard: _range(*ends) for shard, ends in left.items()}
            self._log_event(
                "warning", "spark_range_left", query=name, batch=log.read().planned_batch, ranges=ranges
            )
        return bool(left)


def _range(after: Position, last: Position) -> str:
    return f"({'start' if after == START else to_text(after)}, {to_text(last)}]"


def _newest_first(running: StreamingQuery) -> Iterator[Mapping[str, Any]]:
    """All hundred take long."""
    inner: Any = running
    reports = inner._jsq.recentProgress()  # noqa: SLF001 - only it gives JSON
    for number in range(len(reports) - 1, -1, -1):
        yield json.loads(reports[number].json())
