"""A `logging` handler that sends records to the daemon's log with their levels.

If the daemon does not allow it (`childLogMessages=true` sets `KCL_LOG_MESSAGES`), and outside `run`, lines go to
stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from kcl_client._run import pipes_in_use
from kcl_protocol.codec import LogLine, encode_log_line

_ALLOWED: Final = "KCL_LOG_MESSAGES"
_NAMES: Final = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))


class DaemonLogHandler(logging.Handler):
    """From any thread; the daemon adds shard, process and time.

    Set up with `logging.basicConfig(handlers=[DaemonLogHandler()], level="INFO")`.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            pipes = pipes_in_use() if os.environ.get(_ALLOWED) == "true" else None
            if pipes is None:
                sys.stderr.write(f"{record.levelname}: {text}\n")
                return
            pipes.write(b"\n" + encode_log_line(LogLine(_level(record.levelno), text)))
        except Exception:  # noqa: BLE001 - what logging's own handlers do: report it to stderr and go on
            self.handleError(record)


def _level(number: int) -> str:
    return next((name for least, name in _NAMES if number >= least), "debug")
