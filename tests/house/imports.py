"""Who imports whom, among the files of the product: circles, and what the start of the daemon loads."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.house.files import parts

# `kcl-daemon --properties FILE`: the program, and what its command `run` imports when it is called.
ENTRIES: Final = ("kcl_daemon.__main__", "kcl_daemon.cli", "kcl_daemon.cli.run")


@dataclass(frozen=True)
class Imports:
    """Names of modules of ours, without itself. Imports that only type checkers read are in none of them."""

    at_once: frozenset[str]
    """When the module is loaded."""
    later: frozenset[str]
    """Inside a function."""

    @property
    def all(self) -> frozenset[str]:
        return self.at_once | self.later


def imports_of(name: str, module: ast.Module, known: Collection[str]) -> Imports:
    """Of the module of this name; `known` has the names of all modules of ours."""
    at_once: set[str] = set()
    later: set[str] = set()
    for node, is_later in _lines(module, is_later=False):
        (later if is_later else at_once).update(_named(node, known))
    return Imports(frozenset(at_once - {name}), frozenset(later - at_once - {name}))


def _lines(node: ast.AST, *, is_later: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import, and whether it stands inside a function."""
    for each in parts(node):
        if isinstance(each, ast.Import | ast.ImportFrom):
            yield each, is_later
        elif not _is_for_types(each):
            is_function = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _lines(each, is_later=is_later or is_function)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _named(node: ast.Import | ast.ImportFrom, known: Collection[str]) -> Iterator[str]:
    for alias in node.names:
        names = (
            (alias.name,) if isinstance(node, ast.Import) else (f"{node.module}.{alias.name}", node.module)
        )
        yield from [name for name in names if name is not None and name in known][:1]


def reached(start: Iterable[str], edges: Mapping[str, Iterable[str]]) -> set[str]:
    """What can be reached over at least one edge."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components of more than one, each sorted."""
    beyond = {name: reached([name], edges) for name in edges}
    found = {
        tuple(sorted(other for other in there if name in beyond.get(other, ())))
        for name, there in beyond.items()
        if name in there
    }
    return sorted(list(circle) for circle in found)


def loaded(imports: Mapping[str, Imports], start: Iterable[str] = ENTRIES) -> set[str]:
    """Modules that are loaded with those of `start`, and with the packages around them."""
    edges = {name: _with_packages(each.at_once) & imports.keys() for name, each in imports.items()}
    begun = _with_packages(start) & imports.keys()
    return begun | reached(begun, edges)


def _with_packages(names: Iterable[str]) -> set[str]:
    parts = [name.split(".") for name in names]
    return {".".join(each[:length]) for each in parts for length in range(1, len(each) + 1)}
