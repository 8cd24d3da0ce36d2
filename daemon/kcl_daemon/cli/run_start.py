"""`kcl-daemon run STREAM MODULE:FUNCTION`: endpoints, check of the function, the daemon or its restarts."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

import click

from kcl_daemon.cli.run import RunRequest
from kcl_daemon.cli.run_function import check_function, lines_of, loaded_from, python_word, run_function
from kcl_daemon.cli.run_local import local_endpoints, use_local
from kcl_daemon.cli.run_options import FunctionOptions
from kcl_daemon.system import SystemRandomness

_READ_BYTES: Final = 4096
_A_RECORD: Final = '{"n": 1}'


def start(
    stream: str, target: str, options: FunctionOptions, request: RunRequest, *, log_words: list[str]
) -> NoReturn:
    if ":" not in target:
        raise click.UsageError(f"{target} is not MODULE:FUNCTION, nor may there be a second properties file")
    _refuse_contradictions(stream, options)
    printed = options.print_properties
    with ExitStack() as stack:
        local = stack.enter_context(local_endpoints()) if options.local and not printed else None
        checked = check_function(target)
        lines = lines_of(stream, target, options, checked, python_word(sys.executable))
        if local is not None:
            use_local(local, stream, options.shards, checked.example or _A_RECORD)
        if options.reload:
            from kcl_daemon.cli.run_reload import run_reloading  # few need it

            sys.exit(run_reloading(stream, target, options, log_words))
        if options.until_eof:
            _end_with_stdin()
        token = SystemRandomness().token().replace("-", "")[:12]
        load = partial(
            loaded_from, worker_id=f"{socket.gethostname() or 'worker'}-{token}", environment=os.environ
        )
        asked = replace(options, local=False, shards=None, print_properties=False)
        headline = shlex.join(["kcl-daemon", "run", stream, target, *asked.words()])
        run_function(
            request, lines, load, printed_as=headline if printed else None, is_local=local is not None
        )
    raise AssertionError("it has ended the process")


def _refuse_contradictions(stream: str, options: FunctionOptions) -> None:
    if options.local and stream.startswith("arn:"):
        raise click.UsageError("--local makes a stream of its own: give its name, not an ARN")
    if options.shards is not None and not options.local:
        raise click.UsageError("--shards is for the stream that --local makes")
    if options.reload and options.print_properties:
        raise click.UsageError("--print-properties ends at once, so --reload has no effect")


def _end_with_stdin() -> None:
    """Stop gracefully when whoever started this has ended, even by SIGKILL."""

    def wait() -> None:
        while os.read(0, _READ_BYTES):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="until-eof").start()
