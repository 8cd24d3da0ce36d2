"""Which events are logged: one level for all, others for single components (`INFO,kcl_daemon.retrieval=DEBUG`).

A component is a package or module of the daemon; the deepest one that is named counts. Owns the reading of such a text
and the logger that goes by it. Knows nothing of where lines go.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import structlog

import kcl_daemon
from kcl_daemon.config.log_settings import LogLevel, level_of

Threshold = LogLevel | Literal["off"]
"""The lowest level that is written; `off`: none is."""

_ROOT: Final = "kcl_daemon"
# A log that counts what passes through it; who speaks is its caller.
_COUNTS: Final = "kcl_daemon.metrics.events"
_NUMBERS: Final[dict[Threshold, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL,  # nothing here is logged at it
}


@dataclass(frozen=True, slots=True)
class Levels:
    """What is logged.

    Args:
        root: of all components that are not named.
        components: of single ones, by their full names.
    """

    root: Threshold = "info"
    components: Mapping[str, Threshold] = field(default_factory=dict[str, Threshold])

    def number_of(self, module: str) -> int:
        """The lowest level, as the standard library counts, that a module may log at."""
        name = module
        while name:
            if name in self.components:
                return _NUMBERS[self.components[name]]
            name = name.rpartition(".")[0]
        return _NUMBERS[self.root]


def threshold_of(word: str) -> Threshold | None:
    """The threshold that a word means, in any case; None where it is none."""
    return "off" if word.strip().lower() == "off" else level_of(word)


def parse_levels(text: str) -> Levels:
    """The levels of a text: a level for all, `COMPONENT=LEVEL` for single ones, in any order, separated by commas.

    Raises:
        ValueError: says which part cannot be meant, and what can.
    """
    root: Threshold = "info"
    components: dict[str, Threshold] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, word = part.rpartition("=")
        threshold = threshold_of(word)
        if threshold is None:
            raise ValueError(f"{part!r}: no such level; levels are debug, info, warning, error, off")
        if not equals:
            root = threshold
        else:
            components[component(name)] = threshold
    return Levels(root, components)


def component(name: str) -> str:
    """The full name of a component; `kcl_daemon.` may be left out.

    Raises:
        ValueError: there is no such component; says which there are.
    """
    words = name.strip().split(".")
    inner = words[1:] if words[0] == _ROOT else words
    if not exists(".".join(inner)):
        raise ValueError(f"{name.strip()!r}: no such component; there are {', '.join(_packages())}")
    return ".".join((_ROOT, *inner))


def exists(inner: str) -> bool:
    """Whether the daemon has a package or module of this name, written without `kcl_daemon.`; the daemon itself is ''."""
    words = inner.split(".") if inner else []
    if not all(word.isidentifier() for word in words):
        return False
    place = Path(kcl_daemon.__path__[0], *words)
    return place.is_dir() or place.with_suffix(".py").is_file()


def _packages() -> list[str]:
    """The components that one can do with: the packages."""
    return sorted(path.parent.name for path in Path(kcl_daemon.__path__[0]).glob("*/__init__.py"))


def logger_class(levels: Levels) -> type[Any]:
    """The class of structlog's loggers that log what is wanted and drop everything else at once.

    Where single components are named, the module that calls is looked up: half a microsecond for a call that is dropped,
    and no logger has to be told whose it is.
    """
    thresholds = (levels.root, *levels.components.values())
    lowest = min(_NUMBERS[each] for each in thresholds)
    if not levels.components:
        return structlog.make_filtering_bound_logger(lowest)
    return type("ComponentLogger", (_ComponentLogger,), {"lowest": lowest, "levels": levels, "known": {}})


class _ComponentLogger(structlog.BoundLoggerBase):
    """The methods of the Log port, by the level of the module that calls them."""

    lowest: int
    levels: Levels
    known: dict[str, int]

    def debug(self, event: str, /, **fields: object) -> object:
        return self._say(logging.DEBUG, "debug", event, fields)

    def info(self, event: str, /, **fields: object) -> object:
        return self._say(logging.INFO, "info", event, fields)

    def warning(self, event: str, /, **fields: object) -> object:
        return self._say(logging.WARNING, "warning", event, fields)

    def error(self, event: str, /, **fields: object) -> object:
        return self._say(logging.ERROR, "error", event, fields)

    def _say(self, number: int, method: str, event: str, fields: dict[str, object]) -> object:
        if number < self.lowest:
            return None
        caller = sys._getframe(2)  # noqa: SLF001 - what logging does for its callers
        module = str(caller.f_globals.get("__name__", ""))
        if module == _COUNTS and caller.f_back is not None:
            module = str(caller.f_back.f_globals.get("__name__", ""))
        threshold = self.known.get(module)
        if threshold is None:
            threshold = self.known[module] = self.levels.number_of(module)
        return self._proxy_to_logger(method, event, **fields) if number >= threshold else None
