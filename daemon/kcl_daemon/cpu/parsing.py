"""What the kernel's files and the ECS task metadata say, as values: texts in, values out, no I/O.

Owns the formats only, not what the figures mean for a worker. Every function raises ValueError, with what was wrong,
for a text that it cannot read; the caller knows the name of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import orjson

from kcl_daemon.cpu.formulas import EcsUsage, HostTimes

# The fields of the `cpu` line that count; irq, softirq, steal and the guests follow and do not.
_HOST_FIELDS: Final = 5
_NO_QUOTA: Final = -1


@dataclass(frozen=True, slots=True)
class EcsTask:
    """CPU limits of an ECS task.

    Args:
        cpus: of the whole task; None where the task has no limit.
        shares: CPU units of all its containers together.
    """

    cpus: float | None
    shares: float


def parse_host(text: str) -> HostTimes:
    """The times of all CPUs together, from the first line of `/proc/stat`."""
    name, *fields = text.partition("\n")[0].split() or [""]
    if name != "cpu" or len(fields) < _HOST_FIELDS:
        raise ValueError("the first line does not give the times of all CPUs")
    user, nice, system, idle, iowait = (_counter(field) for field in fields[:_HOST_FIELDS])
    return HostTimes(user=user, nice=nice, system=system, idle=idle, iowait=iowait)


def parse_counter(text: str) -> int:
    """A file that holds one counter, such as `cpuacct.usage` (nanoseconds)."""
    return _counter(text.strip())


def parse_usage_us(text: str) -> int:
    """Microseconds of CPU used, from the `usage_usec` line of a `cpu.stat` (the first one, in all kernels so far)."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return _counter(value.strip())
    raise ValueError("there is no usage_usec line")


def parse_cpu_max(text: str) -> float | None:
    """CPUs that the quota of a `cpu.max` amounts to; None without a quota (`max`)."""
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
    """CPUs that a quota for each period amounts to; None without a quota."""
    return None if quota_us is None else _cpus(quota_us, period_us)


def count_cpus(text: str) -> int:
    """How many CPUs are in a list of numbers and inclusive ranges, such as `0-3,6` (KCL: Cgroup)."""
    return sum(_count_range(part) for part in text.strip().split(","))


def parse_ecs_usage(body: bytes) -> EcsUsage | None:
    """The figures of `/stats`; None while the agent has none, which it tells as `null`.

    Counters from before the container's first sample are missing or 0, and read as 0.
    """
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
    """CPU units of this container, from the metadata of the container itself; 0 where it has none."""
    return _number(orjson.loads(body), "Limits", "CPU") or 0


def parse_ecs_task(body: bytes) -> EcsTask:
    """The limits in `/task`."""
    document: object = orjson.loads(body)
    containers = _member(document, "Containers")
    if not isinstance(containers, list):
        raise ValueError("Containers is missing or no list")  # noqa: TRY004 - the one error for any text
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
    """The number at a path of names; None where anything on the way is missing or is something else."""
    for name in path:
        document = _member(document, name)
    return None if isinstance(document, bool) or not isinstance(document, int | float) else document


def _required(document: object, *path: str) -> float:
    number = _number(document, *path)
    if number is None:
        raise ValueError(f"{'.'.join(path)} is missing or no number")
    return number
