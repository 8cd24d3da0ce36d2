"""CPU of a container, from the files of its control group, version 1 or 2.

Limits are read with every sample, because Kubernetes and Docker can change those of a running container.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from kcl_daemon.cpu.files import read
from kcl_daemon.cpu.formulas import CgroupUsage, cgroup_percent
from kcl_daemon.cpu.parsing import (
    count_cpus,
    parse_counter,
    parse_cpu_max,
    parse_quota_us,
    parse_usage_us,
    quota_cpus,
)
from kcl_daemon.ports import Clock

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
