"""Runs seeds until the time is up, and adds up what was done: for hours.

Owns the pool and the sum. Knows nothing of what a run consists of.
"""

from __future__ import annotations

import multiprocessing
import time  # real time, which bounds the whole
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Final

import click

from tests.simulator.batch import Task, begin_process, replay_command, run_within_limit
from tests.simulator.faults.points import Visits
from tests.simulator.plans.draws import Sizes
from tests.simulator.plans.point_draws import BASES
from tests.simulator.runner import Outcome
from tests.simulator.violation import Violation

_TELL_EVERY_S: Final = 60.0


@dataclass(slots=True)
class Sum:
    """Of many runs.

    Args:
        violations: what was wrong, and the command that repeats it.
    """

    first: int
    sizes: Sizes
    runs: int = 0
    virtual_s: float = 0.0
    records: int = 0
    repeats: int = 0
    checkpoints: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter[str])
    points: dict[str, Visits] = field(default_factory=dict[str, Visits])
    scenarios: Counter[str] = field(default_factory=Counter[str])
    violations: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def add(self, outcome: Outcome) -> None:
        """One run has ended."""
        self.runs += 1
        self.virtual_s += outcome.virtual_s
        self.records += outcome.records
        self.repeats += outcome.repeats
        self.checkpoints += outcome.checkpoints
        self.scenarios[outcome.scenario] += 1
        self.faults.update(outcome.faults)
        for point, visits in outcome.points.items():
            self.points.setdefault(point, Visits()).add(visits)
        if outcome.violation is not None:
            what = f"{outcome.scenario} seed {outcome.seed}: {outcome.violation}"
            self.violations.append((what, replay_command(outcome, self.sizes)))
            click.echo(what, err=True)

    @property
    def all_faults(self) -> dict[str, int]:
        """By kind, those at points among them, the most frequent first."""
        found = Counter(self.faults)
        found["worker killed at a point"] = sum(each.kills for each in self.points.values())
        found["worker paused at a point"] = sum(each.pauses for each in self.points.values())
        return dict(found.most_common())

    @property
    def short(self) -> str:
        """One line."""
        return (
            f"runs {self.runs}  virtual hours {self.virtual_s / 3600:.1f}  faults {sum(self.all_faults.values())}  "
            f"records {self.records}  repeats {self.repeats}  checkpoints {self.checkpoints}  "
            f"violations {len(self.violations)}"
        )

    def figures(self) -> dict[str, object]:
        """For a file of JSON."""
        return {
            "first_seed": self.first,
            "hours": round(self.seconds / 3600, 3),
            "runs": self.runs,
            "runs_by_scenario": dict(self.scenarios),
            "virtual_hours": round(self.virtual_s / 3600, 2),
            "records": self.records,
            "repeats": self.repeats,
            "checkpoints": self.checkpoints,
            "faults": self.all_faults,
            "points": {
                name: {"visits": each.count, "kills": each.kills, "pauses": each.pauses}
                for name, each in sorted(self.points.items())
            },
            "violations": [{"what": what, "replay": command} for what, command in self.violations],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{'fault':<34} {'times':>9}"
        yield from (f"{kind:<34} {count:>9}" for kind, count in self.all_faults.items())
        yield ""
        yield f"{'point between two writes':<34} {'come to':>9} {'killed':>7} {'paused':>7}"
        for name in sorted({*BASES, *self.points}):
            each = self.points.get(name, Visits())
            yield f"{name:<34} {each.count:>9} {each.kills:>7} {each.pauses:>7}"
        yield ""
        for what, command in self.violations:
            yield what
            yield f"    replay: {command}"
        yield f"first seed {self.first}  hours {self.seconds / 3600:.2f}  {self.short}"


def run_hours(tasks: Iterator[Task], total: Sum, *, hours: float, jobs: int) -> None:
    """Add the runs to `total` until the time is up, or KeyboardInterrupt."""
    began_s = time.perf_counter()
    told_s = -_TELL_EVERY_S

    def add(outcome: Outcome | None) -> None:
        nonlocal told_s
        total.seconds = time.perf_counter() - began_s
        if outcome is not None:
            total.add(outcome)
        if total.runs and total.seconds >= told_s + _TELL_EVERY_S:
            told_s = total.seconds
            click.echo(f"{total.seconds / 60:.0f} min: {total.short}", err=True)

    try:
        while time.perf_counter() < began_s + 3600 * hours:
            suspects = _run_pool(tasks, total.sizes, add, ends_s=began_s + 3600 * hours, jobs=jobs)
            for task in suspects:
                add(_run_alone(task, total.sizes))
    except KeyboardInterrupt:
        click.echo("interrupted; the sum so far:", err=True)


def _run_pool(
    tasks: Iterator[Task], sizes: Sizes, add: Callable[[Outcome | None], None], *, ends_s: float, jobs: int
) -> list[Task]:
    """Runs until the time is up; or until a run ends its process: those that may have been it."""
    running: dict[Future[Outcome], Task] = {}
    with ProcessPoolExecutor(jobs, initializer=begin_process) as pool:
        try:
            while True:
                while len(running) < 2 * jobs and time.perf_counter() < ends_s:
                    task = next(tasks)
                    running[pool.submit(run_within_limit, task, sizes)] = task
                if not running:
                    return []
                for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    del running[future]
                    add(outcome)
                add(None)
                if time.perf_counter() >= ends_s:
                    running = {future: task for future, task in running.items() if not future.cancel()}
        except BrokenProcessPool:
            return list(running.values())
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _run_alone(task: Task, sizes: Sizes) -> Outcome:
    name, seed = task
    with ProcessPoolExecutor(1, initializer=begin_process) as pool:
        try:
            return pool.submit(run_within_limit, task, sizes).result()
        except BrokenProcessPool:
            broken = Violation("process_ended", "it has no end, or it ended its process", 0.0)
            return Outcome(name, seed, 0.0, 0, 0, 0.0, 0, (), 0, "", broken)
