"""EventBridge's pattern language, as AWS Lambda filters records with it.

A pattern is compiled once. Matching takes time in proportion to pattern and event: nothing is expanded, and wildcards
need no regular expression. A matcher is a generator that pauses now and then (`Work`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from operator import eq, ge, gt, le, lt
from typing import Final, NoReturn, cast

import orjson

Steps = Generator[None, None, bool]
"""Pauses, then whether it matches."""
Matcher = Callable[[object, "Whole"], Steps]
"""Of a parsed value (`ABSENT`: none) and the whole event."""
Test = Callable[[object], bool]
"""Of a value that is neither an object nor an array."""

ABSENT: Final = object()
_NO_FIELDS: Final[dict[str, object]] = {}
_MAX_DEPTH: Final = 50
_MAX_NEEDLES: Final = 8
_OR: Final = "$or"
_WORK: Final = 5_000
# A test of so long a text may take some microseconds.
_LONG: Final = 4_096
_LONG_SHIFT: Final = 6


class PatternError(ValueError):
    """The message has the place, as `data.order.type[0]`, or line and column."""


class Work:
    """About a microsecond for each unit."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _WORK

    def pause(self) -> Generator[None, None, None]:
        self.left = _WORK
        yield


class Whole:
    """`has_value`: of the paths that were asked for."""

    __slots__ = ("has_value", "value", "work")

    def __init__(self, value: object, work: Work) -> None:
        self.value = value
        self.work = work
        self.has_value: dict[tuple[str, ...], bool] | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """A part of a pattern.

    Args:
    weight: how many tests are in it.
    needles: a matching event has one of them in its JSON text, unless a backslash is in it; None: not known.
    may_be_absent: it may match where its field is missing.
    """

    matches: Matcher
    needles: frozenset[bytes] | None = None
    may_be_absent: bool = False
    weight: int = 1


def parsed_json(text: str) -> object:
    """As `orjson.loads`, but a key must not come twice."""
    try:
        return cast(
            "object",
            json.loads(
                text,
                object_pairs_hook=_unique,
                parse_int=orjson.loads,
                parse_float=orjson.loads,
                parse_constant=_no_constant,
            ),
        )
    except PatternError:
        raise
    except json.JSONDecodeError as wrong:
        raise PatternError(f"no JSON at line {wrong.lineno} column {wrong.colno}: {wrong.msg}") from wrong
    except RecursionError:
        raise PatternError("nested too deep") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise PatternError(
                f"the key {key!r} comes twice in one object; values of one field go into one array"
            )
        found[key] = value
    return found


def _no_constant(word: str) -> NoReturn:
    raise PatternError(f"no JSON: {word} is not a number")


def refuse(place: str, reason: str) -> NoReturn:
    raise PatternError(f"at {place or 'the top'}: {reason}")


