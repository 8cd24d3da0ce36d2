"""`python -m tests.simulator`: run scenarios over seeds and say what was found.

Owns the command line. Exit status 0: no violation; 1: at least one; the last line of stdout sums up.
"""

from __future__ import annotations

import json
import os
import sys
import time  # real time, from which seeds are drawn
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import click

from tests.simulator.batch import Task, begin_process, replay_command, run_within_limit
from tests.simulator.hours import Sum, run_hours
from tests.simulator.plans.draws import Sizes
from tests.simulator.runner import Outcome
from tests.simulator.scenarios.all import LONG, SCENARIOS

_ALL: Final = "all"
_TELL_EVERY: Final = 200


@click.command()
@click.option("--scenario", default=_ALL, show_default=True, help="Name of a scenario, or `all`.")
@click.option(
    "--seeds",
    default=10,
    show_default=True,
    type=click.IntRange(1),
    help="Seeds for each scenario; with `all`, a tenth for those that take as long as ten others.",
)
@click.option("--first", type=int, help="First seed.  [default: 1; with --hours the date and time]")
@click.option(
    "--hours", type=click.FloatRange(0, min_open=True), help="Run until the time is up, instead of --seeds."
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --hours: write the figures into this file, too.",
)
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
    first: int | None,
    hours: float | None,
    json_file: Path | None,
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
    names = [*SCENARIOS] if scenario == _ALL else [scenario]
    sizes = Sizes(workers=workers, shards=shards, seconds=seconds)
    if json_file is not None and hours is None:
        raise click.BadParameter("it has the figures of --hours; give both", param_hint="--json")
    if hours is not None:
        sys.exit(_run_hours(names, sizes, first=first, hours=hours, jobs=jobs, json_file=json_file))
    first = 1 if first is None else first
    tasks = tasks_of(names, first, seeds)
    outcomes = _outcomes(tasks, sizes, jobs=1 if trace else jobs, trace=trace)
    failed = _report_result(_with_progress(outcomes, len(tasks)), sizes, seeds=seeds)
    sys.exit(1 if failed else 0)


def tasks_of(names: Sequence[str], first: int, seeds: int) -> list[Task]:
    """Each scenario with each seed; beside others, a long one with every tenth."""
    return [
        (name, first + number)
        for number in range(seeds)
        for name in names
        if number % 10 == 0 or len(names) == 1 or name not in LONG
    ]


def _run_hours(
    names: Sequence[str], sizes: Sizes, *, first: int | None, hours: float, jobs: int, json_file: Path | None
) -> int:
    first = int(time.strftime("%y%m%d%H%M")) * 1000 if first is None else first
    click.echo(f"{hours:g} hours from seed {first}: --first {first} begins with the same", err=True)
    total = Sum(first, sizes)
    run_hours(_endless(names, first), total, hours=hours, jobs=jobs)
    for line in total.lines():
        _say(line)
    if json_file is not None:
        json_file.write_text(json.dumps(total.figures(), indent=2) + "\n", encoding="ascii")
    return 1 if total.violations else 0


def _endless(names: Sequence[str], first: int) -> Iterator[Task]:
    """All of them in turn; where there are many, each sixth run is one of `points`, which has most to draw."""
    for seed in count(first):
        for place, name in enumerate(names):
            yield name, seed
            if len(names) > 1 and place % 5 == 0:
                yield "points", 100 * seed + place


def _outcomes(tasks: list[Task], sizes: Sizes, *, jobs: int, trace: bool) -> Iterator[Outcome]:
    run = partial(run_within_limit, sizes=sizes, trace=trace)
    if jobs == 1:
        yield from map(run, tasks)
        return
    with ProcessPoolExecutor(jobs, initializer=begin_process) as pool:
        yield from pool.map(run, tasks, chunksize=4)


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


def _say(line: str) -> None:
    click.echo(line)


if __name__ == "__main__":
    main()
