"""`kcl-daemon run`: starts the worker, handles signals and sets the exit code.

The first signal asks for a graceful stop, the second ends the worker at once. Reports ready, stopping and
alive to systemd (`sd_notify`).
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol, Self

import anyio

from kcl_daemon import __version__
from kcl_daemon.app import Adapters, Application
from kcl_daemon.children.platform import keep_freed_memory
from kcl_daemon.children.start import find_program, options_of
from kcl_daemon.cli.common import load_file, refuse, report_failure, stream_text
from kcl_daemon.config.load import Loaded
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.properties import Notice
from kcl_daemon.config.settings import DEFAULTS, Settings
from kcl_daemon.errors import ChildStartFailed, ConfigurationError
from kcl_daemon.interrupt import exit_now
from kcl_daemon.ports import Clock, Log
from kcl_daemon.production import real_adapters
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import LogForm, LogLevels, Repeats, build_log
from kcl_daemon.text import counted, short_shards, shown

if TYPE_CHECKING:
    from kcl_daemon.children.room import ChildRoom
    from kcl_daemon.exporters import Telemetry
    from kcl_daemon.helper_process import Helper
    from kcl_daemon.telemetry.helper_views import LandingView, SparkView
    from kcl_daemon.telemetry.snapshot import Snapshot

_SOCKET: Final = "NOTIFY_SOCKET"
_PERIOD: Final = "WATCHDOG_USEC"
_WATCHED: Final = "WATCHDOG_PID"
_KINESIS_BEGAN_S: Final = 1_384_387_200
# A slow start asks for this much more time, repeatedly.
START_EXTENDED_S: Final = 60.0


class ServiceManager:
    """`address` is a datagram socket, `@` first for an abstract name; None: no service manager.

    It kills a process that is silent for `watchdog_s` (None: no watchdog).
    """

    def __init__(self, address: str | None, *, watchdog_s: float | None, log: Log) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._log = log
        self._is_ready = False

    @classmethod
    def of(cls, environment: MutableMapping[str, str], log: Log, pid: int | None = None) -> Self:
        """Removes the variables, so that children do not inherit them."""
        address = environment.pop(_SOCKET, None)
        period, watched = environment.pop(_PERIOD, ""), environment.pop(_WATCHED, "")
        if address is not None and not address.startswith(("/", "@")):
            log.warning("service_manager_not_notified", address=address, error="not a socket of this machine")
            address = None
        is_ours = watched in {"", str(os.getpid() if pid is None else pid)}
        watches = is_ours and period.isdecimal() and int(period) > 0
        return cls(address, watchdog_s=int(period) / 1_000_000 if watches else None, log=log)

    def ready(self) -> None:
        self._is_ready = True
        self._report("READY=1\nSTATUS=reading")

    def stopping(self) -> None:
        self._report("STOPPING=1\nSTATUS=stopping: children finish, leases are released")

    def alive(self) -> None:
        """Before `ready`, this asks for more start time."""
        self._report("WATCHDOG=1" if self._is_ready else f"EXTEND_TIMEOUT_USEC={START_EXTENDED_S * 1e6:.0f}")

    async def run_watchdog(self, clock: Clock) -> None:
        if self._address is None:
            await anyio.sleep_forever()
        while True:
            self.alive()
            pause_s = START_EXTENDED_S / 3
            if self._watchdog_s is not None:
                pause_s = min(pause_s, self._watchdog_s / 2)
            await clock.sleep(pause_s)

    def _report(self, text: str) -> None:
        """Never waits or raises."""
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)
                channel.sendto(text.encode("ascii"), address)
        except OSError as error:
            self._log.warning("service_manager_not_notified", address=self._address, error=str(error))


def open_log(
    levels: LogLevels | None = None, form: LogForm | Literal["auto"] = "auto", repeats: Repeats | None = None
) -> Log:
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    return build_log(
        level=levels or LogLevels(),
        form=form,
        stream=sys.stderr,
        clock=SystemClock(),
        journal_stream=os.environ.get("JOURNAL_STREAM", ""),
        repeats=repeats,
    )


EXIT_SIGNAL: Final = 128


class SupervisedWorker(Protocol):
    async def run(self) -> None: ...

    def request_stop(self) -> None: ...


async def supervise(
    open_worker: Callable[[], AbstractAsyncContextManager[SupervisedWorker]],
    signals: AsyncIterator[Signals],
    log: Log,
    beside: Callable[[], Coroutine[Any, Any, None]] = anyio.sleep_forever,
) -> int:
    """Run a worker until it ends or a second signal comes.

    A signal during `open_worker` is kept for the worker. Returns 0 after a graceful stop, 128 plus the
    signal number after a second signal.

    Raises:
        ExceptionGroup: the worker failed, or could not be opened.
    """
    taken: list[Signals] = []
    running: list[SupervisedWorker] = []

    async def watch() -> None:
        async for number in signals:
            taken.append(number)
            if len(taken) == 1:
                log.info("stop_requested", signal=number.name)
                for worker in running:
                    worker.request_stop()
            elif len(taken) == 2:
                advice = "children are killed; records without a checkpoint will be read again"
                log.warning("stopped_at_once", signal=number.name, advice=advice)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        group.start_soon(beside)
        async with open_worker() as worker:
            running.append(worker)
            if taken:
                worker.request_stop()
            await worker.run()
        group.cancel_scope.cancel()
    if len(taken) < 2:
        log.info("daemon_stopped")
        return 0
    return EXIT_SIGNAL + taken[1]


QUIET_STOP_S: Final = 1.0
"""A stop shorter than this is not logged."""


class ServiceManaged:
    def __init__(
        self,
        worker: SupervisedWorker,
        *,
        started: anyio.Event,
        manager: ServiceManager,
        clock: Clock,
        snapshot: Callable[[], Snapshot],
        grace_s: float,
        log: Log,
    ) -> None:
        self._worker = worker
        self._started = started
        self._manager = manager
        self._clock = clock
        self._snapshot = snapshot
        self._grace_s = grace_s
        self._log = log
        self._stop_asked = anyio.Event()

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._manager.run_watchdog, self._clock)
            group.start_soon(self._report_start)
            group.start_soon(self._report_wait)
            await self._worker.run()
            group.cancel_scope.cancel()

    def request_stop(self) -> None:
        self._manager.stopping()
        self._stop_asked.set()
        self._worker.request_stop()

    async def _report_start(self) -> None:
        await self._started.wait()
        self._manager.ready()
        # The watchdog's period starts with `ready`.
        self._manager.alive()

    async def _report_wait(self) -> None:
        await self._stop_asked.wait()
        await self._clock.sleep(QUIET_STOP_S)
        count, shards = 0, list[str]()
        for shard in self._snapshot().shards:
            if running := len(shard.children):
                count += running
                shards.append(shard.shard_id)
        if not shards:
            return
        children = f"{counted(count, 'child', 'children')} ({short_shards(shards)})"
        reason, advice = f"up to {self._grace_s:g} s for {children}", "press Ctrl-C again to end it now"
        self._log.info("stop_waits", reason=reason, shards=shards, advice=advice)


_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """`log_configuration` is a logback file and has no effect; `passed_over` are words only for Java.

    `facts` are logged with the start, `advice` where region or credentials are missing.
    """

    ignored_file: Path | None
    log_configuration: Path | None
    log_levels: LogLevels | None
    log_form: LogForm | Literal["auto"]
    passed_over: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    advice: str = ""


def run_daemon(file: Path, request: RunRequest) -> NoReturn:
    signals = quiet_start()
    try:
        loaded = load_file(file)
        loaded = check_program(loaded)
    except ConfigurationError as error:
        refuse(error)
    run_loaded(loaded, request, signals)


def quiet_start() -> tuple[Signals, ...]:
    """Those that stop the daemon. Until its loop listens they end it: process 1 of a container would ignore SIGTERM."""
    signals = _stop_signals()
    for number in signals:
        signal.signal(number, exit_now)
    return signals


def run_loaded(loaded: Loaded, request: RunRequest, signals: tuple[Signals, ...]) -> NoReturn:
    repeats = Repeats(SystemClock())
    log = open_log(request.log_levels, request.log_form, repeats)
    _report(with_doubtful_starts(loaded, SystemClock().wall_ms() / 1000), request, log)
    manager = ServiceManager.of(os.environ, log)
    try:
        code = anyio.run(_serve, loaded.settings, signals, manager, log, repeats)
    except Exception as error:  # noqa: BLE001 - the last place where an error can be reported
        code = report_failure(error, log, where_environment_lacks=request.advice)
    repeats.tell()
    if code > EXIT_SIGNAL:
        # A normal exit waits for threads in AWS SDK calls.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def check_program(loaded: Loaded) -> Loaded:
    """With one more warning, perhaps; ConfigurationError if the child's program, user or limits are unusable."""
    if loaded.settings.bundled is not None:
        from kcl_daemon.helper_process import helper_of  # few daemons have one

        helper_of(loaded.settings.bundled).relay()
    try:
        find_program(loaded.settings.child.command[0])
    except ChildStartFailed as error:
        raise loaded.about_executable(str(error)) from None
    try:
        options_of(loaded.settings.child)
    except ChildStartFailed as error:
        raise loaded.about_user(str(error)) from None
    return loaded if loaded.settings.concurrency.lanes.most == 1 else check_room(loaded, _child_room)


