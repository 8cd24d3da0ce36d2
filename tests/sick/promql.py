"""The part of Prometheus' query language that the shipped rules are written in, as Prometheus 2.42 has it.

`tests/sick/test_sick.py` compares it with Prometheus' own tool, each rule over each sickness.
"""

from __future__ import annotations

import operator
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import Final, TypeAlias

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Value: TypeAlias = float | Vector
Query: TypeAlias = Callable[["Store", float], Value]

NAME: Final = "__name__"
_LOOKBACK_S: Final = 300.0
_TOKEN: Final = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|=~|!=|!~|>=|<=|==|[(){}\[\],=<>+*/-]|[A-Za-z_][\w:]*|[0-9.]+[smhd]?)'
)
_SAMPLE: Final = re.compile(r"([a-z_]\w*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_MATCHED: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "=": lambda value, wanted: value == wanted,
    "!=": lambda value, wanted: value != wanted,
    "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
    "!~": lambda value, wanted: re.fullmatch(wanted, value) is None,
}
_AGGREGATED: Final[Mapping[str, Callable[[list[float]], float]]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}
_OVER_TIME: Final[Mapping[str, Callable[[list[float]], float]]] = {
    "avg_over_time": lambda values: sum(values) / len(values),
    "max_over_time": max,
    "min_over_time": min,
}


@dataclass(slots=True)
class Series:
    """Samples of one series, in order; None: it was not there any more."""

    times: list[float] = field(default_factory=list[float])
    values: list[float | None] = field(default_factory=list[float | None])


class Store:
    """What was scraped."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[Labels, Series]] = defaultdict(dict)
        self._there: dict[str, set[Labels]] = defaultdict(set)

    def scraped(self, target: str, at_s: float, found: Vector) -> None:
        """All that a target gave; what it does not give any more ends."""
        for labels, value in found.items():
            self._add(labels, at_s, value)
        for labels in self._there[target] - found.keys():
            self._add(labels, at_s, None)
        self._there[target] = set(found)

    def _add(self, labels: Labels, at_s: float, value: float | None) -> None:
        named = self.by_name[dict(labels)[NAME]]
        series = named.setdefault(labels, Series())
        series.times.append(at_s)
        series.values.append(value)

    def at(self, selector: Selector, at_s: float) -> Vector:
        """The series that are there at a moment."""
        found: Vector = {}
        for labels, series in self.by_name.get(selector.name, {}).items():
            place = bisect_right(series.times, at_s) - 1
            if place < 0 or series.times[place] <= at_s - _LOOKBACK_S or not selector.takes(labels):
                continue
            value = series.values[place]
            if value is not None:
                found[labels] = value
        return found

    def within(
        self, selector: Selector, from_s: float, to_s: float
    ) -> dict[Labels, list[tuple[float, float]]]:
        """The samples of each series in a range, both ends with it."""
        found: dict[Labels, list[tuple[float, float]]] = {}
        for labels, series in self.by_name.get(selector.name, {}).items():
            if not selector.takes(labels):
                continue
            places = range(bisect_left(series.times, from_s), bisect_right(series.times, to_s))
            samples = [
                (series.times[each], value) for each in places if (value := series.values[each]) is not None
            ]
            if samples:
                found[labels] = samples
        return found


@dataclass(frozen=True, slots=True)
class Selector:
    """Which series."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()

    def takes(self, labels: Labels) -> bool:
        """Whether a series of this name is one of them."""
        if not self.matchers:
            return True
        given = dict(labels)
        return all(_MATCHED[how](given.get(label, ""), wanted) for label, how, wanted in self.matchers)


def samples(text: str, *, job: str, instance: str, names: Container[str] | None = None) -> Vector:
    """Those of ours in a scraped text, by default of all names."""
    found = Vector()
    for line in text.splitlines():
        matched = _SAMPLE.match(line) if line.startswith("kcl_") else None
        if matched is not None and (names is None or matched[1] in names):
            labels = {
                **dict(_LABEL.findall(matched[2] or "")),
                NAME: matched[1],
                "job": job,
                "instance": instance,
            }
            found[frozenset(labels.items())] = float(matched[3])
    return found


def parsed(expression: str) -> Query:
    """ValueError where it uses what is not known here."""
    parser = _Parser(expression)
    query = parser.alternatives()
    if parser.left:
        raise ValueError(f"not understood: {' '.join(parser.left)}")
    return query


