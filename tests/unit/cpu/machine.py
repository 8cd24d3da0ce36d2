"""A machine made of recorded files, and a clock that is moved by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.unit.fakes import LoopClock

RECORDED: Final = Path(__file__).parent / "recorded"
_BETWEEN: Final = "---\n"


class HandClock(LoopClock):
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Machine:
    """The tree of one recorded folder, laid out under `root`; files with several readings show the first."""

    def __init__(self, name: str, root: Path) -> None:
        self.root = root
        self._readings: dict[Path, list[str]] = {}
        folder = RECORDED / name
        for source in sorted(folder.rglob("*")):
            if source.is_file():
                self._readings[root / source.relative_to(folder)] = source.read_text().split(_BETWEEN)
        self.show(0)

    @property
    def readings(self) -> int:
        """How many there are."""
        return max(len(texts) for texts in self._readings.values())

    @property
    def cgroups(self) -> Path:
        return self.root / "sys/fs/cgroup"

    def show(self, reading: int) -> None:
        """Let every file show its reading of that number, or its last one."""
        for path, texts in self._readings.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[min(reading, len(texts) - 1)])


def ecs(name: str) -> bytes:
    """A recorded answer of the ECS task metadata."""
    return (RECORDED / "ecs" / name).read_bytes()
