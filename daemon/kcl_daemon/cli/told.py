"""A worker whose start, life and stop a service manager and the log are told of.

Owns when they are told; what is said to a service manager is in `kcl_daemon.observe.service`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon.cli.supervise import Runnable
from kcl_daemon.observe.service import ServiceManager
from kcl_daemon.observe.snapshot import SnapshotSource
from kcl_daemon.observe.words import counted, short_shards
from kcl_daemon.ports import Clock, Log

QUIET_STOP_S: Final = 1.0
"""A stop that takes no longer says nothing of what it waits for."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a stop that takes long is told by.

    Args:
        source: tells which children there still are.
        grace_s: how long they are given.
        log: where it is told.
    """

    source: SnapshotSource
    grace_s: float
    log: Log


class Told:
    """The same worker, with a word to the service manager about it, and one to the log when its stop waits.

    Args:
        worker: what is run.
        started: set when its work has begun.
        manager: who is told.
        clock: for the watchdog.
        waiting: what a stop that takes long is told by.
    """

    def __init__(
        self,
        worker: Runnable,
        *,
        started: anyio.Event,
        manager: ServiceManager,
        clock: Clock,
        waiting: Waiting,
    ) -> None:
        self._worker = worker
        self._started = started
        self._manager = manager
        self._clock = clock
        self._waiting = waiting
        self._stop_asked = anyio.Event()

    async def run(self) -> None:
        """Run the worker to its end; what it raises passes through in a group."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._manager.keep_told, self._clock)
            group.start_soon(self._tell_start)
            group.start_soon(self._tell_wait)
            await self._worker.run()
            group.cancel_scope.cancel()

    def request_stop(self) -> None:
        """Ask it for the graceful stop."""
        self._manager.stopping()
        self._stop_asked.set()
        self._worker.request_stop()

    async def _tell_start(self) -> None:
        await self._started.wait()
        self._manager.ready()
        # At once: the period of the watchdog begins with the word above.
        self._manager.alive()

    async def _tell_wait(self) -> None:
        await self._stop_asked.wait()
        await self._clock.sleep(QUIET_STOP_S)
        waiting = self._waiting
        shards = [each.shard_id for each in waiting.source.now().shards if each.child is not None]
        if not shards:
            return
        reason = f"up to {waiting.grace_s:g} s for {counted(len(shards), 'child', 'children')} ({short_shards(shards)})"
        waiting.log.info(
            "stop_waits", reason=reason, shards=shards, advice="press Ctrl-C again to end it now"
        )
