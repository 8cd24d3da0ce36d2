"""Commands of `kcl-daemon` that end by themselves, run in this process: a tenth of what a process of their own costs.

That the program as such starts, prints and ends right is shown by `test_cli_process` and `test_interrupts`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess

from click.testing import CliRunner

from kcl_daemon.cli import main


def run_command(
    *words: str, directory: Path, environment: Mapping[str, str], answer: str = ""
) -> CompletedProcess[str]:
    """Run a command in a folder, with nothing of AWS in its environment but what is given here."""
    dropped = {name: None for name in os.environ if name.startswith("AWS_")}
    with chdir(directory):
        done = CliRunner(env={**dropped, **environment}).invoke(
            main, words, input=answer, prog_name="kcl-daemon", catch_exceptions=False
        )
    return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
