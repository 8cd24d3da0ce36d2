"""`python -m tests.mutation`: puts small faults into the rules, one at a time, and looks whether a test fails.

Needs cosmic-ray (`pip install -e '.[mutation]'`). Verdicts are kept in `build/mutation`. Exit status 1 if a mutant survived without a
reason in `equivalents.toml`, or a reason there is of no use any more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import click

from tests.house.files import ROOT
from tests.mutation.equivalents import Equivalent, equivalents, stale
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.results import FOLDER, Known
from tests.mutation.running import Later, judge
from tests.mutation.subjects import SUBJECTS, Subject


@dataclass(frozen=True, slots=True)
class Score:
    """Of a file, or of several; `untried` have not met the tests yet."""

    mutants: int = 0
    untried: int = 0
    killed: int = 0
    equivalent: int = 0

    @property
    def survived(self) -> int:
        return self.mutants - self.untried - self.killed - self.equivalent

    @property
    def percent(self) -> float:
        """Of those that were tried and that a test can kill."""
        return 100 * self.killed / max(1, self.killed + self.survived)

    def plus(self, other: Score) -> Score:
        return Score(
            self.mutants + other.mutants,
            self.untried + other.untried,
            self.killed + other.killed,
            self.equivalent + other.equivalent,
        )

    def row(self, name: str) -> tuple[str, ...]:
        figures = self.mutants, self.untried, self.killed, self.survived, self.equivalent
        return name, *(f"{each:,}" for each in figures), f"{self.percent:.1f} %"


@dataclass(frozen=True, slots=True)
class Judged:
    """A file after all its mutants met the tests."""

    subject: Subject
    survivors: list[Mutant]
    score: Score
    needless: list[Equivalent]


@click.command()
@click.option("--only", "parts", multiple=True, help="Files whose path contains this; may be given again.")
@click.option("--trust", is_flag=True, help="What was killed is not tried again although tests have changed.")
@click.option(
    "--quick", is_flag=True, help="Leave faults that must be imported (constants, defaults) for later."
)
@click.option("--known", is_flag=True, help="Only what earlier runs found; runs no test.")
@click.option("--list", "list_them", is_flag=True, help="Print the files and their mutants, and end.")
def main(*, parts: Sequence[str], trust: bool, quick: bool, known: bool, list_them: bool) -> None:
    """Run the tests of each file against its mutants, and print survivors and a table."""
    if find_spec("cosmic_ray") is None:
        raise click.ClickException("cosmic-ray is missing: .venv/bin/pip install -e '.[mutation]'")
    chosen = [each for each in SUBJECTS if not parts or any(part in each.path for part in parts)]
    FOLDER.mkdir(parents=True, exist_ok=True)
    if list_them:
        for subject in chosen:
            click.echo(f"{len(_mutants(subject)):>5}  {subject.path}")
        return
    if not known:
        _run(chosen, trust=trust, quick=quick)
    argued = equivalents()
    found = [each for subject in chosen if (each := _judged(Known(subject, trust), argued)) is not None]
    for line in (*_survivors(found), "", *_table(found)):
        click.echo(line)
    bad = [*stale(argued), *(each for judged in found for each in judged.needless)]
    for entry in bad:
        click.echo(f"equivalents.toml: no longer so: {entry.file}: {entry.line}")
    sys.exit(1 if bad or any(each.survivors for each in found) else 0)


@cache
def _mutants(subject: Subject) -> list[Mutant]:
    return mutants_of((ROOT / subject.path).read_text("utf-8"), subject.path)


def _run(subjects: Sequence[Subject], *, trust: bool, quick: bool) -> None:
    """First the faults in functions, of which many are judged in a second, then those that must be imported."""
    waiting = list[tuple[Later, Known]]()
    for subject in subjects:
        mutants, known = _mutants(subject), Known(subject, trust)
        missing = [each for each in mutants if each.name not in known.verdicts]
        if missing:
            click.echo(f"{subject.path}: {len(missing)} of {len(mutants)} mutants", err=True)
            waiting.append((judge(subject, missing, known.keep), known))
    if quick:
        return
    for later, known in sorted(waiting, key=lambda each: len(each[0].mutants)):
        click.echo(f"{later.subject.path}: {len(later.mutants)} to be imported", err=True)
        later.judge(known.keep)


def _judged(known: Known, argued: Sequence[Equivalent]) -> Judged | None:
    """None of a file that has not met its tests yet."""
    subject = known.subject
    mutants = _mutants(subject)
    tried = [each for each in mutants if each.name in known.verdicts]
    if not tried:
        return None
    alive = [each for each in tried if not known.verdicts[each.name].is_killed]
    here = [each for each in argued if each.file == subject.path]
    survivors = [each for each in alive if not any(one.is_mutant(subject.path, each) for one in here)]
    untried = len(mutants) - len(tried)
    unused = [one for one in here if not any(one.is_mutant(subject.path, each) for each in alive)]
    score = Score(len(mutants), untried, len(tried) - len(alive), len(alive) - len(survivors))
    return Judged(subject, survivors, score, [] if untried else unused)


def _survivors(found: Sequence[Judged]) -> list[str]:
    lines: list[str] = []
    for each in found:
        for mutant in each.survivors:
            lines += [
                f"{each.subject.path}:{mutant.first_row} {mutant.within}",
                f"    - {mutant.line}",
                f"    + {mutant.becomes}",
            ]
    return lines


def _table(found: Sequence[Judged]) -> list[str]:
    """A line for each file, for each package, and for all."""
    packages = dict[str, Score]()
    for each in found:
        name = each.subject.package
        packages[name] = packages.get(name, Score()).plus(each.score)
    total = Score()
    for score in packages.values():
        total = total.plus(score)
    rows = [
        ("file", "mutants", "not tried", "killed", "survived", "equivalent", "score"),
        *(each.score.row(each.subject.path) for each in found),
        *(score.row(name) for name, score in packages.items()),
        total.row("all"),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in rows]


if __name__ == "__main__":
    main()