class _Parser:
    """Each method reads one kind of expression, the loosest first."""

    def __init__(self, expression: str) -> None:
        self.left: list[str] = _TOKEN.findall(expression)
        if "".join(self.left) != re.sub(r"\s+", "", expression):
            raise ValueError(f"not understood: {expression}")

    def alternatives(self) -> Query:
        found = self._restricted()
        while self._skip("or"):
            found = _or(found, self._restricted())
        return found

    def _restricted(self) -> Query:
        found = self._compared()
        while (how := self._one_of("and", "unless")) is not None:
            on = self._names() if self._skip("on") else None
            found = _and(found, self._compared(), on, wanted=how == "and")
        return found

    def _compared(self) -> Query:
        found = self._summed()
        while (how := self._one_of(*_COMPARED)) is not None:
            found = _compare(found, self._summed(), _COMPARED[how])
        return found

    def _summed(self) -> Query:
        found = self._multiplied()
        while (how := self._one_of("+", "-")) is not None:
            found = _arithmetic(found, self._multiplied(), operator.add if how == "+" else operator.sub)
        return found

    def _multiplied(self) -> Query:
        found = self._plain()
        while (how := self._one_of("*", "/")) is not None:
            found = _arithmetic(found, self._plain(), operator.mul if how == "*" else _divided)
        return found

    def _plain(self) -> Query:
        if self._skip("("):
            found = self.alternatives()
            self._expect(")")
            return found
        if (how := self._one_of(*_AGGREGATED)) is not None:
            return self._aggregated(_AGGREGATED[how])
        if (name := self._one_of("rate", "increase", *_OVER_TIME)) is not None:
            return self._of_range(name)
        if self._skip("histogram_quantile"):
            self._expect("(")
            share = float(self._take())
            self._expect(",")
            buckets = self.alternatives()
            self._expect(")")
            return lambda store, at_s: _quantile(share, _vector(buckets(store, at_s)))
        sign = -1.0 if self._skip("-") else 1.0
        if self.left and re.fullmatch(r"[0-9.]+", self.left[0]):
            number = sign * float(self._take())
            return lambda _store, _at_s: number
        selector = self._selector()
        offset_s = self._seconds() if self._skip("offset") else 0.0
        return lambda store, at_s: store.at(selector, at_s - offset_s)

    def _aggregated(self, together: Callable[[list[float]], float]) -> Query:
        by = self._names() if self._skip("by") else frozenset[str]()
        self._expect("(")
        of = self.alternatives()
        self._expect(")")

        def aggregated(store: Store, at_s: float) -> Vector:
            groups: dict[Labels, list[float]] = defaultdict(list)
            for labels, value in _vector(of(store, at_s)).items():
                groups[_key(labels, by)].append(value)
            return {labels: together(values) for labels, values in groups.items()}

        return aggregated

    def _of_range(self, name: str) -> Query:
        self._expect("(")
        selector = self._selector()
        self._expect("[")
        span_s = self._seconds()
        self._expect("]")
        offset_s = self._seconds() if self._skip("offset") else 0.0
        self._expect(")")

        def of_range(store: Store, at_s: float) -> Vector:
            found, at_s = Vector(), at_s - offset_s
            for labels, samples in store.within(selector, at_s - span_s, at_s).items():
                if name in _OVER_TIME:
                    found[_nameless(labels)] = _OVER_TIME[name]([value for _, value in samples])
                elif len(samples) > 1:
                    grown = _increase(samples, at_s - span_s, at_s)
                    found[_nameless(labels)] = grown / span_s if name == "rate" else grown
            return found

        return of_range

    def _selector(self) -> Selector:
        name, matchers = self._take(), list[tuple[str, str, str]]()
        if not re.fullmatch(r"[A-Za-z_][\w:]*", name) or (self.left and self.left[0] == "("):
            raise ValueError(f"not understood: {name}")
        if self._skip("{"):
            while not self._skip("}"):
                label, how, wanted = self._take(), self._take(), self._take()
                matchers.append((label, how, wanted.strip('"')))
                self._skip(",")
        return Selector(name, tuple(matchers))

    def _names(self) -> frozenset[str]:
        self._expect("(")
        names = set[str]()
        while not self._skip(")"):
            names.add(self._take())
            self._skip(",")
        return frozenset(names)

    def _seconds(self) -> float:
        return seconds(self._take())

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


