"""The points between two writes of the daemon (`kcl_daemon.faults`): a worker may be killed or paused at each.

Owns when which worker meets its fault, and the count. Knows nothing of how it is carried out (`world`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.simulator.fleet.workers import SimWorker
from tests.simulator.loop import current_lane
from tests.simulator.plans.plan import AtPoint


@dataclass(slots=True)
class Visits:
    """Of one point."""

    count: int = 0
    kills: int = 0
    pauses: int = 0

    def add(self, other: Visits) -> None:
        """Of another run."""
        self.count += other.count
        self.kills += other.kills
        self.pauses += other.pauses


class Points:
    """`here` is the worker that runs now; `befall` carries out what meets it, and raises in one that is killed."""

    def __init__(
        self,
        planned: Iterable[AtPoint],
        here: Callable[[], SimWorker | None],
        befall: Callable[[SimWorker, AtPoint], None],
    ) -> None:
        self._planned = {(each.point, each.nth): each for each in planned}
        self._here = here
        self._befall = befall
        self.visits: dict[str, Visits] = {}

    def clear(self) -> None:
        """Nobody meets anything any more."""
        self._planned.clear()

    def reached(self, point: str) -> None:
        """A worker is there: `kcl_daemon.faults` calls this."""
        if current_lane() is None:  # an operator is, who uses the daemon's code, too
            return
        visits = self.visits.setdefault(point, Visits())
        visits.count += 1
        what = self._planned.pop((point, visits.count), None)
        worker = None if what is None else self._here()
        if what is not None and worker is not None:
            visits.kills += what.pause_s is None
            visits.pauses += what.pause_s is not None
            self._befall(worker, what)
