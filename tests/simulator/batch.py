"""One run of one scenario with one seed, as a batch of them makes it: within a limit, in a process of a pool."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from itertools import starmap
from types import FrameType
from typing import Final

import click

from tests.simulator.loop import now
from tests.simulator.plans.draws import Sizes
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.scenarios.all import draw_plan

# Longer than any one instant takes; a day of thousands of shards takes ten times as long on a busy machine.
STANDS_MOST_S: Final = 300.0
Task = tuple[str, int]


def begin_process() -> None:
    """Of a pool: each run ends with a look for garbage; what was imported need not be looked through 8,000 times.

    Ctrl-C is for the process that sums up.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()


def run_one(task: Task, sizes: Sizes, *, trace: bool = False) -> Outcome:
    """Run one scenario with one seed."""
    name, seed = task
    write = click.echo if trace else None
    return run_plan(draw_plan(name, seed, sizes), scenario=name, seed=seed, write=write)


def run_within_limit(task: Task, sizes: Sizes, *, trace: bool = False) -> Outcome:
    """Run one; if virtual time stands still, say in which run and where, and end this process."""
    name, seed = task
    seen_s = -2.0

    def look(_signal: int, frame: FrameType | None) -> None:
        nonlocal seen_s
        before_s, seen_s = seen_s, _virtual_s()
        if seen_s != before_s:
            return
        click.echo(
            f"{name} seed {seed}: virtual time stands at {seen_s:g} s after {STANDS_MOST_S:g} s of CPU time"
        )
        traceback.print_stack(frame)
        sys.stderr.flush()
        os._exit(1)

    signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, STANDS_MOST_S, STANDS_MOST_S)
    try:
        return run_one(task, sizes, trace=trace)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _virtual_s() -> float:
    """-1: before it begins, or after it has ended."""
    try:
        return now()
    except RuntimeError:
        return -1.0


def replay_command(outcome: Outcome, sizes: Sizes) -> str:
    """The command that runs the same again and prints what happens."""
    given = {"--seconds": sizes.seconds, "--workers": sizes.workers, "--shards": sizes.shards}
    extra = "".join(starmap(" {} {:g}".format, ((name, value) for name, value in given.items() if value)))
    scenario = f"--scenario {outcome.scenario} --seeds 1 --first {outcome.seed}"
    return f"python -m tests.simulator {scenario}{extra} --trace"
