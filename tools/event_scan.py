"""Finds every log event in the source code: its name, its levels, its fields, who says it.

Reads syntax trees, runs nothing of what it reads. For the page of events and its test; the daemon itself never needs
it. Knows nothing of what events mean.
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
# Where events pass through that were named elsewhere: parameters and fields of these names.
_NOTHING: Final = frozenset[str]()
_PASSED_ON: Final = frozenset({"event", "name"})

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class LogCall:
    """One place in the code that logs an event.

    Args:
        event: its name.
        levels: the levels that it may have there.
        fields: names of the fields that are given there; those of the logger itself are not among them.
        component: the package of the module that the log sees, such as `kcl_daemon.retrieval`.
        where: file and line.
    """

    event: str
    levels: frozenset[str]
    fields: frozenset[str]
    component: str
    where: str


class UnreadableEvent(ValueError):
    """Raised for a log call whose event is not written out; says where and what to write."""


def events_of(package: Path, component: str | None = None) -> list[LogCall]:
    """Every event that the modules of an import package log.

    Args:
        package: its folder.
        component: who says them; None: the package inside it.

    Raises:
        UnreadableEvent: an event is put together at run time.
    """
    found: list[LogCall] = []
    for path in sorted(package.rglob("*.py")):
        inner = path.relative_to(package).with_suffix("").parts
        where = Path(package.name, path.relative_to(package)).as_posix()
        who = component or ".".join((package.name, *inner[:1]))
        found += _Module(ast.parse(path.read_bytes()), who, where).said()
    return found


class _Module:
    """One module: the calls in it that log.

    Args:
        tree: its syntax.
        component: for the result.
        where: its file.
    """

    def __init__(self, tree: ast.Module, component: str, where: str) -> None:
        self._component = component
        self._where = where
        self._scopes: dict[ast.AST, _Function | None] = {}
        self._functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
        self._calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for function in self._functions:  # outer ones come first, so that the innermost stays
            for node in ast.walk(function):
                self._scopes[node] = function

    def said(self) -> Iterator[LogCall]:
        """What it logs."""
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
        """Functions that log the event they are given, with levels and fields of the log call in them.

        They have a parameter `event` that ends up there.
        """
        found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for call in self._calls:
            function = self._scopes.get(call)
            first = call.args[0] if call.args else None
            if function is not None and isinstance(first, ast.Name) and first.id in _parameters(function):
                levels, fields = found.get(function.name, (_NOTHING, _NOTHING))
                found[function.name] = (levels | self._levels(call.func, call), fields | _fields(call))
        return {name: each for name, each in found.items() if each[0]}

    def _levels(self, callee: ast.expr, call: ast.Call) -> frozenset[str]:
        """The levels with which a callee logs; none where it is no logger."""
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
        """The names that the first argument may be; none where the event was named elsewhere."""
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
                    if not isinstance(value, ast.Call):  # it came from outside, such as a line of the engine
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
        """What a local variable of the function around a call is set to."""
        function = self._scopes.get(call)
        for node in ast.walk(function) if function is not None else ():
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                yield node.value


def _leading_level(call: ast.Call) -> frozenset[str]:
    """The level in front of the event, as the Spark engine has it: `tell("warning", "engine_refused", ...)`."""
    match call.args:
        case [ast.Constant(value=str(level)), ast.Constant(), *_] if level in LEVELS:
            return frozenset({level})
        case _:
            return frozenset()


def _fields(call: ast.Call) -> frozenset[str]:
    """The fields that a log call gives; a notice's keywords are none."""
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
        case ast.Call(func=function):  # one that gives a logger: self._log_of(shard).info("...")
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
