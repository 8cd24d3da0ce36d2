"""How much memory child processes take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcl_daemon.ports import Clock

_LASTS_S: Final = 15.0
# This many reads take about two milliseconds.
_READS_MOST: Final = 64


def resident_bytes(pid: int) -> int | None:
    """None if the process is gone, or another user's and the system does not tell."""
    import psutil  # takes time to load; not every daemon is looked at

    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


class ResidentMemory:
    """The more processes there are, the older the figures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._figures: dict[int, tuple[float, int | None]] = {}

    def of(self, pids: Iterable[int]) -> dict[int, int | None]:
        """None for a process until it is read."""
        now_s = self._clock.monotonic()
        wanted = set(pids)
        self._figures = {pid: figure for pid, figure in self._figures.items() if pid in wanted}
        ages = {pid: self._figures[pid][0] if pid in self._figures else float("-inf") for pid in wanted}
        due = sorted((pid for pid in wanted if now_s - ages[pid] >= _LASTS_S), key=lambda pid: ages[pid])
        for pid in due[:_READS_MOST]:
            self._figures[pid] = (now_s, resident_bytes(pid))
        return {pid: self._figures[pid][1] if pid in self._figures else None for pid in wanted}
