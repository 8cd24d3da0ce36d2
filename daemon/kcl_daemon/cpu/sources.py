"""How busy this worker's CPU is: ECS metadata, control groups or the host, chosen once at start.

KCL's order (EcsResource, EksResource, Ec2Resource), but every host uses its own counters (psutil) without asking EC2's
metadata, any other container uses its quota if it has one, and ECS metadata version 3 is ignored. The formulas are
KCL's, oddities included, because leaders compare Java workers with ours. But a first reading gives None, a failed
capture, where Java has 0 %. Parsers raise ValueError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from math import fsum
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from kcl_daemon.children.platform import boot_id
from kcl_daemon.errors import CpuUnreadable
from kcl_daemon.metrics.kcl import CAPTURE_FAILED
from kcl_daemon.ports import NO_METERS, Clock, Cpu, Log, Meters, Randomness

T = TypeVar("T")

_FULL: Final = 100.0
_NANOSECONDS_PER_S: Final = 1_000_000_000
_TICKS_PER_S: Final = 100
_NANOSECONDS_PER_US: Final = 1_000
_READ_BYTES: Final = 4096
FAILED: Final = Decimal(-1)
"""Of a window with failures only; a worker that reports it last gets no leases."""
_SAMPLES_MAX: Final = 300
_AVERAGES_MOST: Final = 10
_MICRO: Final = Decimal("0.000001")
_CAPTURE_S: Final = 1.0
_MAX_CAPTURE_S: Final = 5.0
_ECS_ENDPOINT: Final = "ECS_CONTAINER_METADATA_URI_V4"
_KUBERNETES_TOKEN: Final = Path("var/run/secrets/kubernetes.io/serviceaccount/token")
_CGROUPS: Final = Path("sys/fs/cgroup")
_ADVICE: Final = (
    "if its CPU was measured before, this worker gets no new leases for as long as another worker is well; if it never was, it "
    "is balanced by throughput, as with disableWorkerMetrics=true"
)


class HostTimes(NamedTuple):
    """Of all CPUs since the host started, in ticks of 10 ms. irq, softirq, steal and guests do not count."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    used_ns: int
    at_s: float


def host_percent(before: HostTimes, after: HostTimes) -> float | None:
    """Busy share of the host's time (KCL: LinuxCpuWorkerMetric). Waiting for the disk counts as busy.

    0 if nothing changed, or if `iowait` went back by more than the CPUs worked, which Linux allows. None if other
    counters went back: CPUs came or went.
    """
    if before == after:
        return 0.0
    total = sum(after) - sum(before)
    busy = total - (after.idle - before.idle)
    if busy < 0 and after.iowait < before.iowait:
        return 0.0
    if total <= 0 or not 0 <= busy <= total:
        return None
    return busy / total * _FULL


def cgroup_percent(before: CgroupUsage, after: CgroupUsage, *, limit_cpus: float) -> float | None:
    """At most 100 (KCL: Cgroupv1CpuWorkerMetric, Cgroupv2CpuWorkerMetric): a group may exceed its limit for a moment."""
    elapsed_ns = (after.at_s - before.at_s) * _NANOSECONDS_PER_S
    used_ns = after.used_ns - before.used_ns
    if elapsed_ns <= 0 or used_ns < 0 or limit_cpus <= 0:
        return None
    return min(used_ns / elapsed_ns / limit_cpus * _FULL, _FULL)


