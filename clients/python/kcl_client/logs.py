"""A handler for `logging` that sends records to the daemon's log with their levels.

Only where the daemon allows it (`childLogMessages=true`, told by `KCL_LOG_MESSAGES`); else, and outside of `run`, lines go to
stderr, as they would without it. A module of its own, so that who does not log does not load `logging`.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from kcl_client._run import pipes_in_use
from kcl_protocol import LogLine, encode_log_line

_ALLOWED: Final = "KCL_LOG_MESSAGES"
_NAMES: Final = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))


class DaemonLogHandler(logging.Handler):
    """Sends each record as one `log` message; use it as any handler, from any thread.

    `logging.basicConfig(handlers=[DaemonLogHandler()], level="INFO")` is all there is to do. The daemon adds shard and
    process to each line and has a time of its own, so a format needs neither.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Send it, or write it to stderr; never raises, as `logging` wants it."""
        try:
            text = self.format(record)
            pipes = pipes_in_use() if os.environ.get(_ALLOWED) == "true" else None
            if pipes is None:
                sys.stderr.write(f"{record.levelname}: {text}\n")
                return
            # A line of its own whatever stands before it.
            pipes.write(b"\n" + encode_log_line(LogLine(_level(record.levelno), text)))
        except Exception:  # noqa: BLE001 - what logging's own handlers do: report it to stderr and go on
            self.handleError(record)


def _level(number: int) -> str:
    return next((name for least, name in _NAMES if number >= least), "debug")
