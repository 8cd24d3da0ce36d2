"""Running a worker under signals: the first asks it to finish, the second ends it at once.

Owns the order of signals and the exit code that follows from it. Knows neither the worker's inside nor where signals
come from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from signal import Signals
from typing import Final, Protocol

import anyio

from kcl_daemon.ports import Log

EXIT_SIGNAL: Final = 128


class Runnable(Protocol):
    """What is run: a worker."""

    async def run(self) -> None:
        """Work until the graceful stop that was asked for is done."""
        ...

    def request_stop(self) -> None:
        """Ask for the graceful stop."""
        ...


async def supervise(
    open_worker: Callable[[], AbstractAsyncContextManager[Runnable]],
    signals: AsyncIterator[Signals],
    log: Log,
) -> int:
    """Open a worker and run it until it ends or a second signal comes; the exit code.

    Args:
        open_worker: makes the worker; a signal that comes meanwhile is kept for it.
        signals: as they come.
        log: for what the signals do.

    Returns:
        0 after a graceful stop, 128 and the signal's number after a second signal.

    Raises:
        ExceptionGroup: the worker or its opening failed.
    """
    stop = _Stop(log)
    async with anyio.create_task_group() as group:
        group.start_soon(stop.watch, signals, group.cancel_scope)
        async with open_worker() as worker:
            stop.begin(worker)
            await worker.run()
        group.cancel_scope.cancel()
    if stop.forced_by is None:
        log.info("daemon_stopped")
        return 0
    return EXIT_SIGNAL + stop.forced_by


class _Stop:
    """How far the stop has come.

    Attributes:
        forced_by: the second signal, if one came.
    """

    def __init__(self, log: Log) -> None:
        self.forced_by: Signals | None = None
        self._log = log
        self._asked = False
        self._worker: Runnable | None = None

    def begin(self, worker: Runnable) -> None:
        """The worker is there; a stop that was asked for before it was is passed on now."""
        self._worker = worker
        if self._asked:
            worker.request_stop()

    async def watch(self, signals: AsyncIterator[Signals], everything: anyio.CancelScope) -> None:
        """Act on signals for as long as there are any."""
        async for number in signals:
            if not self._asked:
                self._asked = True
                self._log.info("stop_requested", signal=number.name)
                if self._worker is not None:
                    self._worker.request_stop()
            elif self.forced_by is None:
                self.forced_by = number
                advice = "children are killed; records without a checkpoint will be read again"
                self._log.warning("stopped_at_once", signal=number.name, advice=advice)
                everything.cancel()
