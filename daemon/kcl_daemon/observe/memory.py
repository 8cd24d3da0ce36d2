"""How much memory processes take, as Linux tells; bounded in what it costs a caller.

Owns the figures and their age. Knows nothing of what the processes are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kcl_daemon.ports import Clock

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_LASTS_S: Final = 5.0
# A figure takes some 10 microseconds to read: a call takes no more than about a millisecond.
_READS_MOST: Final = 64


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None where it is gone or this system does not tell."""
    try:
        with Path(f"/proc/{pid}/statm").open("rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


class ResidentMemory:
    """Figures of many processes, each at most some seconds old, the more the more there are.

    Args:
        clock: for their age.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._figures: dict[int, tuple[float, int | None]] = {}

    def of(self, pids: Iterable[int]) -> dict[int, int | None]:
        """The figures; None where there is none, or none yet. What is not asked for any more is forgotten."""
        now_s = self._clock.monotonic()
        wanted = set(pids)
        self._figures = {pid: figure for pid, figure in self._figures.items() if pid in wanted}
        ages = {pid: self._figures[pid][0] if pid in self._figures else float("-inf") for pid in wanted}
        due = sorted((pid for pid in wanted if now_s - ages[pid] >= _LASTS_S), key=lambda pid: ages[pid])
        for pid in due[:_READS_MOST]:
            self._figures[pid] = (now_s, resident_bytes(pid))
        return {pid: self._figures[pid][1] if pid in self._figures else None for pid in wanted}
