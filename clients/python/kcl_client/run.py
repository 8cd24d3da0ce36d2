"""A child of the daemon that calls a function with each record.

As a program only: `kcl_client.run` is the function of that name, which an import would replace.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from kcl_client._function import CannotRun, Shape, Takes, UserFunction, shape_of
from kcl_client._processor import AsyncRecordProcessor
from kcl_client._run import run
from kcl_client._target import load
from kcl_client._timed import CHECKPOINT_EVERY_S

# A process of multiprocessing reads the main program again, as "__mp_main__".
if __name__ not in {"__main__", "__mp_main__"}:
    raise ImportError(
        "kcl_client.run is a program and a function: start `python -m kcl_client.run MODULE:FUNCTION`, or write "
        "`from kcl_client import run`"
    )

_EXIT_USAGE: Final = 2


def _options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kcl_client.run",
        description="Calls a function with each record of a shard. kcl-daemon starts it: executableName = python3 -m "
        "kcl_client.run consumer:handle",
        allow_abbrev=False,
    )
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="Also PATH/FILE.py:FUNCTION.")
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="How many calls of an `async def` run at once."
    )
    parser.add_argument(
        "--checkpoint-every",
        type=float,
        default=CHECKPOINT_EVERY_S,
        metavar="SECONDS",
        help="Default: %(default)g.",
    )
    parser.add_argument("--check", action="store_true", help="Only say whether it can be run, as JSON.")
    options = parser.parse_args(words)
    if options.concurrency is not None and options.concurrency < 1:
        parser.error("--concurrency must be at least 1")
    if not options.checkpoint_every > 0:
        parser.error("--checkpoint-every must be above 0")
    return options


def _main() -> None:
    options = _options()
    if options.check:
        _check(options.target)
        return
    try:
        function = load(options.target)
        shape = shape_of(function)
        _serve(function, shape, options)
    except CannotRun as error:
        _refuse(error)


def _serve(function: UserFunction, shape: Shape, options: argparse.Namespace) -> None:
    from kcl_client._function_processors import processor_of

    processor = processor_of(function, checkpoint_every_s=options.checkpoint_every)
    if not isinstance(processor, AsyncRecordProcessor):
        if options.concurrency not in {None, 1}:
            advice = "make it `async def`, or set shardConcurrency, which starts more children"
            raise CannotRun(f"{shape.name} cannot run concurrently; {advice}", where=shape.where)
        run(processor)
    elif shape.takes is Takes.BATCH:
        if options.concurrency not in {None, 1}:
            raise CannotRun(
                f"{shape.name} takes a Batch; concurrency needs one that takes a record", where=shape.where
            )
        run(processor)
    else:
        run(processor, concurrency=options.concurrency, checkpoint_every_s=options.checkpoint_every)


def _check(target: str) -> None:
    """One line of JSON on stdout; what the user's module prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while it imports must be quiet
    answer = os.dup(1)
    os.dup2(2, 1)
    from kcl_client._example import example_of
    from kcl_client._function_processors import processor_of

    try:
        function = load(target)
        shape = shape_of(function)
        processor_of(function)
    except CannotRun as error:
        os.write(answer, json.dumps({"problem": str(error)}).encode() + b"\n")
        _refuse(error)
    said = {
        "takes": shape.takes.value,
        "is_async": shape.is_async,
        "where": shape.where,
        "example": example_of(shape),
    }
    os.write(answer, json.dumps(said).encode() + b"\n")


def _refuse(error: CannotRun) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(f"{error.trace}{error}\n")
    sys.exit(_EXIT_USAGE)


if __name__ == "__main__":
    _main()
