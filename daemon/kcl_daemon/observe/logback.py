"""What a logback file of the Java daemon means here: the levels of KCL's packages, and where lines go.

Pure. Owns which of KCL's packages do what which of ours does. All else in such a file (patterns, filters, rolling,
loggers of other libraries) is passed over and named, so that one note can tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from xml.etree import ElementTree  # nosec B405

from kcl_daemon.observe.levels import Levels, Threshold, exists, threshold_of

Element = ElementTree.Element
Stream = Literal["stdout", "stderr"]

_EVERYTHING: Final = ("",)
_MULTILANG: Final = ("children", "cli", "config", "consumer.dialogue", "spark")
_RETRIEVAL: Final = ("retrieval", "transport")
# KCL's packages, of 2.x and 3.x and of 1.x, and which of our components do the same.
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "software.amazon": _EVERYTHING,
    "software.amazon.kinesis": _EVERYTHING,
    "software.amazon.kinesis.checkpoint": ("consumer.checkpointer",),
    "software.amazon.kinesis.coordinator": ("coordination", "worker"),
    "software.amazon.kinesis.leader": ("coordination.elector",),
    "software.amazon.kinesis.leases": ("coordination",),
    "software.amazon.kinesis.leases.dynamodb": ("coordination",),
    "software.amazon.kinesis.lifecycle": ("consumer",),
    "software.amazon.kinesis.metrics": ("metrics", "observe"),
    "software.amazon.kinesis.multilang": _MULTILANG,
    "software.amazon.kinesis.multilang.config": ("config",),
    "software.amazon.kinesis.retrieval": _RETRIEVAL,
    "software.amazon.kinesis.retrieval.fanout": ("retrieval.fanout", "retrieval.fanout_consumer"),
    "software.amazon.kinesis.retrieval.polling": ("retrieval.prefetch",),
    "software.amazon.kinesis.worker": ("cpu",),
    "com.amazonaws.services.kinesis": _EVERYTHING,
    "com.amazonaws.services.kinesis.clientlibrary": _EVERYTHING,
    "com.amazonaws.services.kinesis.clientlibrary.lib.worker": ("consumer", "coordination", "worker"),
    "com.amazonaws.services.kinesis.leases": ("coordination",),
    "com.amazonaws.services.kinesis.metrics": ("metrics", "observe"),
    "com.amazonaws.services.kinesis.multilang": _MULTILANG,
}
_VERBOSITY: Final[tuple[Threshold, ...]] = ("off", "error", "warning", "info", "debug")
_READ_IN_APPENDER: Final = frozenset({"target", "file", "append"})
_READ_AT_TOP: Final = frozenset({"root", "logger", "appender", "property", "variable"})
_VARIABLE: Final = re.compile(r"\$\{(?P<name>[^${}:]+)(?::-(?P<default>[^${}]*))?\}")


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file that lines go to.

    Args:
        path: of the file.
        append: whether what is in it stays.
    """

    path: str
    append: bool = True


@dataclass(frozen=True, slots=True)
class LogConfiguration:
    """What is understood of a file.

    Args:
        levels: what is logged.
        targets: where lines go; empty where the file names nothing that is known here.
        passed_over: what else is in the file, each once.
    """

    levels: Levels
    targets: tuple[Stream | FileTarget, ...]
    passed_over: tuple[str, ...]


def read_logback(text: str, environment: Mapping[str, str]) -> LogConfiguration:
    """The meaning of a file.

    Args:
        text: the file.
        environment: for `${NAME}`, beside the properties of the file itself.

    Raises:
        ValueError: it is not XML, or not a logback file; says which.
    """
    # The one way by which XML can be large or reach other files. The text is decoded, so there is one way to write it.
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("it has a document type, which a logback file does not need; remove it")
    try:
        # Without a document type it is only text.
        top = ElementTree.fromstring(text.lstrip("\ufeff"))  # noqa: S314 # nosec B314
    except ElementTree.ParseError as error:
        raise ValueError(f"it is not XML: {error}") from None
    if top.tag != "configuration":
        raise ValueError(f"it is not a logback file: it begins with <{top.tag}>, not with <configuration>")
    return _Reading(top, environment).configuration()


