"""The part of Prometheus' query language that rules about counts are written in, over scrapes in memory.

As Prometheus has it: series without a sample in the last five minutes, or that the last scrape of their target did not
have, are not there; `increase` needs two samples, and sees what a counter has lost as a new beginning (it does not
stretch what it finds to the ends of its range, as Prometheus does); sets are matched by all labels but the name.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]

_NAME: Final = "__name__"
_LOOKBACK_S: Final = 300.0
_TOKEN: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|=~|!=|!~|[(){}\[\],=<>]|[A-Za-z_]\w*|[0-9.]+[smh]?)')
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {">": operator.gt, "<": operator.lt}
_MATCHED: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "=": lambda value, wanted: value == wanted,
    "!=": lambda value, wanted: value != wanted,
    "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
    "!~": lambda value, wanted: re.fullmatch(wanted, value) is None,
}
_AGGREGATED: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max, "min": min}


class Scrapes:
    """What was scraped of each target, the oldest first."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[tuple[float, Vector]]] = defaultdict(list)

    def add(self, at_s: float, text: str, *, job: str, instance: str) -> None:
        """A text that was scraped."""
        found: Vector = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, _NAME: sample.name, "job": job, "instance": instance}
                found[frozenset(labels.items())] = sample.value
        self._of[job, instance].append((at_s, found))

    def at(self, at_s: float) -> Vector:
        """The series that are there at a moment."""
        present: Vector = {}
        for scrapes in self._of.values():
            last = [found for when_s, found in scrapes if at_s - _LOOKBACK_S < when_s <= at_s][-1:]
            for found in last:
                present.update(found)
        return present

    def within(self, from_s: float, to_s: float) -> dict[Labels, list[float]]:
        """The samples of each series in a range."""
        samples: dict[Labels, list[float]] = defaultdict(list)
        for scrapes in self._of.values():
            for when_s, found in scrapes:
                if from_s < when_s <= to_s:
                    for labels, value in found.items():
                        samples[labels].append(value)
        return samples


@dataclass(frozen=True, slots=True)
class _Selector:
    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def takes(self, labels: Labels) -> bool:
        given = dict(labels)
        return given[_NAME] == self.name and all(
            _MATCHED[how](given.get(label, ""), wanted) for label, how, wanted in self.matchers
        )


def evaluate(expression: str, scrapes: Scrapes, at_s: float) -> Vector:
    """What an expression comes to at a moment; ValueError where it uses what is not known here."""
    query = _Query(expression, scrapes, at_s)
    found = query.alternatives()
    if query.left:
        raise ValueError(f"not understood: {' '.join(query.left)}")
    return found


class _Query:
    """One evaluation: each method reads one kind of expression, and is what it comes to."""

    def __init__(self, expression: str, scrapes: Scrapes, at_s: float) -> None:
        self.left: list[str] = _TOKEN.findall(expression)
        if "".join(self.left) != re.sub(r"\s+", "", expression):
            raise ValueError(f"not understood: {expression}")
        self._scrapes = scrapes
        self._at_s = at_s

    def alternatives(self) -> Vector:
        found = self._restricted()
        while self._skip("or"):
            other = self._restricted()
            known = {_nameless(labels) for labels in found}
            found |= {labels: value for labels, value in other.items() if _nameless(labels) not in known}
        return found

    def _restricted(self) -> Vector:
        found = self._compared()
        while (how := self._one_of("and", "unless")) is not None:
            on = self._names() if self._skip("on") else None
            others = {_key(labels, on) for labels in self._compared()}
            wanted = how == "and"
            found = {
                labels: value for labels, value in found.items() if (_key(labels, on) in others) is wanted
            }
        return found

    def _compared(self) -> Vector:
        found = self._plain()
        if (how := self._one_of(*_COMPARED)) is not None:
            limit = float(self._take())
            found = {labels: value for labels, value in found.items() if _COMPARED[how](value, limit)}
        return found

    def _plain(self) -> Vector:
        if self._skip("("):
            found = self.alternatives()
            self._expect(")")
            return found
        if (how := self._one_of(*_AGGREGATED)) is not None:
            return self._aggregated(_AGGREGATED[how])
        if self._skip("increase"):
            self._expect("(")
            increases = self._increase()
            self._expect(")")
            return increases
        selector = self._selector()
        at_s = self._at_s - (self._seconds() if self._skip("offset") else 0.0)
        return {labels: value for labels, value in self._scrapes.at(at_s).items() if selector.takes(labels)}

    def _aggregated(self, together: Callable[[Iterable[float]], float]) -> Vector:
        by = self._names() if self._skip("by") else frozenset[str]()
        self._expect("(")
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in self.alternatives().items():
            groups[_key(labels, by)].append(value)
        self._expect(")")
        return {labels: together(values) for labels, values in groups.items()}

    def _increase(self) -> Vector:
        selector = self._selector()
        self._expect("[")
        samples = self._scrapes.within(self._at_s - self._seconds(), self._at_s)
        self._expect("]")
        return {
            _nameless(labels): sum(
                after - before if after >= before else after for before, after in pairwise(values)
            )
            for labels, values in samples.items()
            if selector.takes(labels) and len(values) > 1
        }

    def _selector(self) -> _Selector:
        name, matchers = self._take(), list[tuple[str, str, str]]()
        if self._skip("{"):
            while not self._skip("}"):
                label, how, wanted = self._take(), self._take(), self._take()
                matchers.append((label, how, wanted.strip('"')))
                self._skip(",")
        return _Selector(name, tuple(matchers))

    def _names(self) -> frozenset[str]:
        self._expect("(")
        names = set[str]()
        while not self._skip(")"):
            names.add(self._take())
            self._skip(",")
        return frozenset(names)

    def _seconds(self) -> float:
        span = self._take()
        return float(span[:-1]) * _UNITS[span[-1]]

    def _take(self) -> str:
        if not self.left:
            raise ValueError("it ends too early")
        return self.left.pop(0)

    def _one_of(self, *tokens: str) -> str | None:
        return self._take() if self.left and self.left[0] in tokens else None

    def _skip(self, token: str) -> bool:
        return self._one_of(token) is not None

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise ValueError(f"{token} expected before: {' '.join(self.left)}")


def _nameless(labels: Labels) -> Labels:
    return frozenset(each for each in labels if each[0] != _NAME)


def _key(labels: Labels, on: frozenset[str] | None) -> Labels:
    """What labels are matched by: some, or all but the name."""
    return _nameless(labels) if on is None else frozenset(each for each in labels if each[0] in on)
