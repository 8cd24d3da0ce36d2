"""Making sense of the entries of a properties file one by one, and collecting what has to be said about them.

Pure. Owns which entry counts, what is unknown and what is missing; `checks` compares values with each other.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.config import credentials, properties
from kcl_daemon.config.inert import INERT, Inert
from kcl_daemon.config.keys import BY_NAME, KEYS, STREAM_ARN, STREAM_NAME
from kcl_daemon.config.kinds import Refused, trimmed
from kcl_daemon.config.notices import Notice, Problem
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.redact import shown

_NEAREST_CUTOFF: Final = 0.75
_KNOWN: Final = {name.lower(): name for name in (*BY_NAME, *INERT, *credentials.SPELLINGS)}
_EXAMPLES: Final = {
    "executableName": "executableName = PROGRAM ARGUMENTS",
    "applicationName": "applicationName = NAME_OF_THE_APPLICATION",
    "streamName": "streamName = NAME_OF_THE_STREAM (or streamArn = ITS_ARN)",
}


@dataclass(slots=True)
class Reading:
    """What has been found in one file so far.

    Attributes:
        file: its name, printable.
        entries: of the properties that are acted on, by canonical name.
        others: all the rest; of credentials by canonical name.
        notices: what to log.
        problems: what keeps the daemon from starting.
        unknown: by the known name that it resembles, an unknown key and its line.
    """

    file: str
    entries: dict[str, properties.Entry] = field(default_factory=dict[str, properties.Entry])
    others: dict[str, properties.Entry] = field(default_factory=dict[str, properties.Entry])
    notices: list[Notice] = field(default_factory=list[Notice])
    problems: list[Problem] = field(default_factory=list[Problem])
    unknown: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    def take(self, entry: properties.Entry) -> None:
        """Put an entry where it belongs; of two entries for one property the later one counts."""
        key = BY_NAME.get(entry.key)
        if key is not None:
            self._last_wins(self.entries, key.name, entry)
        elif (name := credentials.canonical_name(entry.key)) is not None:
            self._last_wins(self.others, name, entry)
        else:
            self._last_wins(self.others, entry.key, entry)

    def _last_wins(self, entries: dict[str, properties.Entry], name: str, entry: properties.Entry) -> None:
        before = entries.pop(name, None)
        entries[name] = entry
        if before is not None and before.value != entry.value:
            facts = {"ignored_line": before.line, "ignored_key": shown(before.key)}
            self.notices.append(Notice("property_given_twice", shown(entry.key), entry.line, facts))

    def values(self) -> dict[str, object]:
        """The value of each key that has a good one, in the order of the table."""
        for name, entry in self.others.items():
            self._other(name, entry)
        values: dict[str, object] = {}
        for key in KEYS:
            given = self.entries.get(key.name)
            if given is None or (key.blank_is_absent and not trimmed(given.value)):
                continue
            try:
                values[key.name] = key.kind.read(given.value)
            except Refused as refusal:
                reason = f"{refusal}; allowed: {key.kind.allowed}"
                self.problems.append(Problem(reason, given.key, given.value, given.line))
        return values

    def _other(self, name: str, entry: properties.Entry) -> None:
        if name in credentials.SPELLINGS:
            try:
                self.notices += credentials.read(entry.value, key=entry.key, line=entry.line)
            except Refused as refusal:
                self.problems.append(Problem(str(refusal), entry.key, entry.value, entry.line))
        elif name in INERT:
            self._inert(INERT[name], entry)
        else:
            self._unknown(entry)

    def _inert(self, inert: Inert, entry: properties.Entry) -> None:
        if trimmed(entry.value).lower() in inert.already_so:
            return
        event = "property_has_no_effect" if inert.never else "property_not_supported_yet"
        self.notices.append(Notice(event, inert.name, entry.line, {"why": inert.why}))

    def _unknown(self, entry: properties.Entry) -> None:
        nearest = nearest_name(entry.key)
        if nearest is not None:
            self.unknown[nearest] = (shown(entry.key), entry.line)
        facts = {} if nearest is None else {"nearest": nearest}
        self.notices.append(Notice("unknown_property", shown(entry.key), entry.line, facts))

    def look_for_missing(self, values: Mapping[str, object]) -> None:
        """A problem for each required key that is absent; one with a bad value has its problem already."""
        bad = {BY_NAME[each.key].name for each in self.problems if each.key in BY_NAME}
        for key in KEYS:
            if not key.required or key.name in values or key.name in bad:
                continue
            if key is STREAM_NAME and (STREAM_ARN.name in values or STREAM_ARN.name in bad):
                continue
            reason = f"is missing; add a line: {_EXAMPLES[key.name]}"
            if key.name in self.unknown:
                spelling, line = self.unknown[key.name]
                reason += f" (line {line} has {spelling}, which is not the same)"
            self.problems.append(Problem(reason, key.name))

    def in_order(self) -> tuple[Notice, ...]:
        """All notices, by line."""
        return tuple(sorted(self.notices, key=lambda each: each.line))

    def failure(self) -> ConfigurationError:
        """All problems, by line; those without one come last."""
        ordered = sorted(self.problems, key=lambda each: (each.line is None, each.line or 0))
        return ConfigurationError("\n".join(each.rendered(self.file) for each in ordered))


def nearest_name(key: str) -> str | None:
    """The known property that a misspelt one most looks like, if any."""
    found = difflib.get_close_matches(key[:100].lower(), _KNOWN, n=1, cutoff=_NEAREST_CUTOFF)
    return _KNOWN[found[0]] if found else None
