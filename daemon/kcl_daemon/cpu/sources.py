"""Which CPU figure a worker goes by, looked up once at start: by files and environment, without any network.

The order is KCL's (EcsResource, EksResource, Ec2Resource), with three differences. Java asks the instance metadata
service whether it is on EC2; here every Linux host has the figure of `/proc/stat`, which is the same formula, and a
start does not wait for a network that may not be there. A container outside ECS and Kubernetes, or in a pod without a
service account, goes by its quota where it has one; Java takes the whole host's figure or none. And where ECS offers
version 3 of its metadata only, from which Java makes nothing, the container is treated like any other.

Reading the small files in which Linux tells its figures. Knows no format.

Such a file is made up in memory while it is read, in microseconds. A worker thread would cost more than the read, so
the event loop reads them itself.

CPU of a container, from the files of its control group, version 1 or 2.

Limits are read with every sample, because Kubernetes and Docker can change those of a running container.

CPU of a whole host, from `/proc/stat`: for workers that have a machine to themselves (KCL: LinuxCpuWorkerMetric).

Asking the metadata endpoint of the host: plain HTTP to an address on the same machine. Knows no document.

urllib in a thread, because the AWS library does not speak to this endpoint and one short request a second is not worth
an HTTP client of its own. Proxies and redirects are never followed: the answer must come from this host.

CPU of a container on ECS, from the task metadata endpoint, version 4 (KCL: EcsCpuWorkerMetric).
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.error import HTTPError, URLError

import anyio
import anyio.to_thread

from kcl_daemon.cpu.figures import (
    CgroupUsage,
    HostTimes,
    cgroup_percent,
    count_cpus,
    ecs_limit_cpus,
    ecs_percent,
    host_percent,
    parse_counter,
    parse_cpu_max,
    parse_ecs_share,
    parse_ecs_task,
    parse_ecs_usage,
    parse_host,
    parse_quota_us,
    parse_usage_us,
    quota_cpus,
)
from kcl_daemon.errors import CpuUnreadable
from kcl_daemon.ports import Clock, Cpu

# /proc/stat has a line for each CPU and a number for each interrupt; all that counts is at the start.
_READ_BYTES: Final = 4096


def read(path: Path, parse: Callable[[str], T]) -> T:
    """What `parse` makes of the first 4 KiB; CpuUnreadable, with the path, for a file that is missing or malformed."""
    try:
        return parse(_start(path).decode("ascii"))
    except OSError as error:
        raise CpuUnreadable(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CpuUnreadable(f"{path}: {error}") from error


def _start(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)


_NANOSECONDS: Final = 1_000  # in one microsecond


class Cgroup(Protocol):
    """The files of one version. Every method raises CpuUnreadable for a file that is missing or malformed."""

    @property
    def name(self) -> str:
        """The version, for the log."""
        ...

    def used_ns(self) -> int:
        """CPU time used so far."""
        ...

    def quota_cpus(self) -> float | None:
        """CPUs that the quota amounts to; None without a quota."""
        ...

    def effective_cpus(self) -> int:
        """How many CPUs the group may run on."""
        ...


class CgroupV1:
    """Version 1: a folder for each controller (KCL: Cgroupv1CpuWorkerMetric).

    Args:
        folder: where the control groups are mounted, `/sys/fs/cgroup`.
    """

    def __init__(self, folder: Path) -> None:
        self.name: Final = "cgroup-v1"
        self._cpu = folder / "cpu"
        # Both controllers are usually mounted as one, `cpu,cpuacct`; where they are not, `cpu` has no usage.
        together = self._cpu / "cpuacct.usage"
        self._usage = together if together.exists() else folder / "cpuacct" / "cpuacct.usage"
        self._set = folder / "cpuset" / "cpuset.effective_cpus"

    def used_ns(self) -> int:
        """From `cpuacct.usage`."""
        return read(self._usage, parse_counter)

    def quota_cpus(self) -> float | None:
        """From `cpu.cfs_quota_us` and `cpu.cfs_period_us`."""
        quota_us = read(self._cpu / "cpu.cfs_quota_us", parse_quota_us)
        return read(self._cpu / "cpu.cfs_period_us", lambda text: quota_cpus(quota_us, parse_counter(text)))

    def effective_cpus(self) -> int:
        """From `cpuset.effective_cpus`."""
        return read(self._set, count_cpus)


class CgroupV2:
    """Version 2: one folder (KCL: Cgroupv2CpuWorkerMetric).

    Args:
        folder: where the control groups are mounted, `/sys/fs/cgroup`; a container sees its own group there.
    """

    def __init__(self, folder: Path) -> None:
        self.name: Final = "cgroup-v2"
        self._stat = folder / "cpu.stat"
        self._max = folder / "cpu.max"
        self._set = folder / "cpuset.cpus.effective"

    def used_ns(self) -> int:
        """From `cpu.stat`."""
        return read(self._stat, parse_usage_us) * _NANOSECONDS

    def quota_cpus(self) -> float | None:
        """From `cpu.max`."""
        return read(self._max, parse_cpu_max)

    def effective_cpus(self) -> int:
        """From `cpuset.cpus.effective`."""
        return read(self._set, count_cpus)


class CgroupCpu:
    """The Cpu port for a container."""

    def __init__(self, cgroup: Cgroup, clock: Clock) -> None:
        self._cgroup = cgroup
        self._clock = clock
        self._before: CgroupUsage | None = None

    @property
    def name(self) -> str:
        """Which version."""
        return self._cgroup.name

    async def sample(self) -> float | None:
        """Percent of the container's limit since the last call; without a quota, of all CPUs it may run on."""
        after = CgroupUsage(used_ns=self._cgroup.used_ns(), at_s=self._clock.monotonic())
        before, self._before = self._before, after
        limit_cpus = self._cgroup.quota_cpus() or self._cgroup.effective_cpus()
        return None if before is None else cgroup_percent(before, after, limit_cpus=limit_cpus)


