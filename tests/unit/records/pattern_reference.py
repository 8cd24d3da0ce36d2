"""What an event pattern means, as plainly as it can be said; and patterns and events made by chance.

An array is any one of its elements: a pattern matches if it does for some choice of an element in each array. Only
`exists: false` looks at all of them. Alternatives of an `$or` here never name a field that stands beside the `$or`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from random import Random  # noqa: TID251 - seeded; the generators of hypothesis take ten times as long
from typing import Any

Json = Any
_NOTHING = object()


def readings(value: Json) -> Iterator[Json]:
    """The value with each array replaced by one of its elements, in every way."""
    if isinstance(value, dict):
        keys = list(value)
        for chosen in itertools.product(*(list(readings(value[key])) for key in keys)):
            yield {key: each for key, each in zip(keys, chosen, strict=True) if each is not _NOTHING}
    elif isinstance(value, list):
        found = [each for element in value for each in readings(element)]
        yield from found or [_NOTHING]
    else:
        yield value


def matches(pattern: Json, event: Json) -> bool:
    """Whether an event, which is an object, matches."""
    every = list(readings(event))
    return any(_is_so(pattern, reading, every, ()) for reading in every)


def _is_so(pattern: Json, reading: Json, every: list[Json], path: tuple[str, ...]) -> bool:
    for key, wanted in pattern.items():
        if key == "$or":
            so = any(_is_so(each, reading, every, path) for each in wanted)
        elif isinstance(wanted, dict):
            so = _is_so(wanted, reading, every, (*path, key))
        else:
            found = _at(reading, (*path, key))
            so = any(_fits(each, found, every, (*path, key)) for each in wanted)
        if not so:
            return False
    return True


def _at(reading: Json, path: tuple[str, ...]) -> Json:
    for key in path:
        if not isinstance(reading, dict) or key not in reading:
            return _NOTHING
        reading = reading[key]
    return _NOTHING if isinstance(reading, dict) else reading


def _fits(condition: Json, found: Json, every: list[Json], path: tuple[str, ...]) -> bool:  # noqa: PLR0911 - a table
    if condition == {"exists": False}:
        return all(_at(reading, path) is _NOTHING for reading in every)
    if found is _NOTHING:
        return False
    if not isinstance(condition, dict):
        return _same(condition, found)
    ((operator, operand),) = condition.items()
    match operator:
        case "exists":
            return True
        case "numeric":
            return type(found) in (int, float) and _in_range(operand, found)
        case "anything-but":
            return not _is_excluded(operand, found)
        case _:
            return isinstance(found, str) and _text_fits(operator, operand, found)


def _same(one: Json, other: Json) -> bool:
    kinds = [float if type(each) is int else type(each) for each in (one, other)]
    return kinds[0] is kinds[1] and bool(one == other)


def _in_range(operand: Json, number: float) -> bool:
    number = float(number)
    signs = {
        "<": number.__lt__,
        "<=": number.__le__,
        "=": number.__eq__,
        ">": number.__gt__,
        ">=": number.__ge__,
    }
    return all(signs[operand[at]](float(operand[at + 1])) is True for at in range(0, len(operand), 2))


def _is_excluded(operand: Json, found: Json) -> bool:
    if isinstance(operand, dict):
        ((operator, texts),) = operand.items()
        every = texts if isinstance(texts, list) else [texts]
        return isinstance(found, str) and any(_text_fits(operator, each, found) for each in every)
    return any(_same(each, found) for each in (operand if isinstance(operand, list) else [operand]))


def _text_fits(operator: str, operand: Json, text: str) -> bool:  # noqa: PLR0911 - a table
    if isinstance(operand, dict):
        return _text_fits(operator, operand["equals-ignore-case"].lower(), text.lower())
    match operator:
        case "prefix":
            return bool(text[: len(operand)] == operand)
        case "suffix":
            return text[len(text) - len(operand) :] == operand if len(operand) <= len(text) else False
        case "equals-ignore-case":
            return bool(text.lower() == operand.lower())
        case "wildcard":
            pieces = re.findall(r"\\.|\*|[^\\*]", operand, re.DOTALL)
            expression = "".join(".*" if each == "*" else re.escape(each[-1]) for each in pieces)
            return re.fullmatch(expression, text, re.DOTALL) is not None
        case "cidr":
            try:
                return ip_address(text) in ip_network(operand, strict=False)
            except ValueError:
                return False
        case _:
            raise AssertionError(operator)


_KEYS = ("a", "b", "c", "ä", 'q"')
_TEXTS = ("", "a", "ab", "aba", "A", "Ab", "b*", "ab\\", "é", "x\ny", "10.0.0.7", "10.1.0.7", "1", "true")
_NUMBERS = (0, 1, 1.0, -1, 2.5, 10, 1e3)
_WILDCARDS = ("*", "a*", "*b*", "a*a", "*\\*", "ab\\\\", "b", "a*b*a")


def some_scalar(chance: Random) -> Json:
    return chance.choice((*_TEXTS, *_NUMBERS, True, False, None))


def some_event(chance: Random, depth: int = 3) -> dict[str, Json]:
    return {key: _some_value(chance, depth - 1) for key in chance.sample(_KEYS, chance.randint(0, 3))}


def _some_value(chance: Random, depth: int) -> Json:
    kind = chance.random()
    if depth <= 0 or kind < 0.4:
        return some_scalar(chance)
    if kind < 0.7:
        return some_event(chance, depth)
    return [_some_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]


def some_pattern(chance: Random, depth: int = 3, keys: tuple[str, ...] = _KEYS) -> dict[str, Json]:
    chosen = chance.sample(keys, chance.randint(1, min(2, len(keys))))
    pattern: dict[str, Json] = {key: _some_field(chance, depth - 1) for key in chosen}
    left = tuple(key for key in keys if key not in chosen)
    if left and depth > 1 and chance.random() < 0.3:
        pattern["$or"] = [some_pattern(chance, depth - 1, left) for _ in range(chance.randint(2, 3))]
        if chance.random() < 0.3:
            for key in chosen:
                del pattern[key]
    return pattern


def _some_field(chance: Random, depth: int) -> Json:
    if depth > 0 and chance.random() < 0.4:
        return some_pattern(chance, depth)
    return [_some_condition(chance) for _ in range(chance.choice((1, 1, 2, 3)))]


def _some_condition(chance: Random) -> Json:
    text = chance.choice(_TEXTS)
    low, high = sorted(chance.sample((-1, 0, 0.5, 1, 2.5, 7, 10, 1000), 2))
    return chance.choice(
        (
            some_scalar(chance),
            some_scalar(chance),
            some_scalar(chance),
            {"exists": chance.random() < 0.5},
            {"prefix": chance.choice((text, {"equals-ignore-case": text}))},
            {"suffix": chance.choice((text, {"equals-ignore-case": text}))},
            {"equals-ignore-case": text},
            {"wildcard": chance.choice(_WILDCARDS)},
            {"cidr": chance.choice(("10.0.0.0/24", "10.0.0.7", "::1/128"))},
            {"numeric": [chance.choice(("<", "<=", "=", ">", ">=")), chance.choice(_NUMBERS)]},
            {"numeric": [chance.choice((">", ">=")), low, chance.choice(("<", "<=")), high]},
            {"anything-but": chance.choice((text, 1, [text, "a"], [1, 2.5], [text, 0]))},
            {"anything-but": {chance.choice(("prefix", "suffix", "equals-ignore-case")): [text, "ab"]}},
            {"anything-but": {"wildcard": chance.choice(_WILDCARDS)}},
        )
    )
