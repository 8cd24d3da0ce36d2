"""The shipped alert rules over what was scraped: which alert fires from when to when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.sick.promql import NAME, Labels, Query, Store, parsed, seconds

ALERTS: Final = Path(__file__).parents[2] / "packaging" / "prometheus" / "alerts.yml"
EVERY_S: Final = 60.0
_METRIC: Final = re.compile(r"\bkcl_\w+")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A series of its own that a rule makes."""

    name: str
    expression: str
    query: Query


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert rule."""

    alert: str
    expression: str
    for_s: float
    severity: str
    annotations: Mapping[str, str]
    query: Query


@cache
def _shipped() -> tuple[Mapping[str, Any], ...]:
    document = yaml.safe_load(ALERTS.read_text("utf-8"))
    return tuple(rule for group in document["groups"] for rule in group["rules"])


@cache
def recorded() -> tuple[Recorded, ...]:
    """Those that are shipped."""
    return tuple(
        Recorded(rule["record"], rule["expr"], parsed(rule["expr"]))
        for rule in _shipped()
        if "record" in rule
    )


@cache
def rules() -> tuple[Rule, ...]:
    """Those that are shipped."""
    return tuple(
        Rule(
            rule["alert"],
            rule["expr"],
            seconds(rule.get("for", "0s")),
            rule["labels"]["severity"],
            rule["annotations"],
            parsed(rule["expr"]),
        )
        for rule in _shipped()
        if "alert" in rule
    )


@cache
def metrics() -> frozenset[str]:
    """Names that a rule asks for."""
    asked = [*(each.expression for each in recorded()), *(each.expression for each in rules())]
    return frozenset(name for expression in asked for name in _METRIC.findall(expression))


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert of one series that fires, from the first evaluation to the last one."""

    alert: str
    labels: Labels
    from_s: float
    to_s: float


def firings(store: Store, until_s: float) -> tuple[Firing, ...]:
    """All of them, in order."""
    for each in recorded():
        _record(each, store, until_s)
    found = [each for rule in rules() for each in _of_rule(rule, store, until_s)]
    return tuple(sorted(found, key=lambda each: (each.from_s, each.alert, sorted(each.labels))))


def _record(rule: Recorded, store: Store, until_s: float) -> None:
    """At each evaluation."""
    for step in range(int(until_s / EVERY_S) + 1):
        vector = rule.query(store, step * EVERY_S)
        assert isinstance(vector, dict)
        found = {
            frozenset({*(each for each in labels if each[0] != NAME), (NAME, rule.name)}): value
            for labels, value in vector.items()
        }
        store.scraped(rule.name, step * EVERY_S, found)


def _of_rule(rule: Rule, store: Store, until_s: float) -> list[Firing]:
    found: list[Firing] = []
    active: dict[Labels, float] = {}
    firing: dict[Labels, float] = {}
    at_s = 0.0
    while at_s <= until_s:
        vector = rule.query(store, at_s)
        assert isinstance(vector, dict)
        there = {frozenset(each for each in labels if each[0] != NAME) for labels in vector}
        for labels in active.keys() - there:
            del active[labels]
            if labels in firing:
                found.append(Firing(rule.alert, labels, firing.pop(labels), at_s - EVERY_S))
        for labels in there:
            if at_s - active.setdefault(labels, at_s) >= rule.for_s:
                firing.setdefault(labels, at_s)
        at_s += EVERY_S
    last_s = at_s - EVERY_S
    return found + [Firing(rule.alert, labels, from_s, last_s) for labels, from_s in firing.items()]
