from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kcl_daemon.config import services
from kcl_daemon.config.kinds import InvalidValue, Key, is_of_dynamodb, trimmed, truth
from kcl_daemon.config.properties import Notice, Problem, PropertyEntry, expanded, variable_for
from kcl_daemon.config.services import CLIENT_PREFIXES
from kcl_daemon.config.settings import BY_NAME, GONE, INERT, KEYS
from kcl_daemon.config.spark import CONF_PREFIX, REMOVED
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.text import shown

_NEAREST_CUTOFF: Final = 0.75
NAMES: Final = (*BY_NAME, *INERT, *REMOVED)
_KNOWN: Final = {name.lower(): name for name in (*BY_NAME, *INERT)}
# Java refuses unknown properties with these prefixes.
_STRICT_PREFIXES: Final = (*(f"{name}." for name in CLIENT_PREFIXES), *services.BUILDER_PREFIXES)
# Java accepts nested builders (BuilderDynaBean), but not httpClientBuilder.
_CLIENT_BUILDERS: Final = tuple(f"{name}." for name in CLIENT_PREFIXES)
_REFUSED_BUILDER: Final = "httpClientBuilder"
_NESTED: Final = "the daemon has its own timeouts, retries and connections for AWS calls"
# Of Jinja, ERB, Helm, a shell.
_TEMPLATE: Final = re.compile(r"<%|\{\{|\$\{[A-Za-z_]|(?:\A|[/._-])\$[A-Za-z_]")
_NO_TEMPLATES: Final = ("executableName", "recordFilter")
_SAME_THING: Final = {"adminToken": "adminTokenFile", "adminTokenFile": "adminToken"}
INSTEAD: Final = {
    "streamName": ("streamArn", "streamArns", "streamNames", "streamFilter", "tableName.source"),
    "executableName": ("landing", "sparkPipeline"),
}
_EXAMPLES: Final = {
    "executableName": "executableName = PROGRAM ARGUMENTS",
    "applicationName": "applicationName = NAME_OF_THE_APPLICATION",
    "streamName": "streamName = NAME_OF_THE_STREAM (or streamArn = ITS_ARN; many: streamNames, streamArns, streamFilter; "
    "a DynamoDB table: tableName.source)",
}


