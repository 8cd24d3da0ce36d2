"""CPU time in pieces of reference work, so that a bound says the same on slow and on busy machines."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Final

_EVERY_S: Final = 0.1


def piece_s() -> float:
    """CPU seconds of one piece: objects, dictionaries and texts, as in the code that is measured."""
    began_s = time.thread_time()
    rows = [{"number": number, "name": f"shard-{number * 7919 % 4000:06d}"} for number in range(4000)]
    by_name = {row["name"]: row for row in rows}
    "\n".join(f"{name}={by_name[name]['number']}" for name in sorted(by_name, key=str)).encode().split(b"\n")
    return time.thread_time() - began_s


def pieces_each(measured_s: Callable[[], Sequence[float]]) -> list[float]:
    """What is measured, in CPU seconds, as pieces done just before and after it; the least of several."""
    found: list[list[float]] = []
    for _ in range(12):
        before_s = piece_s(), piece_s()
        took_s = measured_s()
        usual_s = median((*before_s, piece_s(), piece_s()))
        found.append([each_s / usual_s for each_s in took_s])
    return list(map(min, zip(*found, strict=True)))


def pieces_of(work: Callable[[], object]) -> float:
    """CPU of something that takes seconds; pieces are done all the while, as the machine may be quick and slow in turn."""
    pieces: list[float] = []
    before = signal.signal(signal.SIGVTALRM, lambda *_: pieces.append(piece_s()))
    began_s = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, _EVERY_S, _EVERY_S)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        took_s = time.process_time() - began_s - sum(pieces)
        signal.signal(signal.SIGVTALRM, before)
    return took_s / fmean(pieces)
