from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from kcl_daemon.ports import Log

LogLevel = Literal["debug", "info", "warning", "error"]

# The words of people and of Python's logging.
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
    """In any case; None: no level has that name."""
    return _WORDS.get(word.strip().lower())


def at_level(log: Log, level: LogLevel) -> Callable[..., object]:
    """`at_level(log, level)("event", field=1)`."""
    return {"debug": log.debug, "info": log.info, "warning": log.warning, "error": log.error}[level]
