"""CPU of a container on ECS, from the task metadata endpoint, version 4 (KCL: EcsCpuWorkerMetric)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from kcl_daemon.cpu.formulas import ecs_limit_cpus, ecs_percent
from kcl_daemon.cpu.metadata import HttpGet
from kcl_daemon.cpu.parsing import parse_ecs_share, parse_ecs_task, parse_ecs_usage
from kcl_daemon.errors import CpuUnreadable

T = TypeVar("T")


class EcsCpu:
    """The Cpu port for a container on ECS.

    The agent hands out two moments with each answer, so that figures do not depend on when they are asked for.

    Args:
        endpoint: what `ECS_CONTAINER_METADATA_URI_V4` says.
        get: how to ask it.
    """

    def __init__(self, endpoint: str, get: HttpGet) -> None:
        self.name: Final = "ecs"
        self._endpoint = endpoint.rstrip("/")
        self._get = get
        self._limit_cpus: float | None = None

    async def sample(self) -> float | None:
        """Percent of the container's part of its task's CPUs; None while the agent has fewer than two moments.

        The limits are asked for once: ECS cannot change those of a running task.
        """
        usage = await self._ask("/stats", parse_ecs_usage)
        if usage is None:
            return None
        if self._limit_cpus is None:
            self._limit_cpus = await self._ask_limit_cpus(usage.online_cpus)
        return ecs_percent(usage, limit_cpus=self._limit_cpus)

    async def _ask_limit_cpus(self, online_cpus: float) -> float:
        share = await self._ask("", parse_ecs_share)
        task = await self._ask("/task", parse_ecs_task)
        return ecs_limit_cpus(share=share, shares=task.shares, task_cpus=task.cpus, online_cpus=online_cpus)

    async def _ask(self, path: str, parse: Callable[[bytes], T]) -> T:
        # The endpoint itself is not named: its last part is all that protects it.
        try:
            return parse(await self._get(self._endpoint + path))
        except (CpuUnreadable, ValueError) as error:
            raise CpuUnreadable(f"ECS task metadata, {path or 'container'}: {error}") from error
