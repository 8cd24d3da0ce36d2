"""A worker whose start, life and stop a service manager is told of.

Owns when it is told; what is said is in `kcl_daemon.observe.service`.
"""

from __future__ import annotations

import anyio

from kcl_daemon.cli.supervise import Runnable
from kcl_daemon.observe.service import ServiceManager
from kcl_daemon.ports import Clock


class Told:
    """The same worker, with a word to the service manager about it.

    Args:
        worker: what is run.
        started: set when its work has begun.
        manager: who is told.
        clock: for the watchdog.
    """

    def __init__(
        self, worker: Runnable, *, started: anyio.Event, manager: ServiceManager, clock: Clock
    ) -> None:
        self._worker = worker
        self._started = started
        self._manager = manager
        self._clock = clock

    async def run(self) -> None:
        """Run the worker to its end; what it raises passes through in a group."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._manager.keep_told, self._clock)
            group.start_soon(self._tell_start)
            await self._worker.run()
            group.cancel_scope.cancel()

    def request_stop(self) -> None:
        """Ask it for the graceful stop."""
        self._manager.stopping()
        self._worker.request_stop()

    async def _tell_start(self) -> None:
        await self._started.wait()
        self._manager.ready()
        # At once: the period of the watchdog begins with the word above.
        self._manager.alive()