def with_doubtful_starts(loaded: Loaded, now_s: float) -> Loaded:
    streams, notices = loaded.settings.streams, list(loaded.warnings)
    given = [("initialPositionInStreamExtended", loaded.settings.initial_position)]
    given += [("streamArns", each.position) for each in streams.arns if each.position]
    given += [("streamNames", each.position) for each in streams.names if each.position]
    for name, position in given:
        start_s = position.timestamp_s
        if not start_s or _KINESIS_BEGAN_S <= start_s <= now_s:
            continue
        advice = "before there was Kinesis: all records are read; epoch seconds are meant"
        if start_s > now_s:
            advice = "in the future: nothing is read until then"
        facts = {"starts_at": datetime.fromtimestamp(start_s, UTC).isoformat(), "advice": advice}
        entry = loaded.entries[name]
        notices.append(Notice("first_position_doubtful", name, entry.line, facts, variable=entry.variable))
    return replace(loaded, warnings=tuple(notices))


def _child_room() -> ChildRoom | None:
    from kcl_daemon.children.room import child_room

    return child_room()


def check_room(loaded: Loaded, room_of_this_host: Callable[[], ChildRoom | None]) -> Loaded:
    from kcl_daemon.children.room import few_shards, too_little_room

    lanes, max_leases = loaded.settings.concurrency.lanes.most, loaded.settings.leases.max_leases_for_worker
    room = None if lanes == 1 else room_of_this_host()
    if room is None:
        return loaded
    if (reason := too_little_room(lanes, room)) is not None:
        raise loaded.about_lanes(reason)
    is_set = max_leases != DEFAULTS.leases.max_leases_for_worker
    facts = few_shards(lanes, room, max_leases if is_set else None)
    if facts is None:
        return loaded
    entry = loaded.entries["shardConcurrency"]
    notice = Notice("lanes_limited", "shardConcurrency", entry.line, facts, variable=entry.variable)
    return replace(loaded, warnings=(*loaded.warnings, notice))


