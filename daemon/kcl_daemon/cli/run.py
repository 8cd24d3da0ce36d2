"""`kcl-daemon run`: from the command line to a running worker, and from its end to an exit code.

Owns the order of the start: file, program, log, then the outside world. Knows nothing of leases, shards or records.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import anyio
import click

from kcl_daemon import __version__
from kcl_daemon.app_metrics import Telemetry, telemetry_of
from kcl_daemon.app_observe import assemble
from kcl_daemon.children.options import options_of
from kcl_daemon.children.start import find_program
from kcl_daemon.cli.failures import EXIT_CONFIGURATION, report_failure
from kcl_daemon.cli.run_log import LogRequest, open_log
from kcl_daemon.cli.streams import stream_text
from kcl_daemon.cli.supervise import EXIT_SIGNAL, Runnable, supervise
from kcl_daemon.cli.told import Told, Waiting
from kcl_daemon.config.load import Loaded, load
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ChildStartFailed, ConfigurationError
from kcl_daemon.interrupt import leave_at_once
from kcl_daemon.observe.redact import shown
from kcl_daemon.observe.service import ServiceManager
from kcl_daemon.observe.snapshot import SnapshotSource
from kcl_daemon.ports import Log
from kcl_daemon.production import real_adapters
from kcl_daemon.spark.supervisor import spark_engine
from kcl_daemon.system import SystemClock, SystemRandomness

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for.

    Args:
        file: the properties file.
        ignored_file: a second file that was named and is not read.
        log: levels and form of the log.
        passed_over: words of the command line that mean something to Java only.
    """

    file: Path
    ignored_file: Path | None
    log: LogRequest
    passed_over: tuple[str, ...] = ()


def run_daemon(request: Request) -> NoReturn:
    """Run a daemon to its end and leave the process with the exit code that the help tells."""
    signals = _signals_to_heed()
    for number in signals:
        # Until the loop listens. As process 1 of a container there is no default action: SIGTERM would be lost.
        signal.signal(number, leave_at_once)
    try:
        loaded = load(
            request.file, randomness=SystemRandomness(), hostname=socket.gethostname(), environment=os.environ
        )
        check_program(loaded)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            click.echo(line, err=True)
        sys.exit(EXIT_CONFIGURATION)
    log = open_log(request.log)
    _tell(loaded, request, log)
    manager = ServiceManager.of(os.environ, log)
    code = _run(loaded.settings, signals, manager, log)
    if code > EXIT_SIGNAL:
        # At once: the interpreter would still wait for threads that are inside calls of the AWS SDK.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def check_program(loaded: Loaded) -> None:
    """Make sure that there is a program to run, and that children can run as the settings say.

    Raises:
        ConfigurationError: there is none, with where it was looked for; or no such user or limit.
    """
    try:
        find_program(loaded.settings.child.command[0])
    except ChildStartFailed as error:
        raise loaded.about_executable(str(error)) from None
    try:
        options_of(loaded.settings.child)
    except ChildStartFailed as error:
        raise loaded.about_user(str(error)) from None


def _run(settings: Settings, signals: tuple[signal.Signals, ...], manager: ServiceManager, log: Log) -> int:
    try:
        return anyio.run(_serve, settings, signals, manager, log)
    except Exception as error:  # noqa: BLE001 - the last place where an error can be reported
        return report_failure(error, log)


async def _serve(
    settings: Settings, signals: tuple[signal.Signals, ...], manager: ServiceManager, log: Log
) -> int:
    @asynccontextmanager
    async def open_worker() -> AsyncGenerator[Runnable, None]:
        async with (
            spark_engine(settings, clock=SystemClock(), log=log) as (mine, engine),
            real_adapters(mine, log) as adapters,
        ):
            telemetry = telemetry_of(mine, adapters, serves_text=mine.admin.port is not None)
            engine.tell_by(telemetry.adapters.log)
            assembled = assemble(mine, telemetry.adapters, engine.figures)
            telemetry.snapshot = assembled.snapshots.now
            worker = assembled.worker
            waiting = Waiting(assembled.snapshots, mine.child.shutdown_grace_ms / 1000, log)
            told = Told(
                worker, started=worker.started, manager=manager, clock=adapters.clock, waiting=waiting
            )
            async with _status_page(mine, assembled.snapshots, telemetry, log):
                yield telemetry.beside(engine.beside(told))

    with anyio.open_signal_receiver(*signals) as received:
        return await supervise(open_worker, received, log)


def _status_page(
    settings: Settings, source: SnapshotSource, telemetry: Telemetry, log: Log
) -> AbstractAsyncContextManager[None]:
    """The status page while the worker is there, where one is asked for."""
    if settings.admin.port is None:
        return nullcontext()
    # Here, so that a daemon without it starts as fast as before and is no larger.
    from kcl_daemon.admin.serve import served  # noqa: PLC0415

    return served(settings.admin, source, clock=SystemClock(), log=log, metrics=telemetry.exposition())


def _signals_to_heed() -> tuple[signal.Signals, ...]:
    """All that ask for a stop, but SIGHUP where it was ignored from outside (`nohup`)."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in _STOPPING if not (ignored and number is signal.SIGHUP))


def _tell(loaded: Loaded, request: Request, log: Log) -> None:
    """Log what was started, and every notice about it."""
    settings = loaded.settings
    log.info(
        "daemon_starting",
        version=__version__,
        file=loaded.file,
        application_name=settings.application_name,
        stream=stream_text(settings),
        worker_id=settings.worker_id,
    )
    if request.log.configuration is not None:
        advice = "logback files have no effect; use --log-level, for example --log-level INFO,kcl_daemon.retrieval=DEBUG"
        log.warning("log_configuration_ignored", file=shown(str(request.log.configuration)), advice=advice)
    if request.passed_over:
        advice = "there is no JVM: class path, JVM options and system properties have no effect"
        log.info("java_words_passed_over", words=[shown(word) for word in request.passed_over], advice=advice)
    if request.ignored_file is not None:
        log.warning("properties_file_ignored", file=str(request.ignored_file), used=loaded.file)
    for notice in loaded.warnings:
        tell = log.info if notice.level == "info" else log.warning
        tell(notice.event, **notice.fields(loaded.file))
