"""`python -m tests.simulator`: run scenarios over seeds and say what was found.

Owns the command line. Exit status 0: no violation; 1: at least one; the last line of stdout sums up.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import starmap
from types import FrameType
from typing import Final

import click

from tests.simulator.draws import Sizes
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.scenarios import SCENARIOS, draw_plan

_ALL: Final = "all"
_TELL_EVERY: Final = 200
# A hundred times what a run takes.
_RUN_MOST_S: Final = 300.0
Task = tuple[str, int]


@click.command()
@click.option("--scenario", default=_ALL, show_default=True, help="Name of a scenario, or `all`.")
@click.option(
    "--seeds", default=10, show_default=True, type=click.IntRange(1), help="Seeds for each scenario."
)
@click.option("--first", default=1, show_default=True, type=int, help="First seed.")
@click.option("--seconds", type=click.FloatRange(1), help="Virtual seconds that producers write, at least.")
@click.option("--workers", type=click.IntRange(1), help="Workers at the start, instead of chance.")
@click.option("--shards", type=click.IntRange(1), help="Shards at the start, instead of chance.")
@click.option(
    "--jobs",
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="one for each core",
    type=click.IntRange(1),
    help="Processes to use.",
)
@click.option("--trace", is_flag=True, help="Print what happens, with virtual times.")
@click.option("--list", "list_them", is_flag=True, help="Print the scenarios and end.")
def main(
    *,
    scenario: str,
    seeds: int,
    first: int,
    seconds: float | None,
    workers: int | None,
    shards: int | None,
    jobs: int,
    trace: bool,
    list_them: bool,
) -> None:
    """Run fleets of the production daemon in virtual time and check every step."""
    if list_them:
        for name, draw in SCENARIOS.items():
            _say(f"{name:<18} {(draw.__doc__ or '').partition(chr(10))[0]}")
        return
    if scenario != _ALL and scenario not in SCENARIOS:
        raise click.BadParameter(f"no scenario {scenario!r}; --list shows them", param_hint="--scenario")
    names = list(SCENARIOS) if scenario == _ALL else [scenario]
    sizes = Sizes(workers=workers, shards=shards, seconds=seconds)
    tasks = [(name, seed) for seed in range(first, first + seeds) for name in names]
    outcomes = _outcomes(tasks, sizes, jobs=1 if trace else jobs, trace=trace)
    failed = _report_result(_with_progress(outcomes, len(tasks)), sizes, seeds=seeds)
    sys.exit(1 if failed else 0)


def run_one(task: Task, sizes: Sizes, *, trace: bool) -> Outcome:
    """Run one scenario with one seed."""
    name, seed = task
    return run_plan(draw_plan(name, seed, sizes), scenario=name, seed=seed, write=_say if trace else None)


def _outcomes(tasks: list[Task], sizes: Sizes, *, jobs: int, trace: bool) -> Iterator[Outcome]:
    run = partial(_run_within_limit, sizes=sizes, trace=trace)
    if jobs == 1:
        yield from map(run, tasks)
        return
    # Each run ends with a look for garbage; what was imported need not be looked through 8,000 times.
    with ProcessPoolExecutor(jobs, initializer=gc.freeze) as pool:
        yield from pool.map(run, tasks, chunksize=4)


def _run_within_limit(task: Task, sizes: Sizes, *, trace: bool) -> Outcome:
    """Run one; if virtual time stands still, say in which run and where, and end this process."""
    name, seed = task

    def give_up(_signal: int, frame: FrameType | None) -> None:
        _say(f"{name} seed {seed}: no end after {_RUN_MOST_S:g} s of CPU time")
        traceback.print_stack(frame)
        sys.stderr.flush()
        os._exit(1)

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, _RUN_MOST_S)
    try:
        return run_one(task, sizes, trace=trace)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _with_progress(outcomes: Iterable[Outcome], total: int) -> Iterator[Outcome]:
    """The outcomes, and on stderr now and then how many there have been: thousands take an hour."""
    for done, outcome in enumerate(outcomes, start=1):
        yield outcome
        if done % _TELL_EVERY == 0:
            click.echo(f"{done} of {total} runs", err=True)


def _report_result(outcomes: Iterable[Outcome], sizes: Sizes, *, seeds: int) -> int:
    """Print each violation as it comes and one line at the end; how many there were."""
    runs = failed = records = 0
    virtual_s = 0.0
    for outcome in outcomes:
        runs += 1
        records += outcome.records
        virtual_s += outcome.virtual_s
        if outcome.violation is not None:
            failed += 1
            _say(f"{outcome.scenario} seed {outcome.seed}: {outcome.violation}")
            _say(f"    replay: {replay_command(outcome, sizes)}")
    _say(
        f"seeds {seeds}  runs {runs}  virtual hours {virtual_s / 3600:.1f}  records {records}  violations {failed}"
    )
    return failed


def replay_command(outcome: Outcome, sizes: Sizes) -> str:
    """The command that runs the same again and prints what happens."""
    given = {"--seconds": sizes.seconds, "--workers": sizes.workers, "--shards": sizes.shards}
    extra = "".join(starmap(" {} {:g}".format, ((name, value) for name, value in given.items() if value)))
    scenario = f"--scenario {outcome.scenario} --seeds 1 --first {outcome.seed}"
    return f"python -m tests.simulator {scenario}{extra} --trace"


def _say(line: str) -> None:
    click.echo(line)


if __name__ == "__main__":
    main()
