"""Ties a program's life to that of the process that starts it: `tied.py PARENT_PID PROGRAM ARGUMENT...`.

Becomes the program (same process id), after asking the kernel to kill it as soon as its parent has ended, however that
came about. For the demo's daemons: when the demo itself is killed, its endpoints end with their data, and nothing is
left to save. A file of its own that imports nothing of ours, run by path without `site`, so that it costs few ms.
Where there is no prctl (not Linux) it only becomes the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # prctl(2); kept across execve(2)


def die_with(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends; False where that has already happened."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def main() -> None:
    """Become the program; exit code 1 where the parent is gone already."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if not die_with(parent):
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main()