async def _serve(
    settings: Settings, signals: tuple[Signals, ...], manager: ServiceManager, log: Log, repeats: Repeats
) -> int:
    @asynccontextmanager
    async def open_worker() -> AsyncGenerator[SupervisedWorker, None]:
        async with _helper(settings, log) as (mine, helper), real_adapters(mine, log) as adapters:

            def snapshot() -> Snapshot:
                return assembled.snapshots.now()  # made below, of what is counted

            telemetry = _telemetry(mine, adapters, snapshot)
            counted = adapters if telemetry is None else telemetry.adapters
            assembled: Application = Application(
                mine, counted, (lambda: None) if helper is None else helper.figures
            )
            if helper is not None:
                helper.log_to(counted.log)
                helper.learns_leases(assembled.leases_as_leader)
            worker = assembled.worker
            running: SupervisedWorker = ServiceManaged(
                worker,
                started=worker.started,
                manager=manager,
                clock=adapters.clock,
                snapshot=snapshot,
                grace_s=mine.child.shutdown_grace_ms / 1000,
                log=log,
            )
            gc.collect()
            keep_freed_memory()
            gc.freeze()  # modules and models of services stay: nobody looks through them for garbage again
            async with _status_page(mine, assembled, telemetry, log):
                for beside in (helper, telemetry):
                    running = running if beside is None else beside.background(running)
                yield running

    with anyio.open_signal_receiver(*signals) as received:
        return await supervise(open_worker, received, log, repeats.run)


