"""The life of one simulated worker as the operating system and the network see it.

Owns whether the process runs, is stopped (SIGSTOP) or dead (SIGKILL), and which services it can reach. Knows nothing
of what the worker does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import anyio.lowlevel

from tests.simulator.loop import Lane, now


class WorkerKilled(BaseException):
    """Raised in the remains of a killed worker when they try to reach the world.

    A BaseException, so that production code cannot take it for an error that it may handle.
    """


class Service(StrEnum):
    """What a worker can be cut off from."""

    DYNAMODB = "dynamodb"
    KINESIS = "kinesis"


class Life:
    """One process: alive, stopped or dead. After `kill` nothing it does reaches the world any more."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.limiter = Lane(worker_id)
        self.is_dead = False
        self.died_s: float | None = None
        self._cut_off: list[Service] = []
        self._on_death: list[Callable[[], object]] = []

    @property
    def is_paused(self) -> bool:
        """Whether it is stopped and may go on later."""
        return self.limiter.held

    def ensure_alive(self) -> None:
        """WorkerKilled in the remains of a dead process; every port call asks this."""
        if self.is_dead:
            raise WorkerKilled(self.worker_id)

    async def go_on(self) -> None:
        """As `ensure_alive`; one that was stopped in the middle of a step (`points`) waits here until it may go on."""
        self.ensure_alive()
        if self.limiter.held:
            await anyio.lowlevel.checkpoint()
            self.ensure_alive()

    def on_death(self, callback: Callable[[], object]) -> None:
        """Call this when it is killed: its children die, its task is thrown away."""
        self._on_death.append(callback)

    def pause(self) -> None:
        """SIGSTOP. Requests that are on their way still arrive; their answers wait."""
        if not self.is_dead:
            self.limiter.hold()

    def resume(self) -> None:
        """SIGCONT."""
        if self.limiter.held:
            self.limiter.release()

    def kill(self) -> None:
        """SIGKILL. Requests that are on their way still arrive."""
        if self.is_dead:
            return
        self.is_dead, self.died_s = True, now()
        self.resume()
        for callback in self._on_death:
            callback()

    def cut_off(self, service: Service) -> None:
        """Let nothing through to this service any more."""
        if service not in self._cut_off:
            self._cut_off.append(service)

    def reconnect(self) -> None:
        """Let everything through again."""
        self._cut_off.clear()

    def reaches(self, service: Service) -> bool:
        """Whether requests to this service arrive."""
        return service not in self._cut_off
