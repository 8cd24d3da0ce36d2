from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import click

from kcl_daemon.config import services
from kcl_daemon.config.load import FILE_BYTES_MAX, EffectiveProperty
from kcl_daemon.config.properties import LINE_END, MalformedProperties, PropertyEntry, parse
from kcl_daemon.config.settings import BY_NAME
from kcl_daemon.text import shown

Level = Literal["error", "warning", "info"]

_COLOURS: Final[Mapping[Level, str]] = {"error": "red", "warning": "yellow", "info": "cyan"}
_COLUMNS_MOST: Final = 120
_VALUE_COLUMNS: Final = 48
_CUT: Final = "..."
_ENTRY: Final = re.compile(r"(?P<indent>[ \t\f]*)(?P<key>[^ \t\f:=]+)(?P<between>[ \t\f]*[=:]?[ \t\f]*)")
_MARK_OF_UTF_8: Final = "\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Source:
    file: str
    lines: Sequence[str] = ()
    entries: Mapping[int, PropertyEntry] = field(default_factory=dict[int, PropertyEntry])

    @staticmethod
    def of(path: Path, file: str) -> Source:
        """Nothing is quoted of a file that cannot be read, or from a malformed entry on."""
        try:
            with path.open("rb") as stream:
                data = stream.read(FILE_BYTES_MAX)
        except (OSError, ValueError):
            return Source(file)
        entries: dict[int, PropertyEntry] = {}
        with suppress(MalformedProperties):
            entries.update((entry.line, entry) for entry in parse(data))
        return Source(file, LINE_END.split(data.decode("iso-8859-1")), entries)

    def quoted(self, sentence: str) -> tuple[str, str] | None:
        found = re.match(rf"{re.escape(self.file)}:(\d+): (?:(?:info|warning): )?", sentence)
        entry = self.entries.get(int(found[1])) if found else None
        if found is None or entry is None:
            return None
        given_again = sentence.startswith(f"{shown(entry.key)} is given again", found.end())
        return self._marked(entry, about_key=given_again)

    def _marked(self, entry: PropertyEntry, *, about_key: bool) -> tuple[str, str]:
        """The value of an unknown key is not shown: it may be a secret."""
        number = f"{entry.line:>4} | "
        indent, key, between = self._written(entry)
        is_known = (services.canonical_name(entry.key) or entry.key) in BY_NAME
        value = shown(entry.value, name=entry.key) if is_known else _CUT
        before = f"{indent}{key}{between}"
        text, start, length = f"{before}{value}", len(before), len(value)
        if about_key or not is_known:
            start, length = len(indent), len(key)
        if len(text) > _COLUMNS_MOST:
            text = f"{text[:_COLUMNS_MOST]}{_CUT}"
            start = min(start, _COLUMNS_MOST)
        marks = "^" * max(1, min(length, _COLUMNS_MOST - start))
        return f"{number}{text}", f"{' ' * (len(number) - 2)}| {' ' * start}{marks}"

    def _written(self, entry: PropertyEntry) -> tuple[str, str, str]:
        line = self.lines[entry.line - 1].removeprefix(_MARK_OF_UTF_8)
        found = _ENTRY.match(line)
        if found is None or "\\" in line:
            return "", shown(entry.key), " = "
        return _blank(found["indent"]), shown(found["key"]), _blank(found["between"])


def _blank(text: str) -> str:
    return re.sub(r"[\t\f]", " ", text)


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours for a terminal, unless NO_COLOR is set (no-color.org)."""

    on: bool

    @staticmethod
    def of(stream: TextIO) -> Ink:
        return Ink(stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def __call__(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self.on and text else text


def explained(sentence: str, level: Level, source: Source, ink: Ink) -> Iterator[str]:
    colour = _COLOURS[level]
    where, colon, rest = sentence.partition(": ")
    toned = rest.replace(f"{level}:", ink(f"{level}:", fg=colour, bold=True), 1)
    yield f"{ink(where, bold=True)}{colon}{ink(rest, fg=colour) if level == 'error' else toned}"
    quoted = source.quoted(sentence)
    if quoted is not None:
        line, marks = quoted
        yield line
        yield ink(marks, fg=colour, bold=True)


def table(rows: Sequence[EffectiveProperty], ink: Ink) -> Iterator[str]:
    key_width = max((len(each.key) for each in rows), default=0)
    value_width = min(max((len(each.value) for each in rows), default=0), _VALUE_COLUMNS)
    for each in rows:
        key, value = f"{each.key:{key_width}}", f"{each.value:{value_width}}"
        if each.is_default:
            yield ink(f"{key}  {value}  {each.origin}", dim=True)
        else:
            yield f"{key}  {ink(value, bold=True)}  {ink(each.origin, fg='cyan')}"


def about_aws(findings: Iterable[tuple[bool, str]], ink: Ink) -> list[str]:
    return [text if good else f"{ink('error:', fg='red', bold=True)} {text}" for good, text in findings]


def concluded(verdict: str, *, errors: int, warnings: int, ink: Ink) -> str:
    return ink(verdict, bold=True, fg="red" if errors else "yellow" if warnings else "green")