def parse_counter(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{digits!r} is not a counter")
    return int(digits)


def parse_usage_us(text: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return parse_counter(value)
    raise ValueError("there is no usage_usec line")


def parse_cpu_max(text: str) -> float | None:
    """None for `max`."""
    fields = text.split()
    if len(fields) != 2:
        raise ValueError(f"{text.strip()!r} is not a quota and a period")
    quota, period = fields
    return None if quota == "max" else _cpus(parse_counter(quota), parse_counter(period))


def parse_quota_us(text: str) -> int | None:
    """None without a quota (-1)."""
    return None if text.strip() == "-1" else parse_counter(text)


def quota_cpus(quota_us: int | None, period_us: int) -> float | None:
    return None if quota_us is None else _cpus(quota_us, period_us)


def count_cpus(text: str) -> int:
    """Of a list such as `0-3,6` (KCL: Cgroup)."""
    return sum(_count_range(part) for part in text.strip().split(","))


def _count_range(text: str) -> int:
    first, dash, last = text.partition("-")
    count = parse_counter(last if dash else first) - parse_counter(first) + 1
    if count < 1:
        raise ValueError(f"{text!r} is not a range of CPUs")
    return count


def _cpus(quota_us: int, period_us: int) -> float:
    if quota_us == 0 or period_us == 0:
        raise ValueError(f"a quota of {quota_us} µs in {period_us} µs is no limit")
    return quota_us / period_us


class CpuRecorder:
    """Averages the samples of each window (KCL: WorkerMetricStatsManager).

    Unlike in Java, an empty window adds no average, and there is none before the first figure: a worker that cannot
    read its CPU counts as one without a metric and still gets leases.
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
        """None or a value outside 0 to 100 is a failure."""
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


def read(path: Path, parse: Callable[[str], T]) -> T:
    """Only the first 4 KiB; CpuUnreadable with the path if the file is missing or malformed."""
    try:
        with path.open("rb", buffering=0) as file:
            return parse((file.read(_READ_BYTES) or b"").decode("ascii"))
    except OSError as error:
        raise CpuUnreadable(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CpuUnreadable(f"{path}: {error}") from error


class CgroupCpu(ABC):
    """Every method raises CpuUnreadable for a missing or malformed file."""

    name: str

    def __init__(self, cpus: Path, clock: Clock) -> None:
        self._cpus = cpus
        self._clock = clock
        self._before: CgroupUsage | None = None

    @abstractmethod
    def used_ns(self) -> int: ...

    @abstractmethod
    def quota_cpus(self) -> float | None: ...

    async def sample(self) -> float | None:
        """Percent of the container's limit since the last call; without a quota, of all its CPUs.

        The limits are read every time: Kubernetes and Docker can change them.
        """
        after = CgroupUsage(used_ns=self.used_ns(), at_s=self._clock.monotonic())
        before, self._before = self._before, after
        limit_cpus = self.quota_cpus() or read(self._cpus, count_cpus)
        return None if before is None else cgroup_percent(before, after, limit_cpus=limit_cpus)


class CgroupV1(CgroupCpu):
    """A folder for each controller (KCL: Cgroupv1CpuWorkerMetric)."""

    name = "cgroup-v1"

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder / "cpuset" / "cpuset.effective_cpus", clock)
        self._cpu = folder / "cpu"
        # Both controllers are usually one mount, `cpu,cpuacct`; if not, `cpu` has no usage.
        together = self._cpu / "cpuacct.usage"
        self._usage = together if together.exists() else folder / "cpuacct" / "cpuacct.usage"

    def used_ns(self) -> int:
        return read(self._usage, parse_counter)

    def quota_cpus(self) -> float | None:
        quota_us = read(self._cpu / "cpu.cfs_quota_us", parse_quota_us)
        return read(self._cpu / "cpu.cfs_period_us", lambda text: quota_cpus(quota_us, parse_counter(text)))


class CgroupV2(CgroupCpu):
    """A container sees its own group in it (KCL: Cgroupv2CpuWorkerMetric)."""

    name = "cgroup-v2"

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder / "cpuset.cpus.effective", clock)
        self._folder = folder

    def used_ns(self) -> int:
        return read(self._folder / "cpu.stat", parse_usage_us) * _NANOSECONDS_PER_US

    def quota_cpus(self) -> float | None:
        return read(self._folder / "cpu.max", parse_cpu_max)


class HostCpu:
    def __init__(self) -> None:
        self.name: Final = "host"
        self._before: HostTimes | None = None

    async def sample(self) -> float | None:
        before, after = self._before, host_times()
        self._before = after
        return None if before is None else host_percent(before, after)


def host_times() -> HostTimes:
    import psutil

    try:
        times = psutil.cpu_times()
    except (OSError, ValueError, TypeError, IndexError, psutil.Error) as error:  # a /proc/stat that is none
        raise CpuUnreadable(f"the host's CPU times: {error}") from error
    # Whole numbers as the kernel has them: sums of fractions are a little off. Only Linux tells of waiting for disks.
    return HostTimes(*(round(getattr(times, name, 0.0) * _TICKS_PER_S) for name in HostTimes._fields))


@dataclass(frozen=True, slots=True)
class CpuChoice:
    """`why` is for the log; `host` is the boot ID if the figure covers the whole host, else None."""

    cpu: Cpu | None
    why: str
    host: str | None = None


def choose_cpu(*, root: Path, environment: Mapping[str, str], clock: Clock) -> CpuChoice:
    """ECS, Kubernetes, a container with a quota, a host: the first that fits. Never raises."""
    if endpoint := environment.get(_ECS_ENDPOINT):
        return _ecs(endpoint)
    return _container(root, clock) or _host()


def _container(root: Path, clock: Clock) -> CpuChoice | None:
    cgroup = _cgroup(root / _CGROUPS, clock)
    if (root / _KUBERNETES_TOKEN).is_file():
        return CpuChoice(
            cgroup, "a Kubernetes pod" if cgroup else "a Kubernetes pod that sees no control groups"
        )
    if cgroup is not None and _has_quota(cgroup):
        return CpuChoice(cgroup, "a container with a CPU quota")
    return None


def _host() -> CpuChoice:
    try:
        host_times()
    except CpuUnreadable as error:
        return CpuChoice(None, str(error))
    return CpuChoice(HostCpu(), "a host", boot_id())


def _ecs(endpoint: str) -> CpuChoice:
    if not endpoint.startswith("http://"):
        return CpuChoice(None, f"{_ECS_ENDPOINT} is no http:// address")
    from kcl_daemon.cpu.ecs import EcsCpu, metadata_client

    return CpuChoice(EcsCpu(endpoint, metadata_client()), "an ECS task")


def _cgroup(folder: Path, clock: Clock) -> CgroupCpu | None:
    if (folder / "cgroup.controllers").is_file():
        return CgroupV2(folder, clock)
    if (folder / "memory").is_dir() or (folder / "cpu").is_dir():
        return CgroupV1(folder, clock)
    return None


def _has_quota(cgroup: CgroupCpu) -> bool:
    try:
        return cgroup.quota_cpus() is not None
    except CpuUnreadable:
        return False


class CpuSampler:
    """KCL: WorkerMetricStatsManager; `capture_s` is its inMemoryWorkerMetricsCaptureFrequencyMillis."""

    def __init__(
        self,
        *,
        cpu: Cpu,
        clock: Clock,
        randomness: Randomness,
        log: Log,
        capture_s: float = _CAPTURE_S,
        max_averages: int = 10,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._cpu = cpu
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._capture_s = capture_s
        self._recorder = CpuRecorder(max_averages)
        self._failures = 0

    @property
    def failures(self) -> int:
        return self._failures

    async def run(self) -> None:
        """The random start spreads the workers."""
        await self._clock.sleep(self._randomness.uniform(0, self._capture_s))
        while True:
            await self.capture()
            await self._clock.sleep(self._capture_s)

    async def capture(self) -> None:
        """Never raises: a missing figure must not end a worker."""
        percent, problem = None, f"no answer within {_MAX_CAPTURE_S:g} s"
        try:
            with self._clock.move_on_after(_MAX_CAPTURE_S):
                percent, problem = await self._cpu.sample(), ""
        except CpuUnreadable as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - any fault of a source counts as a failed capture
            problem = repr(error)
        self._recorder.add(percent)
        if problem:
            self._failed(problem)

    def averages(self) -> tuple[Decimal, ...]:
        """Ends the window; oldest first. Empty: there is no metric."""
        self._recorder.drain()
        return self._recorder.averages

    def _failed(self, problem: str) -> None:
        self._failures += 1
        self._meters.add(CAPTURE_FAILED)
        if self._failures == 1:
            self._log.warning("cpu_capture_failed", source=self._cpu.name, error=problem, advice=_ADVICE)
