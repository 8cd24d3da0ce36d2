"""`python -m tests.proof.last COMMAND`: runs it after all else on this machine, and prints what it said when it is over.

It has a session of its own, which is what Linux weighs. Ended with whoever waits for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from tests.proof.running import give_way


def run(command: Sequence[str]) -> int:
    """Its exit code."""
    with TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            give_way(process.pid)
            return process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout.buffer)
            sys.stdout.flush()


if __name__ == "__main__":
    for each in (signal.SIGTERM, signal.SIGINT):  # a shell lets what is in its background ignore it
        signal.signal(each, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))
