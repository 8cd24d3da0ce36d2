"""Ctrl-C before a command can end in order: exit code 130, no traceback.

Must run before everything else is imported, so it imports almost nothing, not even `typing`.
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
    """A signal handler for when there is nothing to clean up, as during imports.

    It does not raise: during an import an exception may show a traceback or be lost.
    """
    os._exit(128 + number)


def begin() -> None:
    """Make Ctrl-C end the process at once, unless SIGINT is ignored or handled already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_now)


def end() -> None:
    """Undo `begin`: Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)
