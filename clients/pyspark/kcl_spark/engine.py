"""The engine: one process for each host and application, in which the pipeline's queries run.

Owns the order of its life: options, state, Java, session, pipeline, queries, relays; and its end. Started by the daemon,
which writes the options as the first line to its stdin and keeps that pipe open: its end, like SIGTERM, asks for a stop.
Exit codes: 0 stopped, 65 the pipeline failed, 78 something must be put right first, 1 a fault of ours.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_spark.alignment import Alignment, Limits
from kcl_spark.api import NotAPipeline, load, writers_of
from kcl_spark.clock import monotonic_s
from kcl_spark.control import ControlPipe, Tell, take_over_stdout
from kcl_spark.conversation import Conversation, Pace
from kcl_spark.figures import Figures
from kcl_spark.gate import open_gate
from kcl_spark.guards import refuse_old_checkpoints
from kcl_spark.java import NoJava
from kcl_spark.listener import Listener
from kcl_spark.options import EngineOptions, parse
from kcl_spark.positions import START, Position
from kcl_spark.progress import Progress
from kcl_spark.queries import PipelineFailed, Queries
from kcl_spark.refused import Refused
from kcl_spark.segments import CLOSED_MS
from kcl_spark.session import build_session, jvm_pid, prepare_environment, stream_of, web_address
from kcl_spark.spool import Spool
from kcl_spark.state import StateFolder, StateInUse
from kcl_spark.stores import open_store
from kcl_spark.watch import CaughtUp

EXIT_PIPELINE: Final = 65
EXIT_REFUSED: Final = 78
_TICK_S: Final = 0.03
_STOP_PATIENCE_S: Final = 10.0


@dataclass(eq=False, slots=True)
class _Stop:
    """Why the engine is to end.

    Attributes:
        asked: set once it is.
        error: what made it so; None: it was asked from outside, or is done.
    """

    asked: threading.Event
    error: Exception | None = None

    def because(self, error: Exception) -> None:
        """Something that cannot go on."""
        if not self.asked.is_set():
            self.error = error
        self.asked.set()


def run(options: EngineOptions, tell: Tell, stop: _Stop) -> None:
    """Run until the stop is asked for.

    Raises:
        Exception: whatever ended it.
    """
    with StateFolder(options.state, options.application) as state:
        prepare_environment(options, tell)
        spark = build_session(options)
        try:
            if (pid := jvm_pid(spark)) is not None:
                state.remember_jvm(pid)
            tell("info", "spark_started", master=options.remote or options.master, ui=web_address(spark))
            store = options.store(state.state_id)
            spool = Spool(open_store(store), max_bytes=options.spool_max_bytes)
            records = stream_of(spark, options, store)
            queries = Queries(spark, writers_of(load(options.pipeline), records, spark), state, options, tell)
            queries.claim_outputs()
            progress = Progress(spool, queries.logs())
            progress.look()
            spool.set_horizon(CLOSED_MS)
            queries.start()
            try:
                _serve(options, tell=tell, stop=stop, spool=spool, progress=progress, queries=queries)
            finally:
                queries.stop(_STOP_PATIENCE_S)
                progress.look()
        finally:
            spark.stop()
    if stop.error is not None:
        raise stop.error


def _serve(
    options: EngineOptions, *, tell: Tell, stop: _Stop, spool: Spool, progress: Progress, queries: Queries
) -> None:
    """Take relays in and keep everything going."""
    pace = Pace(options.checkpoint_interval_ms / 1000, options.drain_timeout_ms / 1000)

    def admit(shard_id: str, stored: Position) -> None:
        if stored != START and progress.is_new() and not options.state_reset:
            raise refuse_old_checkpoints(shard_id, stored, state=str(options.state))

    def converse(lines: Iterator[bytes], send: Callable[[bytes], None]) -> Conversation:
        return Conversation(
            lines=lines,
            send=send,
            stream=options.stream,
            spool=spool,
            progress=progress,
            pace=pace,
            admit=admit,
            stopping=stop.asked.is_set,
            tell=tell,
        )

    listener = Listener(Path(options.socket), converse, tell, stop.because)
    gate = open_gate(options, listener.serve, tell)
    tell("info", "engine_ready", queries=sorted(queries.logs()), state=str(options.state))
    caught_up = CaughtUp(listener.states, progress.committed, spool.mark)
    alignment = Alignment(
        Limits(options.max_skew_ms, options.max_skew_wait_ms / 1000, is_shared=bool(options.listen)), tell
    )
    figures = Figures(listener.states, spool.figures, progress, queries.figures, tell)
    try:
        while not stop.asked.wait(_TICK_S):
            spool.flush_aged()
            alignment.set_horizon(listener.states(), spool, monotonic_s())
            progress.look()
            queries.check()
            figures.tell_when_due(monotonic_s())
            if options.is_available_now and caught_up.is_so(monotonic_s()):
                caught_up.tell_once(tell)
    finally:
        stop.asked.set()
        if gate is not None:
            gate.close()
        listener.close()


def main() -> int:
    """Serve as the daemon's engine; the exit code."""
    tell = take_over_stdout()
    stop = _Stop(threading.Event())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.asked.set())
    options = parse(sys.stdin.buffer.readline())
    threading.Thread(target=_until_daemon_goes, args=(stop,), daemon=True).start()
    return _guarded(options, tell, stop)


def _guarded(options: EngineOptions, tell: ControlPipe, stop: _Stop) -> int:
    try:
        run(options, tell, stop)
    except PipelineFailed as error:
        tell(
            "error", "pipeline_failed", error=str(error), advice="put the pipeline right; nothing was skipped"
        )
        return EXIT_PIPELINE
    except (Refused, NotAPipeline, NoJava, StateInUse) as error:
        tell("error", "engine_refused", error=str(error))
        return EXIT_REFUSED
    tell("info", "engine_stopped")
    return 0


def _until_daemon_goes(stop: _Stop) -> None:
    while os.read(0, 4096):  # not by sys.stdin: its lock would be in the way at the end
        pass
    stop.asked.set()


if __name__ == "__main__":
    sys.exit(main())
