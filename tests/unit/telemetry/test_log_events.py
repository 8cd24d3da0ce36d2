"""The catalogue of events: every event of the code is in it, with words; the page is what the catalogue says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tools.event_scan import LogCall, UnreadableEvent, events_of
from tools.events import (
    CATALOGUE,
    EventMeaning,
    catalogue,
    event_meanings,
    logged_events,
    page,
    problems,
)

ROOT = Path(__file__).parents[3]
COMMAND = "python -m tools.events > docs/events.md"


@cache
def everything() -> list[LogCall]:
    """What the whole code logs: all of it is parsed for that."""
    return logged_events()


def test_every_event_of_the_code_is_in_the_catalogue_and_no_other() -> None:
    found = problems(everything(), event_meanings())
    assert not found, f"\n{CATALOGUE.relative_to(ROOT)} and the code disagree:\n\n" + "\n".join(
        [*found, f"then: {COMMAND}"]
    )


def test_the_committed_page_is_the_catalogue() -> None:
    written = (ROOT / "docs" / "events.md").read_text("utf-8")
    assert written == page(catalogue(everything(), event_meanings())), f"run: {COMMAND}"


def test_the_whole_code_is_looked_at() -> None:
    names = {place.event for place in everything()}
    assert {
        "child_started",
        "unknown_property",
        "property_lowered",
        "child_stderr",
        "engine_refused",
    } <= names


def test_a_missing_event_is_reported_with_what_to_write() -> None:
    place = LogCall("disk_full", frozenset({"error"}), frozenset(), "kcl_daemon.x", "kcl_daemon/x/y.py:7")
    (reported,) = problems([place], {})
    assert reported.startswith("kcl_daemon/x/y.py:7: add to events.toml:\n\n[disk_full]\nmeans =")


def test_words_for_nothing_and_a_warning_without_advice_are_reported() -> None:
    place = LogCall("disk_full", frozenset({"warning"}), frozenset(), "kcl_daemon.x", "kcl_daemon/x/y.py:7")
    reported = problems(
        [place], {"disk_full": EventMeaning("It is full."), "disk_gone": EventMeaning("It is gone.")}
    )
    assert reported == [
        "events.toml: [disk_gone] is logged nowhere: take it out",
        'events.toml: [disk_full] can be warning: add do = "what a person does about it"',
    ]


def scan(folder: Path, code: str) -> dict[str, tuple[set[str], set[str]]]:
    """Levels and fields of the events of some code."""
    package = folder / "some"
    (package / "part").mkdir(parents=True)
    (package / "part" / "module.py").write_text(code)
    return {each.event: (set(each.levels), set(each.fields)) for each in events_of(package)}


@pytest.mark.parametrize(
    ("line", "levels", "fields"),
    [
        ('log.info("an_event")', {"info"}, set[str]()),
        ('self._log.warning("an_event", a=1, b=2)', {"warning"}, {"a", "b"}),
        ('self._log.bind(pid=1).error("an_event", exc_info=error)', {"error"}, set[str]()),
        ('(log.debug if told else log.info)("an_event", a=1)', {"debug", "info"}, {"a"}),
        ('tell = log.error if bad else log.warning\n  tell("an_event")', {"error", "warning"}, set[str]()),
        (
            "if a:\n   tell = log.info\n  else:\n   tell = log.debug if b else log.error\n  tell('an_event')",
            {"info", "debug", "error"},
            set[str](),
        ),
        ('self._log_of(shard).warning("an_event", a=1)', {"warning"}, {"a"}),
        ('(shard_log.error if bad else log.info)("an_event")', {"error", "info"}, set[str]()),
        ('at_level(log, level)("an_event", a=1)', {"debug", "info", "warning", "error"}, {"a"}),
        ('Notice("an_event", key, 1, facts)', {"warning"}, set[str]()),
        ('Notice("an_event", key, 1, facts, "info")', {"info"}, set[str]()),
        ('Notice("an_event", key, 1, level="info")', {"info"}, set[str]()),
        ('name = "an_event" if a else "an_event"\n  log.info(name)', {"info"}, set[str]()),
        ('self.tell("error", "an_event", a=1)', {"error"}, {"a"}),
    ],
)
def test_events_are_found_in_every_form(
    tmp_path: Path, line: str, levels: set[str], fields: set[str]
) -> None:
    assert scan(tmp_path, f"class Some:\n def does(self):\n  {line}\n") == {"an_event": (levels, fields)}


def test_an_event_that_passes_through_a_function_is_found_where_it_is_named(tmp_path: Path) -> None:
    code = "def say(event, *, is_grave):\n log.info(event, why=1)\n\ndef does():\n say('an_event', is_grave=True)\n"
    assert scan(tmp_path, code) == {"an_event": ({"info"}, {"why"})}


@pytest.mark.parametrize(
    "line", ["math.log.info", "parser.error('an error')", "click.echo('x')", "log.bind(a='b')"]
)
def test_a_call_of_something_else_is_no_log_event(tmp_path: Path, line: str) -> None:
    assert scan(tmp_path, f"def does():\n {line}\n") == {}


@pytest.mark.parametrize("event", ["f'{what}_failed'", "'Not a phrase'", "what + '_failed'"])
def test_an_event_that_cannot_be_read_is_refused_with_the_place(tmp_path: Path, event: str) -> None:
    with pytest.raises(UnreadableEvent, match=r"some/part/module\.py:2: .*snake_case"):
        scan(tmp_path, f"def does(what):\n log.info({event})\n")
