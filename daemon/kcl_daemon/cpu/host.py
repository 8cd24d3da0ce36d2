"""CPU of a whole host, from `/proc/stat`: for workers that have a machine to themselves (KCL: LinuxCpuWorkerMetric)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kcl_daemon.cpu.files import read
from kcl_daemon.cpu.formulas import HostTimes, host_percent
from kcl_daemon.cpu.parsing import parse_host


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
