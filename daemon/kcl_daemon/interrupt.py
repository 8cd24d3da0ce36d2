"""Until a command handles Ctrl-C itself, Ctrl-C ends it with exit code 130 and no traceback.

It must run before other imports, so it imports almost nothing, not even `typing`.
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
    """For when there is nothing to clean up. During imports an exception may be shown or lost."""
    os._exit(128 + number)


def begin() -> None:
    """Ctrl-C ends the process at once, unless SIGINT is ignored or handled."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_now)


def end() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is exit_now:
        signal.signal(signal.SIGINT, signal.default_int_handler)
