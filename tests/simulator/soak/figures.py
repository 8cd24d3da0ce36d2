"""What a soak came to: what the process took in memory, after five minutes and at the end, and beside what work.

Owns how memory is measured. Knows nothing of how the figures came about (`soak`).
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from typing import Final

import psutil

_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the process takes, at rest.

    Args:
        rss_bytes: resident memory.
        blocks: allocations of the interpreter that live; what leaks shows here long before it shows in `rss_bytes`.
        objects: by type, those that the collector knows.
    """

    rss_bytes: int
    blocks: int
    objects: Counter[type]


@dataclass(frozen=True, slots=True)
class Figures:
    """How a soak went.

    Args:
        records: written, delivered and checkpointed.
        repeats: deliveries that were not the first of their record.
        calls: all calls.
        faults: those of them that met a fault, by kind.
        children: that were started.
        latency_most_s: the longest that a record waited.
        told: figures that CloudWatch was told.
        early: after five minutes.
        late: at the end.
    """

    records: int
    repeats: int
    calls: int
    faults: Counter[str]
    children: int
    latency_most_s: float
    reported: int
    early: Footprint
    late: Footprint

    @property
    def rss_ratio(self) -> float:
        """Resident memory at the end by that after five minutes."""
        return self.late.rss_bytes / self.early.rss_bytes

    @property
    def grown_blocks(self) -> int:
        """Allocations that are there at the end and were not after five minutes."""
        return self.late.blocks - self.early.blocks

    @property
    def grown_per_record(self) -> float:
        """The same for each record that was written."""
        return self.grown_blocks / self.records

    @property
    def grown_objects(self) -> str:
        """The types that there are more of, for people."""
        grown = self.late.objects - self.early.objects
        return ", ".join(f"{kind.__qualname__} +{count}" for kind, count in grown.most_common(_SHOWN))

    def shown(self) -> str:
        """The figures as a text."""
        share = sum(self.faults.values()) / self.calls
        faults = ", ".join(f"{name.lower()} {count:,}" for name, count in self.faults.most_common())
        return (
            f"{self.records:,} records ({self.repeats:,} given twice, none later than {self.latency_most_s:.0f} s), "
            f"{self.calls:,} calls, {share:.1%} with faults ({faults}), {self.children:,} children, "
            f"{self.reported:,} figures told\n"
            f"RSS after five minutes {self.early.rss_bytes / 1e6:.1f} MB, at the end {self.late.rss_bytes / 1e6:.1f} MB, "
            f"ratio {self.rss_ratio:.3f}; allocations {self.early.blocks:,} and {self.late.blocks:,} "
            f"({self.grown_blocks:+,}); {self.grown_objects}"
        )


def taken() -> Footprint:
    """The footprint of this process, now."""
    gc.collect()
    gc.collect()
    rss_bytes, blocks = psutil.Process().memory_info().rss, sys.getallocatedblocks()
    objects = Counter(map(type, gc.get_objects()))
    return Footprint(rss_bytes, blocks, objects)


class Tracer:
    """Shows where memory has grown between two rests."""

    def __init__(self) -> None:
        tracemalloc.start(8)
        self._before: tracemalloc.Snapshot | None = None

    def __call__(self) -> None:
        now_taken = tracemalloc.take_snapshot()
        if self._before is not None:
            for difference in now_taken.compare_to(self._before, "traceback")[:_SHOWN]:
                print(difference, *difference.traceback.format(), sep="\n")  # noqa: T201 - a command line
        self._before = now_taken