class _Reading:
    """One file while it is read.

    Args:
        top: `<configuration>`.
        environment: for variables.
    """

    def __init__(self, top: Element, environment: Mapping[str, str]) -> None:
        self._top = top
        given = {
            each.get("name", ""): each.get("value", "")
            for tag in ("property", "variable")
            for each in top.iter(tag)
        }
        self._variables = {**environment, **given}
        self._passed_over: dict[str, None] = {}

    def configuration(self) -> LogConfiguration:
        """All of it."""
        for child in self._top:
            if child.tag not in _READ_AT_TOP:
                self._pass_over(f"<{child.tag}>")
        levels = self._levels()
        targets = self._targets()
        return LogConfiguration(levels, targets, tuple(self._passed_over))

    def _levels(self) -> Levels:
        root: Threshold = "info"
        for each in self._top.iter("root"):
            root = self._level(each) or root
        # Of two packages that one component stands for the deeper one counts, else the more talkative one.
        found: dict[str, tuple[int, int, Threshold]] = {}
        for each in self._top.iter("logger"):
            name, level = each.get("name", "").strip(), self._level(each)
            if name not in PACKAGES:
                self._pass_over(f"logger {name}")
            elif level is not None:
                rank = (name.count("."), _VERBOSITY.index(level), level)
                for inner in filter(exists, PACKAGES[name]):
                    component = f"kcl_daemon.{inner}".rstrip(".")
                    found[component] = max(rank, found.get(component, rank))
            if name in PACKAGES and each.find("appender-ref") is not None:
                self._pass_over(f"appender-ref of logger {name}")
        return Levels(root, {component: rank[2] for component, rank in sorted(found.items())})

    def _level(self, element: Element) -> Threshold | None:
        inner = element.find("level")
        given = element.get("level") or (None if inner is None else inner.get("value"))
        word = self._filled(given or "").strip()
        if not word or word.upper() in {"INHERITED", "NULL"}:
            return None
        level = threshold_of(word)
        if level is None:
            self._pass_over(f"level {word}")
        return level

    def _targets(self) -> tuple[Stream | FileTarget, ...]:
        appenders = {each.get("name", ""): each for each in self._top.iter("appender")}
        wanted = [
            each.get("ref", "") for root in self._top.iter("root") for each in root.iter("appender-ref")
        ]
        targets: dict[Stream | FileTarget, None] = {}
        for name in wanted:
            target = self._target(name, appenders.get(name))
            if target is not None:
                targets[target] = None
        for name in appenders.keys() - set(wanted):
            self._pass_over(f"appender {name}, which the root logger does not use")
        return tuple(targets)

    def _target(self, name: str, appender: Element | None) -> Stream | FileTarget | None:
        kind = "" if appender is None else appender.get("class", "").rpartition(".")[2]
        if appender is None or kind not in {"ConsoleAppender", "FileAppender", "RollingFileAppender"}:
            self._pass_over(f"appender {name} of class {kind or 'unknown'}")
            return None
        for child in appender:
            if child.tag not in _READ_IN_APPENDER:
                self._pass_over(f"<{child.tag}> of appender {name}")
        if kind == "ConsoleAppender":
            return (
                "stderr"
                if self._filled(appender.findtext("target", "")).strip() == "System.err"
                else "stdout"
            )
        path = self._filled(appender.findtext("file", "")).strip()
        if not path or "$" in path:
            self._pass_over(f"appender {name}: no file that is known at the start")
            return None
        return FileTarget(path, appender.findtext("append", "true").strip().lower() != "false")

    def _filled(self, text: str) -> str:
        """The text with its variables replaced; those that nobody knows stay as they are."""

        def value(match: re.Match[str]) -> str:
            otherwise = match[0] if match["default"] is None else match["default"]
            return self._variables.get(match["name"], otherwise)

        return _VARIABLE.sub(value, text)

    def _pass_over(self, what: str) -> None:
        self._passed_over[what] = None
