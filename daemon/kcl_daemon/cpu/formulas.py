"""How much of the CPU that a worker may use it used between two readings: values in, percent out, no I/O.

The formulas are KCL's, oddities included, because leaders compare the figures of Java and of our workers with each
other. One thing differs: from a first reading Java makes 0 %, which pulls the first average down; here there is no
figure then. None always means "these two readings say nothing", which is a failed capture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FULL: Final = 100.0
_NANOSECONDS: Final = 1_000_000_000  # in one second


@dataclass(frozen=True, slots=True)
class HostTimes:
    """What all CPUs of a host did since it started, in clock ticks."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.user + self.nice + self.system + self.idle + self.iowait


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """CPU time that a control group had used at a moment of the monotonic clock."""

    used_ns: int
    at_s: float


@dataclass(frozen=True, slots=True)
class EcsUsage:
    """CPU time of a container and of its whole host, at two moments that the ECS agent chose.

    Args:
        container: used by the container, in the unit of `system`.
        system: of all CPUs of the host, idle time included.
        container_before: as `container`, at the moment before; 0 where there was none.
        system_before: as `system`, at the moment before; 0 where there was none.
        online_cpus: CPUs of the host.
    """

    container: float
    system: float
    container_before: float
    system_before: float
    online_cpus: float


def host_percent(before: HostTimes, after: HostTimes) -> float | None:
    """Busy share of the host's time (KCL: LinuxCpuWorkerMetric). Waiting for the disk counts as busy.

    0 where the counters stand still, and where `iowait` went back by more than the CPUs worked, which Linux allows.
    Other counters go back only when CPUs come and go: then there is no figure.
    """
    if before == after:
        return 0.0
    total = after.total - before.total
    busy = total - (after.idle - before.idle)
    if busy < 0 and after.iowait < before.iowait:
        return 0.0
    if total <= 0 or not 0 <= busy <= total:
        return None
    return busy / total * _FULL


def cgroup_percent(before: CgroupUsage, after: CgroupUsage, *, limit_cpus: float) -> float | None:
    """Share of `limit_cpus` that the group used, at most 100 (KCL: Cgroupv1CpuWorkerMetric, Cgroupv2CpuWorkerMetric).

    A group may use more than its limit for a moment, because quotas are dealt out by periods.
    """
    elapsed_ns = (after.at_s - before.at_s) * _NANOSECONDS
    used_ns = after.used_ns - before.used_ns
    if elapsed_ns <= 0 or used_ns < 0 or limit_cpus <= 0:
        return None
    return min(used_ns / elapsed_ns / limit_cpus * _FULL, _FULL)


def ecs_percent(usage: EcsUsage, *, limit_cpus: float) -> float | None:
    """Share of `limit_cpus` that the container used, at most 100 (KCL: EcsCpuWorkerMetric).

    100 where the host's time stood still, as in Java. None for the container's first sample (0 in Java).
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
    """CPUs that a container may count on: its part of the task's, by CPU units (KCL: EcsCpuWorkerMetric).

    A task without a limit has the host's CPUs. A container without CPU units may use all that the others leave, so the
    whole task's CPUs are its limit; Java divides by its share of 0, and sees 100 % for ever or nothing at all.
    """
    cpus = online_cpus if task_cpus is None else task_cpus
    return cpus * share / shares if 0 < share <= shares else cpus