class HostCpu:
    """The Cpu port for a host.

    Args:
        proc: where `/proc` is.
    """

    def __init__(self, proc: Path) -> None:
        self.name: Final = "host"
        self._stat = proc / "stat"
        self._before: HostTimes | None = None

    async def sample(self) -> float | None:
        """Busy percent of all CPUs since the last call that could read the file."""
        before, after = self._before, read(self._stat, parse_host)
        self._before = after
        return None if before is None else host_percent(before, after)


HttpGet = Callable[[str], Awaitable[bytes]]
"""The body at a URL; raises CpuUnreadable for everything but an answer of 200."""

_TIMEOUT_S: Final = 2.0
# The metadata of a task with many containers is some 100 KB.
_BODY_BYTES_MAX: Final = 4 * 1024 * 1024


class MetadataClient:
    """Answers `HttpGet`, one request at a time.

    A cancelled request leaves its thread behind until the socket's time-out; the next request waits for it, so that
    there is never more than one.
    """

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._one = anyio.CapacityLimiter(1)
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
        ):
            self._opener.add_handler(handler)

    async def get(self, url: str) -> bytes:
        """The body at a URL."""
        return await anyio.to_thread.run_sync(self._get, url, limiter=self._one, abandon_on_cancel=True)

    def _get(self, url: str) -> bytes:
        try:
            with self._opener.open(url, timeout=self._timeout_s) as answer:
                body: bytes = answer.read(_BODY_BYTES_MAX)
                return body
        except HTTPError as error:
            error.close()
            raise CpuUnreadable(f"status {error.code}") from error
        except URLError as error:
            raise CpuUnreadable(str(error.reason)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise CpuUnreadable(str(error) or type(error).__name__) from error


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


_ECS_ENDPOINT: Final = "ECS_CONTAINER_METADATA_URI_V4"
_KUBERNETES_TOKEN: Final = Path("var/run/secrets/kubernetes.io/serviceaccount/token")
_CGROUPS: Final = Path("sys/fs/cgroup")
_PROC: Final = Path("proc")


@dataclass(frozen=True, slots=True)
class CpuChoice:
    """The figure that was chosen, None where this system has none; and why, for the log.

    `host` names the running system whose CPU it is, where it is that of all processes; None: it is that of this worker's
    container, or the name cannot be read.
    """

    cpu: Cpu | None
    why: str
    host: str | None = None


def choose_cpu(*, root: Path, environment: Mapping[str, str], get: HttpGet, clock: Clock) -> CpuChoice:
    """The first that fits: ECS, Kubernetes, a container with a quota, a Linux host. Never raises.

    Args:
        root: where the file system begins, `/`.
        environment: variables of this process.
        get: how to ask the ECS task metadata.
        clock: for figures that are used time by elapsed time.
    """
    if not (root / _PROC).is_dir():
        return CpuChoice(None, "no /proc: not Linux")
    if endpoint := environment.get(_ECS_ENDPOINT):
        return _ecs(endpoint, get)
    return _container(root, clock) or _host(root / _PROC)


def _container(root: Path, clock: Clock) -> CpuChoice | None:
    cgroup = _cgroup(root / _CGROUPS)
    if (root / _KUBERNETES_TOKEN).is_file():
        if cgroup is None:
            return CpuChoice(None, "a Kubernetes pod that sees no control groups")
        return CpuChoice(CgroupCpu(cgroup, clock), "a Kubernetes pod")
    if cgroup is not None and _has_quota(cgroup):
        return CpuChoice(CgroupCpu(cgroup, clock), "a container with a CPU quota")
    return None


def _host(proc: Path) -> CpuChoice:
    if (proc / "stat").is_file():
        return CpuChoice(HostCpu(proc), "a Linux host", _boot_id(proc))
    return CpuChoice(None, "no /proc/stat")


def _boot_id(proc: Path) -> str | None:
    """The same for all workers on a host, in containers too, and for no other host."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _ecs(endpoint: str, get: HttpGet) -> CpuChoice:
    if not endpoint.startswith("http://"):
        return CpuChoice(None, f"{_ECS_ENDPOINT} is no http:// address")
    return CpuChoice(EcsCpu(endpoint, get), "an ECS task")


def _cgroup(folder: Path) -> Cgroup | None:
    if (folder / "cgroup.controllers").is_file():
        return CgroupV2(folder)
    if (folder / "memory").is_dir() or (folder / "cpu").is_dir():
        return CgroupV1(folder)
    return None


def _has_quota(cgroup: Cgroup) -> bool:
    """A host's own root group has no such file at all."""
    try:
        return cgroup.quota_cpus() is not None
    except CpuUnreadable:
        return False
