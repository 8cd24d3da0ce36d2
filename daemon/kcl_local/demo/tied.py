"""Runs a program that dies with its parent: `tied.py PARENT_PID PROGRAM ARGUMENT...`.

It asks the kernel to kill it with its parent (prctl, on Linux only), then becomes the program. It imports
nothing of ours, to start fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # prctl(2); kept across execve(2)


def die_with(parent: int) -> bool:
    """False if the parent is already gone."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if not die_with(parent):
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main()
