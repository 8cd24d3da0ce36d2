"""Logging at a level that a setting or a child chooses.

What is always said at one level calls the method of `ports.Log` itself.

Levels of the log, as settings and children name them.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from kcl_daemon.ports import Log

LogLevel = Literal["debug", "info", "warning", "error"]

# What people and Python's logging write, to what there is here.
_WORDS: Final[dict[str, LogLevel]] = {
    "all": "debug",
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "critical": "error",
    "fatal": "error",
}


def level_of(word: str) -> LogLevel | None:
    """The level that a word means, in any case; None where it is none."""
    return _WORDS.get(word.strip().lower())


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
