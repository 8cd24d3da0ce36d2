"""The CPU of an ECS task: from the metadata endpoint of its container."""

from __future__ import annotations

import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final, TypeVar, cast
from urllib.error import HTTPError, URLError

import anyio.to_thread
import orjson

from kcl_daemon.errors import CpuUnreadable

T = TypeVar("T")

_FULL: Final = 100.0
_NANOSECONDS_PER_S: Final = 1_000_000_000
_TIMEOUT_S: Final = 2.0
# The metadata of a task with many containers takes some 100 KB.
_BODY_BYTES_MAX: Final = 4 * 1024 * 1024

HttpGet = Callable[[str], Awaitable[bytes]]
"""The body at a URL; raises CpuUnreadable unless the status is 200."""


@dataclass(frozen=True, slots=True)
class EcsUsage:
    """CPU time of a container and of its host (`system`, idle included), at two moments.

    The `_before` fields are 0 if there was no earlier moment.
    """

    container: float
    system: float
    container_before: float
    system_before: float
    online_cpus: float


def ecs_percent(usage: EcsUsage, *, limit_cpus: float) -> float | None:
    """Share of `limit_cpus`, at most 100 (KCL: EcsCpuWorkerMetric).

    100 if the host's time did not change, as in Java. None for the first sample (0 in Java).
    """
    if usage.container_before == 0 and usage.system_before == 0:
        return None
    container = usage.container - usage.container_before
    system = usage.system - usage.system_before
    if container < 0 or system < 0 or limit_cpus <= 0:
        return None
    if system == 0:
        return _FULL
    return min(container / system * usage.online_cpus / limit_cpus * _FULL, _FULL)


def ecs_limit_cpus(*, share: float, shares: float, task_cpus: float | None, online_cpus: float) -> float:
    """The container's part of the task's CPUs, by CPU units (KCL: EcsCpuWorkerMetric).

    A task without a limit has the host's CPUs. A container without CPU units gets the whole task's; Java divides by
    its share of 0.
    """
    cpus = online_cpus if task_cpus is None else task_cpus
    return cpus * share / shares if 0 < share <= shares else cpus


@dataclass(frozen=True, slots=True)
class EcsTask:
    """`cpus` is None without a limit; `shares` are the CPU units of all containers."""

    cpus: float | None
    shares: float


def parse_ecs_usage(body: bytes) -> EcsUsage | None:
    """The figures of `/stats`, None for `null`; missing earlier counters read as 0."""
    document: object = orjson.loads(body)
    if document is None:
        return None
    return EcsUsage(
        container=_required(document, "cpu_stats", "cpu_usage", "total_usage"),
        system=_required(document, "cpu_stats", "system_cpu_usage"),
        container_before=_number(document, "precpu_stats", "cpu_usage", "total_usage") or 0,
        system_before=_number(document, "precpu_stats", "system_cpu_usage") or 0,
        online_cpus=_required(document, "cpu_stats", "online_cpus"),
    )


def parse_ecs_share(body: bytes) -> float:
    return _number(orjson.loads(body), "Limits", "CPU") or 0


def parse_ecs_task(body: bytes) -> EcsTask:
    document: object = orjson.loads(body)
    containers = _member(document, "Containers")
    if not isinstance(containers, list):
        raise ValueError("Containers is missing or no list")  # noqa: TRY004 - one error type for all malformed text
    shares = (_number(container, "Limits", "CPU") or 0 for container in cast("list[object]", containers))
    return EcsTask(cpus=_number(document, "Limits", "CPU"), shares=sum(shares))


def _member(document: object, name: str) -> object:
    return cast("dict[str, object]", document).get(name) if isinstance(document, dict) else None


def _number(document: object, *path: str) -> float | None:
    for name in path:
        document = _member(document, name)
    return None if isinstance(document, bool) or not isinstance(document, int | float) else document


def _required(document: object, *path: str) -> float:
    number = _number(document, *path)
    if number is None:
        raise ValueError(f"{'.'.join(path)} is missing or no number")
    return number


def metadata_client(*, timeout_s: float = _TIMEOUT_S) -> HttpGet:
    """Gets documents from the metadata endpoint, one at a time, with urllib in a thread.

    It follows no proxy or redirect: the answer must come from this host. A cancelled request keeps its thread until the timeout; the
    next one waits for it.
    """
    one = anyio.CapacityLimiter(1)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)

    def get(url: str) -> bytes:
        try:
            with opener.open(url, timeout=timeout_s) as answer:
                body: bytes = answer.read(_BODY_BYTES_MAX)
                return body
        except HTTPError as error:
            error.close()
            raise CpuUnreadable(f"status {error.code}") from error
        except URLError as error:
            raise CpuUnreadable(str(error.reason)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise CpuUnreadable(str(error) or type(error).__name__) from error

    async def get_in_thread(url: str) -> bytes:
        return await anyio.to_thread.run_sync(get, url, limiter=one, abandon_on_cancel=True)

    return get_in_thread


class EcsCpu:
    """A container on ECS (KCL: EcsCpuWorkerMetric). `endpoint` is `ECS_CONTAINER_METADATA_URI_V4`."""

    def __init__(self, endpoint: str, get: HttpGet) -> None:
        self.name: Final = "ecs"
        self._endpoint = endpoint.rstrip("/")
        self._get = get
        self._limit_cpus: float | None = None

    async def sample(self) -> float | None:
        """Percent of the container's part of its task's CPUs; None until the agent has two samples.

        The limits are read once: ECS cannot change those of a running task.
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
        # Never name the endpoint: the last part of its URL is a secret.
        try:
            return parse(await self._get(self._endpoint + path))
        except (CpuUnreadable, ValueError) as error:
            raise CpuUnreadable(f"ECS task metadata, {path or 'container'}: {error}") from error
