"""Logging at a level that a setting or a child chooses.

What is always said at one level calls the method of `ports.Log` itself.
"""

from __future__ import annotations

from collections.abc import Callable

from kcl_daemon.config.log_settings import LogLevel
from kcl_daemon.ports import Log


def at_level(log: Log, level: LogLevel) -> Callable[..., object]:
    """The log's method of that level: `at_level(log, level)("event", field=1)`."""
    match level:
        case "debug":
            return log.debug
        case "info":
            return log.info
        case "warning":
            return log.warning
        case "error":
            return log.error