def seconds(span: str) -> float:
    """Of a duration such as `5m`."""
    return float(span[:-1]) * _UNITS[span[-1]]


def _vector(value: Value) -> Vector:
    if not isinstance(value, dict):
        raise TypeError(f"a vector is wanted, not {value}")
    return value


def _or(left: Query, right: Query) -> Query:
    def found(store: Store, at_s: float) -> Vector:
        first = _vector(left(store, at_s))
        known = {_nameless(labels) for labels in first}
        other = _vector(right(store, at_s))
        return first | {labels: each for labels, each in other.items() if _nameless(labels) not in known}

    return found


def _and(left: Query, right: Query, on: frozenset[str] | None, *, wanted: bool) -> Query:
    def found(store: Store, at_s: float) -> Vector:
        others = {_key(labels, on) for labels in _vector(right(store, at_s))}
        first = _vector(left(store, at_s))
        return {labels: each for labels, each in first.items() if (_key(labels, on) in others) is wanted}

    return found


def _compare(left: Query, right: Query, holds: Callable[[float, float], bool]) -> Query:
    def found(store: Store, at_s: float) -> Vector:
        limit = right(store, at_s)
        if not isinstance(limit, float):
            raise TypeError("only comparisons with a number are known")
        return {labels: each for labels, each in _vector(left(store, at_s)).items() if holds(each, limit)}

    return found


def _arithmetic(left: Query, right: Query, of: Callable[[float, float], float]) -> Query:
    def found(store: Store, at_s: float) -> Value:
        one, two = left(store, at_s), right(store, at_s)
        if isinstance(one, float | int):
            if isinstance(two, float | int):
                return of(one, two)
            return {_nameless(labels): of(one, each) for labels, each in two.items()}
        if isinstance(two, float | int):
            return {_nameless(labels): of(each, two) for labels, each in one.items()}
        others = {_nameless(labels): each for labels, each in two.items()}
        firsts = {_nameless(labels): each for labels, each in one.items()}
        return {labels: of(each, others[labels]) for labels, each in firsts.items() if labels in others}

    return found


def _divided(one: float, two: float) -> float:
    if two == 0.0:
        return nan if one == 0.0 or isnan(one) else inf
    return one / two


def _increase(samples: list[tuple[float, float]], from_s: float, to_s: float) -> float:
    """Stretched to the ends of the range, as Prometheus does."""
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    grown, before = last - first, first
    for _, value in samples[1:]:
        if value < before:
            grown += before
        before = value
    to_start, to_end, seen = first_s - from_s, to_s - last_s, last_s - first_s
    apart = seen / (len(samples) - 1)
    if grown > 0 and first >= 0:
        to_start = min(to_start, seen * first / grown)
    near = apart * 1.1
    whole = seen + (to_start if to_start < near else apart / 2) + (to_end if to_end < near else apart / 2)
    return grown * whole / seen


def _quantile(share: float, vector: Vector) -> Vector:
    groups: dict[Labels, dict[float, float]] = defaultdict(dict)
    for labels, value in vector.items():
        given = dict(labels)
        bound = float(given.pop("le").replace("+Inf", "inf"))
        given.pop(NAME, None)
        groups[frozenset(given.items())][bound] = value
    return {labels: _of_buckets(share, sorted(buckets.items())) for labels, buckets in groups.items()}


def _of_buckets(share: float, buckets: list[tuple[float, float]]) -> float:
    if len(buckets) < 2 or buckets[-1][0] != inf or buckets[-1][1] == 0.0:
        return nan
    rank = share * buckets[-1][1]
    place = next(each for each, (_, count) in enumerate(buckets) if count >= rank)
    if place == len(buckets) - 1:
        return buckets[-2][0]
    bound, count = buckets[place]
    if place == 0:
        return bound if bound <= 0 else bound * rank / count
    start, below = buckets[place - 1]
    return start + (bound - start) * (rank - below) / (count - below)


def _nameless(labels: Labels) -> Labels:
    return frozenset(each for each in labels if each[0] != NAME)


def _key(labels: Labels, on: Iterable[str] | None) -> Labels:
    """What labels are matched by: some, or all but the name."""
    return _nameless(labels) if on is None else frozenset(each for each in labels if each[0] in on)