def inner(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def compiled(pattern: object, place: str, path: tuple[str, ...]) -> Condition:
    """An object of fields or an array of values; PatternError if a part of it is neither. `path` leads to it in an event."""
    if len(path) > _MAX_DEPTH or place.count(_OR) > _MAX_DEPTH:
        refuse(place, f"more than {_MAX_DEPTH} levels")
    if isinstance(pattern, dict):
        return _object(cast("dict[str, object]", pattern), place, path)
    if isinstance(pattern, list):
        return _leaf(cast("list[object]", pattern), place, path)
    refuse(place, "values go into an array: " + json.dumps([pattern])[:80])


def _object(pattern: Mapping[str, object], place: str, path: tuple[str, ...]) -> Condition:
    if not pattern:
        refuse(place, "an empty object matches nothing in particular; leave it out")
    fields, ors = list[tuple[str | None, Matcher]](), list[tuple[None, Matcher]]()
    needles, may_be_absent, weight = list[frozenset[bytes]](), True, 1
    for key, value in pattern.items():
        if key == _OR:
            part = _any_condition(
                [compiled(each, at, path) for each, at in alternatives(value, inner(place, key))]
            )
            ors.append((None, part.matches))
        else:
            part = compiled(value, inner(place, key), (*path, key))
            fields.append((key, part.matches))
            if not part.needles and not part.may_be_absent:
                part = replace(part, needles=_text_needle(key))
        may_be_absent &= part.may_be_absent
        weight += part.weight
        if part.needles is not None:
            needles.append(part.needles)
    best = min(needles, key=lambda each: (len(each), -min(map(len, each))), default=None)
    return Condition(_object_matcher((*fields, *ors), weight), best, may_be_absent, weight)


def alternatives(value: object, place: str) -> Iterator[tuple[object, str]]:
    if not isinstance(value, list) or len(value) < 2:
        refuse(place, "it takes an array of at least two patterns")
    for number, each in enumerate(cast("list[object]", value)):
        at = f"{place}[{number}]"
        if not isinstance(each, dict):
            refuse(at, "it takes patterns, which are objects")
        yield each, at


def _any_condition(parts: Sequence[Condition]) -> Condition:
    matchers = tuple(part.matches for part in parts)

    def matches(found: object, event: Whole) -> Steps:
        for each in matchers:
            if (yield from each(found, event)):
                return True
        return False

    return Condition(
        matches,
        any_of(part.needles for part in parts),
        any(part.may_be_absent for part in parts),
        sum(part.weight for part in parts),
    )


def any_of(needles: Iterable[frozenset[bytes] | None]) -> frozenset[bytes] | None:
    united: frozenset[bytes] = frozenset()
    for each in needles:
        if each is None:
            return None
        united |= each
    return united if len(united) <= _MAX_NEEDLES else None


def _object_matcher(fields: tuple[tuple[str | None, Matcher], ...], weight: int) -> Matcher:
    """One element of an array must match with all fields. No key: it is about the object itself."""

    def matches(found: object, event: Whole) -> Steps:
        is_array = type(found) is list
        for each in _objects(cast("list[object]", found)) if is_array else (found,):
            if is_array:
                event.work.left -= weight
                if event.work.left < 0:
                    yield from event.work.pause()
                if type(each) is not dict:
                    continue
            fields_found = cast("dict[str, object]", each) if type(each) is dict else _NO_FIELDS
            for key, field_matches in fields:
                value = fields_found if key is None else fields_found.get(key, ABSENT)
                if not (yield from field_matches(value, event)):
                    break
            else:
                return True
        return False

    return matches


def _objects(values: list[object]) -> Iterator[object]:
    yield from _flat(values)
    yield _NO_FIELDS


def _flat(values: list[object]) -> Iterator[object]:
    """Also elements of arrays in it. No recursion: a deeply nested event would break it."""
    stack = [iter(values)]
    while stack:
        for each in stack[-1]:
            yield each
            if type(each) is list:
                stack.append(iter(each))
                break
        else:
            stack.pop()


def _has_value(found: object, event: Whole, path: tuple[str, ...]) -> Steps:
    """Asked once for an event. Without a path it is about `found`."""
    if not path:
        return (yield from _looked_for(found, path, event.work))
    if event.has_value is None:
        event.has_value = {}
    known = event.has_value.get(path)
    if known is None:
        known = event.has_value[path] = yield from _looked_for(event.value, path, event.work)
    return known


def _looked_for(value: object, path: tuple[str, ...], work: Work) -> Steps:
    found = [value]
    for key in path:
        inside: list[object] = []
        for each in _flat(found):
            work.left -= 1
            if work.left < 0:
                yield from work.pause()
            if type(each) is dict and key in each:
                inside.append(each[key])
        found = inside
    for each in _flat(found):
        work.left -= 1
        if work.left < 0:
            yield from work.pause()
        if type(each) is not dict and type(each) is not list and each is not ABSENT:
            return True
    return False


def _leaf(values: list[object], place: str, path: tuple[str, ...]) -> Condition:
    if not values:
        refuse(place, "an empty array matches nothing; name what the field may be")
    exact, tests, needles = list[object](), list[Test](), list[frozenset[bytes] | None]()
    may_be_absent = False
    for number, value in enumerate(values):
        at = f"{place}[{number}]"
        if not isinstance(value, (dict, list)):
            exact.append(value)
            needles.append(_needle(value))
        elif isinstance(value, dict) and value == {"exists": False} and value["exists"] is False:
            may_be_absent = True
            needles.append(None)
        else:
            test, needle = _operator(value, at)
            tests.append(test)
            needles.append(needle)
    if exact:
        tests.insert(0, _one_of(exact))
    any_test = _AnyTest(tuple(tests))
    matcher = _value_matcher(any_test)
    if may_be_absent:
        return Condition(_or_absent(matcher, path), None, True, any_test.weight)
    return Condition(matcher, any_of(needles), weight=any_test.weight)


def _or_absent(matcher: Matcher, path: tuple[str, ...]) -> Matcher:
    def matches(found: object, event: Whole) -> Steps:
        return (yield from matcher(found, event)) or not (yield from _has_value(found, event, path))

    return matches


@dataclass(frozen=True, slots=True)
class _AnyTest:
    """Whether a test holds; not `wanted`: whether none does."""

    tests: tuple[Test, ...]
    wanted: bool = True

    @property
    def weight(self) -> int:
        return sum(each.weight if isinstance(each, _AnyTest) else 1 for each in self.tests)

    def __call__(self, value: object) -> bool:
        return any(test(value) for test in self.tests) is self.wanted

    def of_long(self, text: str, work: Work) -> Steps:
        """For a text that each test may take milliseconds for."""
        for test in self.tests:
            if isinstance(test, _AnyTest):
                found = yield from test.of_long(text, work)
            else:
                work.left -= len(text) >> _LONG_SHIFT
                if work.left < 0:
                    yield from work.pause()
                found = test(text)
            if found:
                return self.wanted
        return not self.wanted


def _value_matcher(any_test: _AnyTest) -> Matcher:
    test = any_test.tests[0] if len(any_test.tests) == 1 else any_test
    weight = any_test.weight

    def matches(found: object, event: Whole) -> Steps:
        kind = type(found)
        if kind is str and len(cast("str", found)) > _LONG:
            return (yield from any_test.of_long(cast("str", found), event.work))
        if kind is not list:
            return kind is not dict and found is not ABSENT and test(found)
        for each in _flat(cast("list[object]", found)):
            event.work.left -= weight
            if event.work.left < 0:
                yield from event.work.pause()
            if type(each) is str and len(each) > _LONG:
                if (yield from any_test.of_long(each, event.work)):
                    return True
            elif type(each) is not dict and type(each) is not list and test(each):
                return True
        return False

    return matches


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one_of(values: Sequence[object]) -> Test:
    """True is not 1, and 1 is 1.0."""
    strings = frozenset(each for each in values if isinstance(each, str))
    numbers = frozenset(each for each in values if _is_number(each))
    constants = tuple(each for each in values if each is None or isinstance(each, bool))

    def test(value: object) -> bool:
        if isinstance(value, str):
            return value in strings
        return value in (constants if value is None or isinstance(value, bool) else numbers)

    return test


def _needle(value: object) -> frozenset[bytes] | None:
    if isinstance(value, str):
        return _text_needle(value)
    return None if _is_number(value) else frozenset((json.dumps(value).encode(),))


def _text_needle(text: str, *, start: bool = True, end: bool = True) -> frozenset[bytes] | None:
    """None where JSON writes a backslash, or for what is too common to be of use."""
    if json.dumps(text, ensure_ascii=False) != f'"{text}"':
        return None
    try:
        raw = b'"' * start + text.encode() + b'"' * end
    except UnicodeEncodeError:
        return None
    return frozenset((raw,)) if len(text) > 0 or (start and end) else None


def _operator(value: object, place: str) -> tuple[Test, frozenset[bytes] | None]:
    if not isinstance(value, dict):
        refuse(place, "an array cannot stand in an array; name the values side by side")
    operators = cast("dict[str, object]", value)
    if len(operators) != 1:
        refuse(place, f"it takes one operator, this has {len(operators)}; write several as several objects")
    ((name, operand),) = operators.items()
    at = inner(place, name)
    if name == "prefix":
        return _affix(operand, at, str.startswith), _operand_needle(operand, start=True, end=False)
    if name == "suffix":
        return _affix(operand, at, str.endswith), _operand_needle(operand, start=False, end=True)
    make = _OPERATORS.get(name)
    if make is None:
        known = ", ".join(sorted((*_OPERATORS, "prefix", "suffix")))
        refuse(place, f"unknown operator {name!r:.80}; there are {known}")
    return make(operand, at), None


def _operand_needle(operand: object, *, start: bool, end: bool) -> frozenset[bytes] | None:
    return _text_needle(operand, start=start, end=end) if isinstance(operand, str) else None


def _text(operand: object, place: str) -> str:
    if not isinstance(operand, str):
        refuse(place, f"it takes a text, not {json.dumps(operand)[:80]}")
    return operand


def _texts(operand: object, place: str) -> tuple[str, ...]:
    if not isinstance(operand, list):
        return (_text(operand, place),)
    if not operand:
        refuse(place, "the array is empty")
    return tuple(
        _text(each, f"{place}[{number}]") for number, each in enumerate(cast("list[object]", operand))
    )


def _affix(operand: object, place: str, has: Callable[[str, str], bool]) -> Test:
    if isinstance(operand, dict):
        wanted = _text(_only(cast("dict[str, object]", operand), "equals-ignore-case", place), place).lower()
        return lambda value: isinstance(value, str) and has(value.lower(), wanted)
    text = _text(operand, place)
    return lambda value: isinstance(value, str) and has(value, text)


def _only(operand: Mapping[str, object], name: str, place: str) -> object:
    if set(operand) != {name}:
        refuse(place, f'it takes a text, or {{"{name}": TEXT}}')
    return operand[name]


def _equals_ignore_case(operand: object, place: str) -> Test:
    text = _text(operand, place).lower()
    return lambda value: isinstance(value, str) and value.lower() == text


def _wildcard(operand: object, place: str) -> Test:
    first, *others = _pieces(_text(operand, place), place)
    if not others:
        return lambda value: value == first
    *middle, last = others

    def test(value: object) -> bool:
        if not isinstance(value, str) or not value.startswith(first):
            return False
        end, at = len(value) - len(last), len(first)
        for piece in middle:
            at = value.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return at <= end and value.endswith(last)

    return test


def _pieces(text: str, place: str) -> list[str]:
    pieces, at, was_star = [""], 0, False
    while at < len(text):
        letter = text[at]
        if letter == "*":
            if was_star:
                refuse(place, "two stars side by side; one matches any number of characters")
            pieces.append("")
        elif letter == "\\":
            at += 1
            if text[at : at + 1] not in {"*", "\\"}:
                refuse(place, r"a backslash stands only before * or another backslash")
            pieces[-1] += text[at]
        else:
            pieces[-1] += letter
        was_star = letter == "*"
        at += 1
    return pieces


def _anything_but(operand: object, place: str) -> Test:
    if isinstance(operand, dict):
        if len(operand) != 1 or (make := _EXCLUDABLE.get(*operand)) is None:
            refuse(
                place, f"it takes values, or one of {', '.join(_EXCLUDABLE)} with a text or an array of texts"
            )
        ((name, texts),) = cast("dict[str, object]", operand).items()
        at = inner(place, name)
        return _AnyTest(tuple(make(text, at) for text in _texts(texts, at)), wanted=False)
    values = cast("list[object]", operand) if isinstance(operand, list) else [operand]
    if not values or not all(isinstance(each, str) or _is_number(each) for each in values):
        refuse(place, "it takes a text, a number, or an array of them")
    return _AnyTest((_one_of(values),), wanted=False)


_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": lt,
    "<=": le,
    "=": eq,
    ">": gt,
    ">=": ge,
}


