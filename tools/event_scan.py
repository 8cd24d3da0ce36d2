"""Finds every log event in the source code, for the page of events and its test.

It reads syntax trees and runs none of the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_NOTICE: Final = "Notice"
_CHOSEN: Final = "at_level"  # the level is a setting: any
_NOTICE_LEVEL_PLACE: Final = 4
# Parameters and fields of these names hold an event that is named elsewhere.
_NOTHING: Final = frozenset[str]()
_PASSED_ON: Final = frozenset({"event", "name"})

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class LogCall:
    """One log call.

    `fields` leaves out those bound to the logger. `component` is the package that the log sees, such as
    `kcl_daemon.retrieval`.
    """

    event: str
    levels: frozenset[str]
    fields: frozenset[str]
    component: str
    where: str


class UnreadableEvent(ValueError):
    """Raised for a log call whose event is not a literal; says where and what to write."""


def events_of(package: Path, component: str | None = None) -> list[LogCall]:
    """All log calls of an import package; `component` None means the package of each module.

    Raises:
        UnreadableEvent: an event name is built at run time.
    """
    found: list[LogCall] = []
    for path in sorted(package.rglob("*.py")):
        inner = path.relative_to(package).with_suffix("").parts
        where = Path(package.name, path.relative_to(package)).as_posix()
        who = component or ".".join((package.name, *inner[:1]))
        found += _Module(ast.parse(path.read_bytes()), who, where).said()
    return found


class _Module:
    def __init__(self, tree: ast.Module, component: str, where: str) -> None:
        self._component = component
        self._where = where
        self._scopes: dict[ast.AST, _Function | None] = {}
        self._functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
        self._calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for function in self._functions:  # outer functions come first, so the innermost wins
            for node in ast.walk(function):
                self._scopes[node] = function

    def said(self) -> Iterator[LogCall]:
        forwarders = self._forwarders()
        for call in self._calls:
            found, fields, place = self._levels(call.func, call), _fields(call), 0
            if not found:
                found, fields = forwarders.get(_last_name(call.func), (_NOTHING, _NOTHING))
            if not found:
                found, fields, place = _leading_level(call), _fields(call), 1
            if not found or len(call.args) <= place:
                continue
            for name in self._names(call.args[place], call):
                yield LogCall(name, found, fields, self._component, f"{self._where}:{call.lineno}")

    def _forwarders(self) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
        """Functions that pass their parameter `event` to the log, with the levels and fields of that call."""
        found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for call in self._calls:
            function = self._scopes.get(call)
            first = call.args[0] if call.args else None
            if function is not None and isinstance(first, ast.Name) and first.id in _parameters(function):
                levels, fields = found.get(function.name, (_NOTHING, _NOTHING))
                found[function.name] = (levels | self._levels(call.func, call), fields | _fields(call))
        return {name: each for name, each in found.items() if each[0]}

    def _levels(self, callee: ast.expr, call: ast.Call) -> frozenset[str]:
        """The levels of a log call; empty if the callee is not a logger."""
        match callee:
            case ast.Attribute(attr=level, value=receiver) if level in LEVELS and _is_log(receiver):
                return frozenset({level})
            case ast.Call(func=ast.Name(id=name)) if name == _CHOSEN:
                return frozenset(LEVELS)
            case ast.IfExp(body=one, orelse=other):
                return self._levels(one, call) | self._levels(other, call)
            case ast.Name(id=name) if name == _NOTICE:
                return _levels_of_notice(call)
            case ast.Name(id=name):
                found = (self._levels(value, call) for value in self._values(name, call))
                return frozenset().union(*found)
            case _:
                return frozenset()

    def _names(self, event: ast.expr, call: ast.Call) -> Iterator[str]:
        """The event names that the argument may be; none if it is named elsewhere."""
        match event:
            case ast.Constant(value=str(name)) if _NAME.fullmatch(name):
                yield name
            case ast.IfExp(body=one, orelse=other):
                yield from self._names(one, call)
                yield from self._names(other, call)
            case ast.Attribute(attr=name) if name in _PASSED_ON:
                return
            case ast.Name(id=name) if values := list(self._values(name, call)):
                for value in values:
                    if not isinstance(
                        value, ast.Call
                    ):  # a call returns an event from outside, such as a line of the engine
                        yield from self._names(value, call)
            case ast.Name(id=name) if name in _PASSED_ON:
                return
            case _:
                where = f"{self._where}:{call.lineno}"
                raise UnreadableEvent(
                    f"{where}: {ast.unparse(event)}: write the event out as a snake_case text, so that "
                    "docs/events.md can list it; what differs goes into fields"
                )

    def _values(self, name: str, call: ast.Call) -> Iterator[ast.expr]:
        """The values that the enclosing function assigns to a local variable."""
        function = self._scopes.get(call)
        for node in ast.walk(function) if function is not None else ():
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                yield node.value


def _leading_level(call: ast.Call) -> frozenset[str]:
    """The level before the event, as in the Spark engine: `tell("warning", "engine_refused", ...)`."""
    match call.args:
        case [ast.Constant(value=str(level)), ast.Constant(), *_] if level in LEVELS:
            return frozenset({level})
        case _:
            return frozenset()


def _fields(call: ast.Call) -> frozenset[str]:
    """A notice's keywords are not log fields."""
    if _last_name(call.func) == _NOTICE:
        return _NOTHING
    return frozenset(each.arg for each in call.keywords if each.arg and each.arg != "exc_info")


def _levels_of_notice(call: ast.Call) -> frozenset[str]:
    places = call.args[_NOTICE_LEVEL_PLACE : _NOTICE_LEVEL_PLACE + 1]
    given: Iterable[ast.expr] = (*places, *(each.value for each in call.keywords if each.arg == "level"))
    words = {node.value for each in given for node in ast.walk(each) if isinstance(node, ast.Constant)}
    return frozenset(word for word in words if isinstance(word, str)) or frozenset({"warning"})


def _is_log(receiver: ast.expr) -> bool:
    match receiver:
        case ast.Call(func=ast.Attribute(attr="bind", value=inner)):
            return _is_log(inner)
        case ast.Call(func=function):  # a call that returns a logger: self._log_of(shard).info("...")
            return _is_log(function)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "log" in name.split("_")
        case _:
            return False


def _last_name(callee: ast.expr) -> str:
    match callee:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _parameters(function: _Function) -> set[str]:
    arguments = function.args
    named = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return named & _PASSED_ON
