"""Ctrl-C before a command can end itself in order: the process ends with 130, without a traceback.

A module of its own, and not part of `cli`: it must be there before anything else is imported, and so it imports next to
nothing, not even `typing`.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Final, NoReturn

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


def exit_now(number: int, _frame: FrameType | None) -> NoReturn:
    """A signal handler for the time in which there is nothing to put in order, such as that of imports.

    It does not raise: within an import, or in a callback of the interpreter, an exception may show a traceback or be lost.
    """
    os._exit(128 + number)


def begin() -> None:
    """From now on Ctrl-C ends the process at once; does nothing where SIGINT is ignored or others handle it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_now)


def end() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, if `begin` has changed that."""
    if signal.getsignal(signal.SIGINT) is exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)
