"""What the house measures: files, lines, words, import cycles, small classes, long constructors.

`python -m tests.house.figures` prints the table; `test_figures.py` holds it within its bounds.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from tests.house.files import ROOT, content, statements, tree

PACKAGES: Final[Mapping[str, str]] = {
    "kcl_daemon": "daemon",
    "kcl_local": "daemon",
    "kcl_prove": "daemon",
    "kcl_protocol": "protocol",
    "kcl_client": "clients/python",
    "kcl_landing": "clients/landing",
    "kcl_spark": "clients/pyspark",
}
_PARAMETERS_MOST: Final = 8
# What has no behaviour of its own, or stands for what others have.
_NO_BEHAVIOUR: Final = ("NamedTuple", "TypedDict", "Enum", "Exception", "Error", "Protocol", "Struct")
# A comment, or a string, in which a # begins none. A tokenizer in Python takes twenty times as long.
_STRING_OR_COMMENT: Final = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""|\'{3}(?:[^\\]|\\.)*?\'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#(?P<comment>[^\n]*)''',
    re.DOTALL,
)


@dataclass(frozen=True)
class SourceFile:
    """One module of the product."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return tree(self.path)

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in statements(self.tree) if isinstance(node, ast.ClassDef)]

    @property
    def package(self) -> str:
        """The import package it is in; modules at the top of a distribution stand for themselves."""
        if self.path.name == "__init__.py":
            return self.name
        above = self.name.rpartition(".")[0]
        return above if "." in above else self.name

    @property
    def words(self) -> int:
        """Of docstrings and comments."""
        said = [
            node.value.value
            for node in statements(self.tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]
        said += [each["comment"] for each in _STRING_OR_COMMENT.finditer(self.text) if each["comment"]]
        return sum(len(each.split()) for each in said)


def source_files(root: Path = ROOT) -> list[SourceFile]:
    """Every module of daemon, protocol and clients."""
    found: list[SourceFile] = []
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder / package).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            found.append(SourceFile(name, path, content(path).decode()))
    return found


def package_cycles(files: list[SourceFile]) -> list[list[str]]:
    """Packages that import each other in a circle, each circle sorted."""
    by_name = {file.name: file for file in files}
    edges: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for target in _imports(file.tree, by_name):
            if target.package != file.package:
                edges[file.package].add(target.package)
    reached = {package: _reached(package, edges) for package in list(edges)}
    circles = {
        tuple(sorted(other for other in reached[package] if package in reached.get(other, ())))
        for package in reached
    }
    return sorted(list(circle) for circle in circles if circle)


def _imports(module: ast.Module, by_name: Mapping[str, SourceFile]) -> Iterator[SourceFile]:
    for node in statements(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                target = by_name.get(f"{node.module}.{alias.name}") or by_name.get(node.module)
                if target is not None:
                    yield target


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def one_method_share(files: list[SourceFile]) -> float:
    """Part of all classes that have one public method and are no values: they could be functions."""
    classes = [node for file in files for node in file.classes]
    small = [node for node in classes if not _is_value(node) and len(list(_public_methods(node))) == 1]
    return len(small) / len(classes)


def _public_methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_"):
            yield item


def _is_value(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
    return any(word in mark for mark in marks for word in _NO_BEHAVIOUR)


def long_constructors(files: list[SourceFile]) -> list[str]:
    """Classes whose `__init__` takes more than eight parameters beside self."""
    found: list[str] = []
    for file in files:
        for node in file.classes:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    given = [*item.args.posonlyargs, *item.args.args[1:], *item.args.kwonlyargs]
                    if len(given) > _PARAMETERS_MOST:
                        found.append(f"{file.name}.{node.name}: {len(given)}")
    return sorted(found)


def figures(root: Path = ROOT) -> dict[str, float]:
    """The table, by the name of each row."""
    files = source_files(root)
    return {
        "source files": len(files),
        "source lines": sum(len(file.text.splitlines()) for file in files),
        "longest file, lines": max(len(file.text.splitlines()) for file in files),
        "docstring and comment words": sum(file.words for file in files),
        "packages in import cycles": sum(map(len, package_cycles(files))),
        "classes with one public method, %": round(100 * one_method_share(files), 1),
        "constructors with more than 8 parameters": len(long_constructors(files)),
        "README lines": len((root / "README.md").read_text("utf-8").splitlines()),
    }


def main() -> None:
    """Print the table, and what stands behind its last rows."""
    for name, value in figures().items():
        print(f"{value:>10,}  {name}")  # noqa: T201 - this is what it is for
    files = source_files()
    for circle in package_cycles(files):
        print("cycle:", ", ".join(circle))  # noqa: T201
    for constructor in long_constructors(files):
        print("constructor:", constructor)  # noqa: T201


if __name__ == "__main__":
    main()
