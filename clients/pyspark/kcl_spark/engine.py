"""The engine's process, one per host and application.

The first line of stdin has the options; its end, like SIGTERM, requests a stop. Exit codes: 0 stopped, 65 the
pipeline failed, 78 a person must fix something first, 1 an internal error.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kcl_landing.control import EmitEvent, Refused, begin, monotonic_s, take_over_stdout
from kcl_landing.positions import START, Position
from kcl_landing.relays import RelayConnection, RelayListener
from kcl_spark.alignment import Alignment, SkewLimits
from kcl_spark.api import NotAPipeline, load, writers_of
from kcl_spark.conversation import CheckpointTimings, CommitProgress, RelayConversation
from kcl_spark.figures import CaughtUp, figure_reporter
from kcl_spark.queries import PipelineFailed, Queries
from kcl_spark.segments import CLOSED_MS
from kcl_spark.session import (
    EngineOptions,
    NoJava,
    build_session,
    jvm_pid,
    parse,
    prepare_environment,
    stream_of,
)
from kcl_spark.spool import Spool
from kcl_spark.state import StateInUse, open_state, refuse_old_checkpoints
from kcl_spark.stores import FolderStore

EXIT_PIPELINE: Final = 65
EXIT_REFUSED: Final = 78
EXIT_ERROR: Final = 1
_TICK_S: Final = 0.03
_STOP_PATIENCE_S: Final = 10.0
_DISK_REPORT_S: Final = 30.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def run(options: EngineOptions, log_event: EmitEvent, stop: threading.Event) -> None:
    failures: list[Exception] = []

    def fail(error: Exception) -> None:
        if not stop.is_set():
            failures.append(error)
        stop.set()

    with open_state(options.state, options.application) as state:
        prepare_environment(options, log_event)
        spark = build_session(options)
        try:
            state.remember_jvm(jvm_pid(spark))
            log_event("info", "spark_started", master=options.master, ui=spark.sparkContext.uiWebUrl)
            spool = Spool(FolderStore(options.spool), max_bytes=options.spool_max_bytes)
            records = stream_of(spark, options)
            queries = Queries(
                spark, writers_of(load(options.pipeline), records, spark), state, options, log_event
            )
            queries.claim_outputs()
            progress = CommitProgress(spool, queries.logs())
            progress.poll()
            spool.set_horizon(CLOSED_MS)
            queries.start()
            try:
                _serve(
                    options,
                    log_event=log_event,
                    stop=stop,
                    fail=fail,
                    spool=spool,
                    progress=progress,
                    queries=queries,
                )
            finally:
                queries.stop(_STOP_PATIENCE_S)
                progress.poll()
        finally:
            spark.stop()
    if failures:
        raise failures[0]


def _serve(
    options: EngineOptions,
    *,
    log_event: EmitEvent,
    stop: threading.Event,
    fail: Callable[[Exception], None],
    spool: Spool,
    progress: CommitProgress,
    queries: Queries,
) -> None:
    pace = CheckpointTimings(options.checkpoint_interval_ms / 1000, options.drain_timeout_ms / 1000)

    def admit(shard_id: str, stored: Position) -> None:
        if stored != START and progress.is_new() and not options.state_reset:
            raise refuse_old_checkpoints(shard_id, stored, state=str(options.state))

    def converse(relay: RelayConnection) -> RelayConversation:
        return RelayConversation(
            relay,
            stream=options.stream,
            spool=spool,
            progress=progress,
            pace=pace,
            admit=admit,
            stopping=stop.is_set,
            log_event=log_event,
        )

    listener = RelayListener(Path(options.socket), converse, log_event, fail)
    log_event("info", "engine_ready", queries=sorted(queries.logs()), state=str(options.state))
    caught_up = CaughtUp(listener.states, progress.committed, spool.mark)
    alignment = Alignment(SkewLimits(options.max_skew_ms, options.max_skew_wait_ms / 1000), log_event)
    report_disk = disk_reporter(log_event)
    report_when_due = figure_reporter(listener.states, spool.figures, progress, queries.figures, log_event)
    try:
        while not stop.wait(_TICK_S):
            spool.flush_aged()
            report_disk(spool.trouble, monotonic_s())
            alignment.set_horizon(listener.states(), spool, monotonic_s())
            progress.poll()
            queries.check()
            report_when_due(monotonic_s())
            if options.is_available_now and caught_up.is_so(monotonic_s()):
                caught_up.report_once(log_event)
    finally:
        stop.set()
        listener.close()


def disk_reporter(log_event: EmitEvent) -> Callable[[OSError | None, float], None]:
    """Call the result as often as you like."""
    since_s: float | None = None
    next_s = 0.0

    def report(trouble: OSError | None, now_s: float) -> None:
        nonlocal since_s, next_s
        if trouble is None:
            if since_s is not None:
                log_event("info", "spark_disk_works_again", waited_s=round(now_s - since_s))
            since_s, next_s = None, 0.0
        elif now_s >= next_s:
            since_s, next_s = now_s if since_s is None else since_s, now_s + _DISK_REPORT_S
            log_event("warning", "spark_disk_full", what="spool", error=str(trouble))

    return report


def main() -> int:
    log_event = take_over_stdout()
    line, stop = begin()
    return exit_code(parse(line), log_event, stop)


def exit_code(options: EngineOptions, log_event: EmitEvent, stop: threading.Event) -> int:
    try:
        run(options, log_event, stop)
    except PipelineFailed as error:
        log_event(
            "error", "pipeline_failed", error=str(error), advice="put the pipeline right; nothing was skipped"
        )
        return EXIT_PIPELINE
    except (Refused, NotAPipeline, NoJava, StateInUse) as error:
        log_event("error", "engine_refused", error=str(error))
        return EXIT_REFUSED
    except OSError as error:
        if error.errno not in _FULL:
            raise
        log_event("warning", "spark_disk_full", what="engine", error=str(error))
        return EXIT_ERROR
    log_event("info", "engine_stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