@dataclass(slots=True)
class Reading:
    file: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    entries: dict[str, PropertyEntry] = field(default_factory=dict[str, PropertyEntry])
    others: dict[str, PropertyEntry] = field(default_factory=dict[str, PropertyEntry])
    notices: list[Notice] = field(default_factory=list[Notice])
    problems: list[Problem] = field(default_factory=list[Problem])
    unknown: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    spark_entries: dict[str, PropertyEntry] = field(default_factory=dict[str, PropertyEntry])
    spark_conf: dict[str, str] = field(default_factory=dict[str, str])
    texts: dict[str, str] = field(default_factory=dict[str, str])

    def take(self, entry: PropertyEntry) -> None:
        key = BY_NAME.get(services.canonical_name(entry.key) or entry.key)
        if key is not None:
            if key.name == "streamName" and is_of_dynamodb(trimmed(entry.value)):
                key = BY_NAME["streamArn"]  # the adapter 1.x knows a stream by its ARN only
            self._instead_of_another(key, entry)
            self._last_wins(self.entries, key.name, entry)
        elif entry.key.startswith(CONF_PREFIX):
            self._last_wins(self.spark_entries, entry.key.removeprefix(CONF_PREFIX), entry)
        else:
            self._last_wins(self.others, entry.key, entry)

    def _instead_of_another(self, key: Key, entry: PropertyEntry) -> None:
        """A variable also overrides the other property for the same thing."""
        other = _SAME_THING.get(key.name, "")
        before = self.entries.get(other)
        if entry.variable is not None and before is not None and before.variable is None:
            del self.entries[other]
            self._note_overridden(entry, before)

    def _note_overridden(self, entry: PropertyEntry, before: PropertyEntry) -> None:
        facts: dict[str, object] = {"ignored_line": before.line, "ignored_key": shown(before.key)}
        self.notices.append(Notice("property_overridden", shown(entry.key), 0, facts, "info", entry.variable))

    def _last_wins(self, entries: dict[str, PropertyEntry], name: str, entry: PropertyEntry) -> None:
        before = entries.pop(name, None)
        entries[name] = entry
        if before is None or before.value == entry.value:
            return
        if entry.variable is not None:
            self._note_overridden(entry, before)
            return
        self._notice(
            "property_given_twice", entry, {"ignored_line": before.line, "ignored_key": shown(before.key)}
        )

    def values(self) -> dict[str, object]:
        for entry in self.others.values():
            self._other(entry)
        expands = self._expands()
        self._read_spark_conf(expands=expands)
        values: dict[str, object] = {}
        for key in KEYS:
            given = self.entries.get(key.name)
            if given is None or (key.blank_is_absent and not trimmed(given.value)):
                continue
            try:
                text = expanded(given.value, self.environment) if expands else given.value
                values[key.name] = key.kind.read(text)
            except InvalidValue as refusal:
                self._refuse(given, f"{refusal}; allowed: {key.kind.allowed}")
            else:
                self.texts[key.name] = trimmed(text)
                if why := GONE.get((key.name, trimmed(text).upper())):
                    self._notice("property_has_no_effect", given, {"why": why})
                if key.name not in _NO_TEMPLATES and _TEMPLATE.search(text):
                    self._notice("template_not_rendered", given, {"advice": _about_template(given.key, text)})
                if key.name in services.SPELLINGS:
                    self.notices += services.notices(text, key=given.key, line=given.line)
        return values

    def _refuse(self, entry: PropertyEntry, reason: str) -> None:
        self.problems.append(Problem.at(entry, reason))

    def _read_spark_conf(self, *, expands: bool) -> None:
        for name, given in self.spark_entries.items():
            try:
                text = expanded(given.value, self.environment) if expands else given.value
            except InvalidValue as refusal:
                self._refuse(given, str(refusal))
            else:
                self.spark_conf[name] = trimmed(text)

    def _expands(self) -> bool:
        given = self.entries.get("expandEnvironment")
        try:
            return given is not None and truth().read(given.value)
        except InvalidValue:
            return False

    def _other(self, entry: PropertyEntry) -> None:
        if entry.key in REMOVED:
            self._refuse(entry, REMOVED[entry.key])
            return
        why = INERT.get(entry.key) or (_NESTED if _is_nested(entry.key) else None)
        if why is not None:
            self._notice("property_has_no_effect", entry, {"why": why})
            return
        nearest = nearest_name(entry.key)
        if entry.key.startswith(_STRICT_PREFIXES):
            meant = "" if nearest is None else f"; {nearest} is"
            self._refuse(entry, f"not a known property, and the Java daemon refuses it{meant}")
            return
        if nearest is not None:
            self.unknown[nearest] = (shown(entry.key), entry.line)
        self._notice("unknown_property", entry, {} if nearest is None else {"nearest": nearest})

    def _notice(self, event: str, entry: PropertyEntry, facts: Mapping[str, object]) -> None:
        self.notices.append(Notice(event, shown(entry.key), entry.line, facts, variable=entry.variable))

    def check_required(self, values: Mapping[str, object]) -> None:
        written = (services.canonical_name(each.key or "") or each.key for each in self.problems)
        bad = {BY_NAME[key].name for key in written if key in BY_NAME}
        for key in KEYS:
            enough = (key.name, *INSTEAD.get(key.name, ()))
            if not key.required or any(each in values or each in bad for each in enough):
                continue
            reason = f"is missing; add a line: {_EXAMPLES[key.name]}"
            if key.name in self.unknown:
                spelling, line = self.unknown[key.name]
                reason += f" (line {line} has {spelling}, which is not the same)"
            self.problems.append(Problem(reason, key.name))

    def in_order(self) -> tuple[Notice, ...]:
        located = (
            replace(each, variable=self._variable(each.key)) if each.variable is None else each
            for each in self.notices
        )
        return tuple(sorted(located, key=lambda each: each.line))

    def failure(self) -> ConfigurationError:
        located = (
            replace(each, variable=each.variable or self._variable(each.key)) if each.line == 0 else each
            for each in map(self._template_or, self.problems)
        )
        ordered = sorted(located, key=lambda each: (each.line is None, each.line or 0))
        return ConfigurationError("\n".join(each.rendered(self.file) for each in ordered))

    def _template_or(self, problem: Problem) -> Problem:
        key, text = problem.key, problem.value or ""
        if key is None or not _TEMPLATE.search(text) or ("${" in text and self._expands()):
            return problem
        return replace(
            problem, reason=f"this is a template, and here it is plain text: {_about_template(key, text)}"
        )

    def _variable(self, key: str | None) -> str | None:
        entry = self.entries.get(key or "")
        return None if entry is None else entry.variable


def _about_template(key: str, text: str) -> str:
    more = ", or add expandEnvironment = true" if "${" in text else ""
    return f"render the file, or set {variable_for(key)}{more}"


def _is_nested(key: str) -> bool:
    steps = key.split(".")
    return key.startswith(_CLIENT_BUILDERS) and len(steps) > 2 and steps[1] != _REFUSED_BUILDER


def nearest_name(key: str) -> str | None:
    found = difflib.get_close_matches(key[:100].lower(), _KNOWN, n=1, cutoff=_NEAREST_CUTOFF)
    return _KNOWN[found[0]] if found else None
