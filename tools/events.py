"""The catalogue of log events, and its page: `python -m tools.events > docs/events.md`.

Names, levels and fields come from the code (`event_scan`), the explanations from `events.toml`. A test
compares both, and the page.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tools.event_scan import LEVELS, LogCall, events_of

CATALOGUE: Final = Path(__file__).with_name("events.toml")
PACKAGES: Final[Mapping[str, str | None]] = {
    "kcl_daemon": None,
    "kcl_landing": "kcl_daemon.landing",
    "kcl_spark": "kcl_daemon.spark",
}
"""Import packages with events, and their log component if it differs."""

_LOUD: Final = frozenset({"warning", "error"})
_SHOWN: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
_HEAD: Final = """\
# Events

<!-- Written by `python -m tools.events`; change tools/events.toml instead. -->

All events of the log. Each line has `timestamp`, `level`, `event` and `worker_id`, the fields of the event, and for a shard also
`shard_id` and `pid`. ERROR means that somebody must act. WARN means that the daemon handles it by itself, but it should
not continue; a warning of the worker that repeats is said once a minute, with how many were left out (`repeated`).
[Properties](properties.md#the-log) says how to set levels and targets; use the component name there.

"""


@dataclass(frozen=True, slots=True)
class EventMeaning:
    """What happened, and what to do; `do` is empty for information."""

    means: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class CataloguedEvent:
    """One event from all its log calls; levels are sorted, quietest first."""

    name: str
    levels: tuple[str, ...]
    fields: tuple[str, ...]
    components: tuple[str, ...]
    words: EventMeaning

    @property
    def is_loud(self) -> bool:
        return not _LOUD.isdisjoint(self.levels)


def event_meanings() -> dict[str, EventMeaning]:
    """Read `events.toml`.

    Raises:
        ValueError: it is not TOML, or an entry has other keys.
    """
    found: dict[str, EventMeaning] = {}
    for name, entry in tomllib.loads(CATALOGUE.read_text("utf-8")).items():
        if not {"means"} <= set(entry) <= {"means", "do"}:
            raise ValueError(
                f"{CATALOGUE.name}: [{name}] takes `means`, and `do` where a person can do something"
            )
        found[name] = EventMeaning(**entry)
    return found


def logged_events() -> list[LogCall]:
    """All log calls; skips packages that are not installed."""
    found: list[LogCall] = []
    for name, component in PACKAGES.items():
        spec = find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            found += events_of(Path(folder), component)
    return found


def catalogue(places: Iterable[LogCall], meanings: Mapping[str, EventMeaning]) -> list[CataloguedEvent]:
    """All events with an explanation, sorted by name."""
    by_name: dict[str, list[LogCall]] = {}
    for place in places:
        by_name.setdefault(place.event, []).append(place)
    return [
        _event(name, by_name.get(name, []), meaning)
        for name, meaning in sorted(meanings.items())
        if name in by_name
    ]


def _event(name: str, places: list[LogCall], meaning: EventMeaning) -> CataloguedEvent:
    levels = frozenset[str]().union(*(place.levels for place in places))
    return CataloguedEvent(
        name,
        tuple(level for level in LEVELS if level in levels),
        tuple(sorted({field for place in places for field in place.fields})),
        tuple(sorted({place.component for place in places})),
        meaning,
    )


def problems(places: Iterable[LogCall], meanings: Mapping[str, EventMeaning]) -> list[str]:
    """The differences between catalogue and code, each with what to write."""
    where: dict[str, LogCall] = {}
    for place in places:
        where.setdefault(place.event, place)
    found = [
        f'{place.where}: add to {CATALOGUE.name}:\n\n[{name}]\nmeans = "..."\ndo = "..."  # not needed for debug, info\n'
        for name, place in sorted(where.items())
        if name not in meanings
    ]
    found += [
        f"{CATALOGUE.name}: [{name}] is logged nowhere: take it out"
        for name in sorted(meanings)
        if name not in where
    ]
    for event in catalogue(where.values(), meanings):
        if not event.words.means:
            found.append(f"{CATALOGUE.name}: [{event.name}] says nothing in `means`")
    return found + [
        f"{CATALOGUE.name}: [{event.name}] can be {' or '.join(sorted(_LOUD & {*event.levels}))}: add do = "
        '"what a person does about it"'
        for event in catalogue(places, meanings)
        if event.is_loud and not event.words.do
    ]


def page(events: list[CataloguedEvent]) -> str:
    loud = [event for event in events if event.is_loud]
    quiet = [event for event in events if not event.is_loud]
    return "\n".join(
        [
            _HEAD + "## Warnings and errors\n",
            *(line for event in loud for line in _section(event)),
            "## Information\n",
            *_table(quiet),
            "",
        ]
    )


def _section(event: CataloguedEvent) -> Iterator[str]:
    yield f"### {event.name}\n"
    yield f"**{_levels(event)}** · {_code(event.components)}" + (
        f" · fields {_code(event.fields)}\n" if event.fields else "\n"
    )
    yield f"{event.words.means}\n"
    yield f"*To do:* {event.words.do}\n"


def _table(events: Iterable[CataloguedEvent]) -> Iterator[str]:
    yield "| Event | Level | Meaning | Fields | Component |"
    yield "|---|---|---|---|---|"
    for event in events:
        cells = (
            f"`{event.name}`",
            _levels(event),
            event.words.means,
            _code(event.fields),
            _code(event.components),
        )
        yield f"| {' | '.join(cells)} |"


def _levels(event: CataloguedEvent) -> str:
    return ", ".join(_SHOWN[level] for level in event.levels)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(page(catalogue(logged_events(), event_meanings())))
