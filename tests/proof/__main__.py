"""`python -m tests.proof`: the long proofs, part by part. What has passed with the same files is not run again.

Results, logs and the table are in `build/prove`; remove it to begin anew. Exit status 1 if a part did not pass.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Process, SimpleQueue
from pathlib import Path
from typing import Final

import click

from kcl_local.demo.check import monotonic_s
from tests.house.files import ROOT
from tests.proof.parts import LIMIT_MIN, SEEDS, Beside, Part, parts
from tests.proof.running import PASSED, Result, passed_before, run

FOLDER: Final = ROOT / "build" / "prove"
_LAST_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Proved:
    """What a part came to; `before`, if it had passed already."""

    result: Result
    before: bool

    @property
    def row(self) -> tuple[str, ...]:
        """Of the table."""
        it = self.result
        words = [
            it.result,
            *([f"{it.skipped} not run here"] if it.skipped else []),
            *(["before"] if self.before else []),
        ]
        count = "unknown" if it.count is None else f"{it.count:,}"
        return it.part, count, f"{it.seconds:,.0f}", f"{it.cpu_seconds:,.0f}", ", ".join(words)


@click.command()
@click.option("--part", "names", multiple=True, help="Only this one; may be given again.")
@click.option("--seeds", default=SEEDS, show_default=True, type=click.IntRange(1), help="Of each scenario.")
@click.option("--first", default=1, show_default=True, type=int, help="First seed.")
@click.option(
    "--limit",
    default=float(LIMIT_MIN),
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Minutes after which a part is ended; more for a machine that has other work.",
)
@click.option("--list", "list_them", is_flag=True, help="Print the parts and end.")
def main(*, names: Sequence[str], seeds: int, first: int, limit: float, list_them: bool) -> None:
    """Run the parts of `make prove` that have not passed yet, and print a table."""
    known = parts(seeds=seeds, first=first)
    if list_them:
        for part in known:
            click.echo(f"{part.name:<16} {part.minutes:>3} min  {' '.join(part.command[1:])}")
        return
    if unknown := set(names) - {part.name for part in known}:
        raise click.BadParameter(
            f"no part {', '.join(sorted(unknown))}; --list shows them", param_hint="--part"
        )
    chosen = [part for part in known if not names or part.name in names]
    found: list[Proved] = []
    began_s = monotonic_s()
    try:
        found.extend(prove(chosen, FOLDER, limit_s=60 * limit))
    finally:  # also where a person has ended it: then nobody has told what the other row has done
        told = {each.result.part for each in found}
        others = [passed_before(part, FOLDER) for part in chosen if part.name not in told]
        found.extend(Proved(each, before=True) for each in others if each is not None)
        shown = "\n".join((*table(found), f"{monotonic_s() - began_s:,.0f} seconds on the clock"))
        click.echo(f"\n{shown}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / "table.txt").write_text(f"{shown}\n", "utf-8")
    passed = [each.result.part for each in found if each.result.result == PASSED]
    sys.exit(0 if len(passed) == len(chosen) else 1)


def prove(chosen: Iterable[Part], folder: Path, *, limit_s: float) -> Iterator[Proved]:
    """What measures, alone; then what waits, and in a process beside it what computes."""
    row = {beside: [part for part in chosen if part.beside is beside] for beside in Beside}
    yield from _each(row[Beside.NOTHING], folder, limit_s)
    told: SimpleQueue[Proved] = SimpleQueue()
    computing = Process(target=_tell, args=(told, row[Beside.WHAT_WAITS], folder, limit_s))
    computing.start()
    try:
        yield from _each(row[Beside.WHAT_COMPUTES], folder, limit_s)
    except BaseException:
        if computing.pid is not None and computing.is_alive():
            os.kill(computing.pid, signal.SIGINT)  # it ends its part
        raise
    finally:
        computing.join()
    while not told.empty():
        yield told.get()


def _each(row: Iterable[Part], folder: Path, limit_s: float) -> Iterator[Proved]:
    return (proved(part, folder, limit_s=limit_s) for part in row)


def _tell(told: SimpleQueue[Proved], row: Iterable[Part], folder: Path, limit_s: float) -> None:
    for each in _each(row, folder, limit_s):
        told.put(each)


def proved(part: Part, folder: Path, *, limit_s: float) -> Proved:
    """Run a part that has not passed with the files as they are."""
    if (before := passed_before(part, folder)) is not None:
        return Proved(before, before=True)
    log = folder / f"{part.name}.log"
    click.echo(f"{part.name}: {part.minutes} min on two quiet cores; {log}", err=True)
    result = run(part, folder, limit_s=limit_s)
    if result.result != PASSED:
        click.echo("\n".join(log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]), err=True)
    click.echo(f"{part.name}: {result.result} after {result.seconds:.0f} s", err=True)
    return Proved(result, before=False)


def table(found: Sequence[Proved]) -> list[str]:
    """A line for each part, and the sum."""
    results = [each.result for each in found]
    passed = sum(each.result == PASSED for each in results)
    rows = [
        ("part", "tests or runs", "seconds", "CPU seconds", "result"),
        *(each.row for each in found),
        (
            "all",
            f"{sum(each.count or 0 for each in results):,}",
            f"{sum(each.seconds for each in results):,.0f}",
            f"{sum(each.cpu_seconds for each in results):,.0f}",
            f"{passed} of {len(results)} passed",
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:4], widths[1:4]), row[4])) for row in rows
    ]


if __name__ == "__main__":
    main()