def _numeric(operand: object, place: str) -> Test:
    words = cast("list[object]", operand) if isinstance(operand, list) else []
    if len(words) not in {2, 4}:
        refuse(place, 'it takes an array like [">", 0, "<=", 5] or ["=", 1]')
    bounds: list[tuple[str, float]] = []
    for at in range(0, len(words), 2):
        sign, number = words[at], words[at + 1]
        if not isinstance(sign, str) or sign not in _COMPARISONS:
            refuse(f"{place}[{at}]", f"it takes one of {' '.join(_COMPARISONS)}")
        if not _is_number(number):
            refuse(f"{place}[{at + 1}]", "it takes a number")
        bounds.append((sign, cast("float", number)))
    if len(bounds) == 2:
        (low_sign, low), (high_sign, high) = bounds
        if low_sign[0] != ">" or high_sign[0] != "<" or not low < high:
            refuse(place, "a range is a lower bound with > or >=, then a higher one with < or <=")
    tests = tuple((_COMPARISONS[sign], number) for sign, number in bounds)
    return lambda value: (
        _is_number(value) and all(is_so(cast("float", value), number) for is_so, number in tests)
    )


def _exists(operand: object, place: str) -> Test:
    if operand is not True:
        refuse(place, "it takes true or false")
    return lambda _: True


def _cidr(operand: object, place: str) -> Test:
    try:
        network = ip_network(_text(operand, place), strict=False)
    except ValueError as wrong:
        refuse(place, str(wrong))

    def test(value: object) -> bool:
        try:
            return isinstance(value, str) and ip_address(value) in network
        except ValueError:
            return False

    return test


_OPERATORS: Final[Mapping[str, Callable[[object, str], Test]]] = {
    "anything-but": _anything_but,
    "cidr": _cidr,
    "equals-ignore-case": _equals_ignore_case,
    "exists": _exists,
    "numeric": _numeric,
    "wildcard": _wildcard,
}
_EXCLUDABLE: Final[Mapping[str, Callable[[object, str], Test]]] = {
    "prefix": lambda text, place: _affix(text, place, str.startswith),
    "suffix": lambda text, place: _affix(text, place, str.endswith),
    "equals-ignore-case": _equals_ignore_case,
    "wildcard": _wildcard,
}
