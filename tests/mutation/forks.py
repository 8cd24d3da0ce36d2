"""Work in a process that is forked for it, within limits."""

from __future__ import annotations

import os
import resource
import select
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_MEMORY_BYTES: Final = 8 << 30
_PIECE_BYTES: Final = 1 << 16


def forked(work: Callable[[], str], *, cpu_s: int, wall_s: float) -> str | None:
    """What the work says; None if its process was ended by a limit, or ended itself.

    Args:
        work: done in the new process, with the state of this one.
        cpu_s: seconds of CPU after which it is ended, for a loop that does not end.
        wall_s: seconds on the clock without a word, for a wait that does not end.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _answer(work, writing, cpu_s)
    os.close(writing)
    try:
        return _said(reading, wall_s)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # whatever its tests have started goes with it
        os.waitpid(pid, 0)


def _answer(work: Callable[[], str], writing: int, cpu_s: int) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        said = work().encode()
        while said:
            said = said[os.write(writing, said) :]
    except BaseException:  # noqa: BLE001 - nobody is above
        traceback.print_exc()
    finally:
        os._exit(0)


def _said(reading: int, wall_s: float) -> str | None:
    pieces: list[bytes] = []
    while select.select([reading], [], [], wall_s)[0]:
        piece = os.read(reading, _PIECE_BYTES)
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces).decode() or None
