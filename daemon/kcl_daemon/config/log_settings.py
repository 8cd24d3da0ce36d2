"""Levels of the log, as settings and children name them.

Pure.
"""

from __future__ import annotations

from typing import Final, Literal

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
