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

from tests.simulator.draws import Sizes
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.scenarios import draw_plan

# A hundred times what a run takes.
RUN_MOST_S: Final = 300.0
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

    def give_up(_signal: int, frame: FrameType | None) -> None:
        click.echo(f"{name} seed {seed}: no end after {RUN_MOST_S:g} s of CPU time")
        traceback.print_stack(frame)
        sys.stderr.flush()
        os._exit(1)

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, RUN_MOST_S)
    try:
        return run_one(task, sizes, trace=trace)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def replay_command(outcome: Outcome, sizes: Sizes) -> str:
    """The command that runs the same again and prints what happens."""
    given = {"--seconds": sizes.seconds, "--workers": sizes.workers, "--shards": sizes.shards}
    extra = "".join(starmap(" {} {:g}".format, ((name, value) for name, value in given.items() if value)))
    scenario = f"--scenario {outcome.scenario} --seeds 1 --first {outcome.seed}"
    return f"python -m tests.simulator {scenario}{extra} --trace"