def _telemetry(settings: Settings, adapters: Adapters, snapshot: Callable[[], Snapshot]) -> Telemetry | None:
    is_served, metrics = settings.admin.port is not None, settings.metrics
    if metrics.level is MetricsLevel.NONE and metrics.otlp_endpoint is None and not is_served:
        return None
    from kcl_daemon.exporters import telemetry_of

    return telemetry_of(settings, adapters, snapshot=snapshot, serves_metrics=is_served)


def _helper(
    settings: Settings, log: Log
) -> AbstractAsyncContextManager[tuple[Settings, Helper[LandingView | SparkView] | None]]:
    if settings.bundled is None:
        return nullcontext((settings, None))
    from kcl_daemon.helper_process import beside, helper_of

    return beside(helper_of(settings.bundled), settings, clock=SystemClock(), log=log)


def _status_page(
    settings: Settings, assembled: Application, telemetry: Telemetry | None, log: Log
) -> AbstractAsyncContextManager[None]:
    if settings.admin.port is None or telemetry is None:
        return nullcontext()
    # For a faster start without a status page.
    from kcl_daemon.admin.server import served

    metrics = telemetry.exposition().render
    return served(settings.admin, assembled.snapshots, clock=SystemClock(), log=log, metrics=metrics)


def _stop_signals() -> tuple[Signals, ...]:
    """SIGHUP is left out if `nohup` made the process ignore it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in _STOPPING if not (ignored and number is signal.SIGHUP))


def _report(loaded: Loaded, request: RunRequest, log: Log) -> None:
    settings = loaded.settings
    log.info(
        "daemon_starting",
        version=__version__,
        file=loaded.file,
        application_name=settings.application_name,
        stream=stream_text(settings),
        worker_id=settings.worker_id,
        **request.facts,
    )
    if request.log_configuration is not None:
        advice = "logback files have no effect; use --log-level, for example --log-level INFO,kcl_daemon.retrieval=DEBUG"
        log.warning("log_configuration_ignored", file=shown(str(request.log_configuration)), advice=advice)
    if request.passed_over:
        advice = "there is no JVM: class path, JVM options and system properties have no effect"
        log.info("java_arguments_ignored", words=[shown(word) for word in request.passed_over], advice=advice)
    if request.ignored_file is not None:
        log.warning("properties_file_ignored", file=str(request.ignored_file), used=loaded.file)
    for notice in loaded.warnings:
        report = log.info if notice.level == "info" else log.warning
        report(notice.event, **notice.fields(loaded.file))
