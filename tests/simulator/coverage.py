"""`python -m tests.simulator.coverage`: how often each pair of `pairs` is played, by the plans, and as it really happened.

A value has happened where its run shows it: a kill that comes after the end of a run counts for the plan only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import click

from tests.simulator.batch import begin_process, run_within_limit
from tests.simulator.pairs.array import Chosen, Row, covering_array, pairs_of, row_of
from tests.simulator.pairs.factors import FACTORS
from tests.simulator.plans.draws import Sizes
from tests.simulator.runner import Outcome

_SHOWN: Final = {(factor.name, value.name): value.seen for factor in FACTORS for value in factor.values}
_STRENGTHS: Final = {"pairs": 2, "triples": 3}


def happened(row: Row, outcome: Outcome) -> Row:
    """Of a row, the values that a run shows: settings, and what was met."""
    return tuple(chosen for chosen in row if not _SHOWN[chosen] or outcome.seen.get(_SHOWN[chosen]))


@dataclass(slots=True)
class Coverage:
    """How often each pair was planned, and happened; of triples likewise."""

    strength: int
    planned: Counter[Row] = field(default_factory=Counter[Row])
    played: Counter[Row] = field(default_factory=Counter[Row])

    def plan(self, row: Row) -> None:
        """A run is to play this."""
        self.planned.update(pairs_of(row, self.strength))

    def add(self, row: Row, outcome: Outcome) -> None:
        """A run has ended."""
        self.played.update(pairs_of(happened(row, outcome), self.strength))

    def lines(self, *, whole: bool) -> Iterator[str]:
        """A line for each value: its least frequent pair; or, of the `whole`, one for each pair."""
        wanted = covering_array(self.strength).wanted
        if whole:
            yield f"{'planned':>7} {'played':>7}"
            for some in sorted(wanted):
                yield f"{self.planned[some]:>7} {self.played[some]:>7}  {_named(some)}"
        else:
            yield f"{'value':<40} {'pairs':>6} {'planned':>8} {'played':>7}  at least; and the pair that was played least"
            for chosen in _SHOWN:
                yield from self._line(chosen, [some for some in wanted if chosen in some])
        never = sorted(some for some in wanted if not self.played[some])
        yield from (f"never played: {_named(some)}" for some in never)
        planned = sum(self.planned[some] > 0 for some in wanted)
        yield f"of {len(wanted)}: planned {planned}  played {len(wanted) - len(never)}"

    def _line(self, chosen: Chosen, pairs: list[Row]) -> Iterator[str]:
        if pairs:
            least = min(sorted(pairs), key=lambda some: self.played[some])
            planned = min(self.planned[some] for some in pairs)
            others = tuple(each for each in least if each != chosen)
            yield f"{_named((chosen,)):<40} {len(pairs):>6} {planned:>8} {self.played[least]:>7}  {_named(others)}"


def _named(some: Iterable[Chosen]) -> str:
    return " + ".join(f"{factor}: {value}" for factor, value in some)


@click.command()
@click.option("--scenario", type=click.Choice(list(_STRENGTHS)), default="pairs", show_default=True)
@click.option("--seeds", default=300, show_default=True, type=click.IntRange(1))
@click.option("--first", default=1, show_default=True)
@click.option("--whole", is_flag=True, help="Print a line for each pair, not for each value.")
@click.option(
    "--jobs",
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="one for each core",
    type=click.IntRange(1),
)
def main(*, scenario: str, seeds: int, first: int, whole: bool, jobs: int) -> None:
    """Play the seeds and count what was together."""
    coverage, failed = Coverage(_STRENGTHS[scenario]), 0
    tasks = [(scenario, seed) for seed in range(first, first + seeds)]
    run = partial(run_within_limit, sizes=Sizes())
    with ProcessPoolExecutor(jobs, initializer=begin_process) as pool:
        for (_, seed), outcome in zip(tasks, pool.map(run, tasks, chunksize=4), strict=True):
            row = row_of(seed, coverage.strength)
            coverage.plan(row)
            coverage.add(row, outcome)
            if outcome.violation is not None:
                failed += 1
                click.echo(f"{scenario} seed {seed}: {outcome.violation}", err=True)
    for line in coverage.lines(whole=whole):
        click.echo(line)
    click.echo(f"seeds {seeds}  violations {failed}")


if __name__ == "__main__":
    main()
