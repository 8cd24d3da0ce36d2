"""CPU figures: parse kernel files and ECS metadata, compute percentages, average them for reports.

The formulas are KCL's, oddities included, because leaders compare Java workers with ours. But from a first
reading Java makes 0 %, here it is None: a failed capture. Parsers raise ValueError.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from math import fsum
from typing import Final, cast

import orjson

_FULL: Final = 100.0
_NANOSECONDS: Final = 1_000_000_000  # in one second


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Times of all CPUs of a host since it started, in clock ticks."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int

    @property
    def total(self) -> int:
        return self.user + self.nice + self.system + self.idle + self.iowait


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """CPU time used, at a moment of the monotonic clock."""

    used_ns: int
    at_s: float


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


def host_percent(before: HostTimes, after: HostTimes) -> float | None:
    """Busy share of the host's time (KCL: LinuxCpuWorkerMetric). Waiting for the disk counts as busy.

    0 if nothing changed, or if `iowait` went back by more than the CPUs worked, which Linux allows. None if
    other counters went back: CPUs came or went.
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
    """Share of `limit_cpus`, at most 100 (KCL: Cgroupv1CpuWorkerMetric, Cgroupv2CpuWorkerMetric).

    Quotas apply per period, so a group may exceed its limit for a moment.
    """
    elapsed_ns = (after.at_s - before.at_s) * _NANOSECONDS
    used_ns = after.used_ns - before.used_ns
    if elapsed_ns <= 0 or used_ns < 0 or limit_cpus <= 0:
        return None
    return min(used_ns / elapsed_ns / limit_cpus * _FULL, _FULL)


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

    A task without a limit has the host's CPUs. A container without CPU units gets the whole task's; Java
    divides by its share of 0.
    """
    cpus = online_cpus if task_cpus is None else task_cpus
    return cpus * share / shares if 0 < share <= shares else cpus


# Fields of the `cpu` line that count; irq, softirq, steal and guests do not.
_HOST_FIELDS: Final = 5
_NO_QUOTA: Final = -1


@dataclass(frozen=True, slots=True)
class EcsTask:
    """`cpus` is None without a limit; `shares` are the CPU units of all containers."""

    cpus: float | None
    shares: float


def parse_host(text: str) -> HostTimes:
    """From the first line of `/proc/stat`."""
    name, *fields = text.partition("\n")[0].split() or [""]
    if name != "cpu" or len(fields) < _HOST_FIELDS:
        raise ValueError("the first line does not give the times of all CPUs")
    user, nice, system, idle, iowait = (_counter(field) for field in fields[:_HOST_FIELDS])
    return HostTimes(user=user, nice=nice, system=system, idle=idle, iowait=iowait)


def parse_counter(text: str) -> int:
    return _counter(text.strip())


def parse_usage_us(text: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return _counter(value.strip())
    raise ValueError("there is no usage_usec line")


def parse_cpu_max(text: str) -> float | None:
    """The quota of a `cpu.max` in CPUs; None without a quota (`max`)."""
    fields = text.split()
    if len(fields) != 2:
        raise ValueError(f"{text.strip()!r} is not a quota and a period")
    quota, period = fields
    return None if quota == "max" else _cpus(_counter(quota), _counter(period))


def parse_quota_us(text: str) -> int | None:
    """Microseconds of a `cpu.cfs_quota_us`; None without a quota (-1)."""
    value = text.strip()
    return None if value == str(_NO_QUOTA) else _counter(value)


def quota_cpus(quota_us: int | None, period_us: int) -> float | None:
    return None if quota_us is None else _cpus(quota_us, period_us)


def count_cpus(text: str) -> int:
    """The CPUs in a list such as `0-3,6` (KCL: Cgroup)."""
    return sum(_count_range(part) for part in text.strip().split(","))


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


def _counter(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a counter")
    return int(text)


def _cpus(quota_us: int, period_us: int) -> float:
    if quota_us == 0 or period_us == 0:
        raise ValueError(f"a quota of {quota_us} µs in {period_us} µs is no limit")
    return quota_us / period_us


def _count_range(text: str) -> int:
    first, dash, last = text.partition("-")
    count = _counter(last if dash else first) - _counter(first) + 1
    if count < 1:
        raise ValueError(f"{text!r} is not a range of CPUs")
    return count


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


FAILED: Final = Decimal(-1)
"""The average of a window with failures only; a worker that reports it last gets no leases."""

_SAMPLES_MAX: Final = 300
_AVERAGES_MOST: Final = 10
_MICRO: Final = Decimal("0.000001")


class CpuRecorder:
    """Averages the samples of each window (KCL: WorkerMetricStatsManager).

    Unlike in Java, an empty window adds no average, and there is none before the first figure: a new worker,
    or one that cannot read its CPU, counts as one without a metric and still gets leases.
    """

    def __init__(self, max_averages: int = _AVERAGES_MOST) -> None:
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._averages: deque[Decimal] = deque(maxlen=max_averages)
        self._failures = 0
        self._ever = False

    @property
    def averages(self) -> tuple[Decimal, ...]:
        return tuple(self._averages)

    def add(self, percent: float | None) -> None:
        """None or a value outside 0 to 100 is a failure. Only the last 300 samples count."""
        if percent is None or not 0 <= percent <= 100:
            self._failures += 1
        else:
            self._samples.append(percent)
            self._ever = True

    def drain(self) -> Decimal | None:
        """End the window: its average, half-up to 6 decimals, FAILED, or None if it has none."""
        average = self._average()
        self._samples.clear()
        self._failures = 0
        if average is not None:
            self._averages.append(average)
        return average

    def _average(self) -> Decimal | None:
        if self._samples:
            mean = fsum(self._samples) / len(self._samples)
            return Decimal(str(mean)).quantize(_MICRO, ROUND_HALF_UP)
        return FAILED if self._failures and self._ever else None
