"""What a user's function takes: its signature alone decides, before anything runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from kcl_client._processor import Batch, Record

UserFunction = Callable[..., object]

_NAMED: Final = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})
_EXAMPLE: Final = "such as `def handle(order: Order) -> None`"


class CannotRun(Exception):
    """`FILE:LINE: reason`, after `trace`, a traceback or nothing."""

    def __init__(self, reason: str, *, where: str = "", trace: str = "") -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.trace = trace


class Takes(Enum):
    RECORD = "record"
    BYTES = "bytes"
    TEXT = "text"
    BATCH = "batch"
    VALUE = "value"


_AS_THEY_ARE: Final[Mapping[object, Takes]] = {
    Record: Takes.RECORD,
    Batch: Takes.BATCH,
    bytes: Takes.BYTES,
    str: Takes.TEXT,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """`annotation` is the type of a VALUE; `with_record`: the second argument is the record."""

    takes: Takes
    annotation: Any
    with_record: bool
    is_async: bool
    name: str
    where: str


def shape_of(function: object) -> Shape:
    where, name = place_of(function), str(getattr(function, "__qualname__", function))
    if not callable(function) or inspect.isclass(function):
        raise CannotRun(f"{name} is not a function", where=where)
    try:
        takes, annotation, with_record = _taken_by(function)
    except (CannotRun, ValueError) as error:
        raise CannotRun(f"{name} {error}", where=where) from None
    is_async = inspect.iscoroutinefunction(_with_code(function))
    return Shape(takes, annotation, with_record, is_async, name, where)


def _taken_by(function: UserFunction) -> tuple[Takes, Any, bool]:
    code = _with_code(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise CannotRun("has `yield`, so a call does nothing; remove it")
    first, second = _parameters(inspect.signature(function))
    annotation = _annotation(function, first)
    if second is not None and _annotation(function, second) is not Record:
        advice = f"annotate the second one with Record, or take one, {_EXAMPLE}"
        raise CannotRun(f"takes two arguments ({first.name}, {second.name}); {advice}")
    takes = _taken(annotation)
    if takes is Takes.BATCH and second is not None:
        raise CannotRun("takes a Batch and a record; take the Batch alone, it has the records")
    return takes, annotation, second is not None


def _taken(annotation: object) -> Takes:
    if annotation is inspect.Parameter.empty:
        return Takes.RECORD
    try:
        return _AS_THEY_ARE.get(annotation, Takes.VALUE)
    except TypeError:  # not hashable, such as Annotated[int, {}]
        return Takes.VALUE


def _parameters(signature: inspect.Signature) -> tuple[inspect.Parameter, inspect.Parameter | None]:
    needed: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        if each.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            continue
        if each.default is not inspect.Parameter.empty:
            continue
        if each.kind not in _NAMED:
            raise CannotRun(f"needs the keyword {each.name}, which nobody gives; give it a default")
        needed.append(each)
    if not needed:
        found = next((each for each in signature.parameters.values() if each.kind in _NAMED), None)
        if found is None:
            raise CannotRun(f"takes no argument that it names; take the record, {_EXAMPLE}")
        needed.append(found)
    if len(needed) > 2:
        names = ", ".join(each.name for each in needed)
        raise CannotRun(f"takes {len(needed)} arguments ({names}); take one, {_EXAMPLE}")
    return needed[0], needed[1] if len(needed) > 1 else None


class _Annotated:
    """`get_type_hints` looks at one annotation: others may exist for checkers only."""

    __annotations__: dict[str, object]


def _annotation(function: Callable[..., object], parameter: inspect.Parameter) -> object:
    if parameter.annotation is inspect.Parameter.empty:
        return parameter.annotation
    holder = _Annotated()
    holder.__annotations__ = {parameter.name: parameter.annotation}
    names: dict[str, Any] = getattr(_with_code(function), "__globals__", {})
    try:
        found = get_type_hints(holder, names, include_extras=True)[parameter.name]
    except NameError as error:
        advice = f"import {error.name} at the top of the file, not under `if TYPE_CHECKING`"
        raise CannotRun(f"has the annotation {parameter.annotation}, which is not known; {advice}") from None
    except Exception as error:  # noqa: BLE001 - the user's own text is evaluated
        raise CannotRun(f"has the annotation {parameter.annotation}, which cannot be read: {error}") from None
    if get_origin(found) is Annotated and get_args(found)[0] in {Record, Batch}:
        return get_args(found)[0]
    return found


def _with_code(function: object) -> object:
    """Inside of decorators, partials, methods and callable objects."""
    found: Any = function
    while not hasattr(found, "__code__") or hasattr(found, "__wrapped__"):
        inner = next((name for name in ("__wrapped__", "func", "__func__") if hasattr(found, name)), None)
        if inner is not None:
            found = getattr(found, inner)
        elif hasattr(type(found).__call__, "__code__"):
            found = type(found).__call__
        else:
            break
    return found


def place_of(function: object) -> str:
    code = getattr(_with_code(function), "__code__", None)
    return "" if code is None else f"{short(code.co_filename)}:{code.co_firstlineno}"


def short(file: str) -> str:
    path = Path(file)
    here = Path(os.getcwd())  # noqa: PTH109 - without following links, as in the names of modules
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
