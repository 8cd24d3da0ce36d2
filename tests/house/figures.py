"""What the house measures: files, lines and words by package, circles, and habits that are counted so that they end.

`python -m tests.house.figures` prints the table, and the bounds in `bounds.toml`; with --lower it lowers
them to the figures, with --shift it also raises those of packages, as far as the whole has room.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from tests.house.bounds import above, bounds, lowered, write
from tests.house.files import ROOT, content, modules, statements, tree
from tests.house.imports import Imports, circles, imports_of, loaded

PACKAGES: Final[Mapping[str, str]] = {
    "kcl_daemon": "daemon",
    "kcl_local": "daemon",
    "kcl_prove": "daemon",
    "kcl_protocol": "protocol",
    "kcl_client": "clients/python",
    "kcl_landing": "clients/landing",
    "kcl_spark": "clients/pyspark",
}
_LINES_MANY: Final = 600
_PARAMETERS_MOST: Final = 8
JSON_LIBRARIES: Final = ("json", "orjson", "msgspec")
_USES_JSON: Final = re.compile(r"^\s*(?:import|from) (json|orjson|msgspec)\b", re.MULTILINE)
# In two pieces, so that this file does not hold it.
_VAGUE_TEST: Final = b"def test_" + b"what_"
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
    def statements(self) -> list[ast.stmt]:
        return list(statements(self.tree))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.statements if isinstance(node, ast.ClassDef)]

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def bounded_as(self) -> str:
        """The package that has a bound: one below `kcl_daemon`, or the whole of another distribution."""
        parts = self.name.split(".")
        deep = parts[0] == "kcl_daemon" and (len(parts) > 2 or self.path.name == "__init__.py")
        return ".".join(parts[:2]) if deep else parts[0]

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
            for node in self.statements
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


def imports(files: list[SourceFile]) -> dict[str, Imports]:
    """Of each file, by name."""
    known = {file.name for file in files}
    return {file.name: imports_of(file.name, file.tree, known) for file in files}


def file_circles(found: Mapping[str, Imports]) -> list[list[str]]:
    return circles({name: each.all for name, each in found.items()})


def package_circles(files: list[SourceFile], found: Mapping[str, Imports]) -> list[list[str]]:
    """Packages that import each other in a circle, each circle sorted."""
    within = {file.name: file.package for file in files}
    edges: dict[str, set[str]] = defaultdict(set)
    for name, each in found.items():
        edges[within[name]] |= {within[other] for other in each.all} - {within[name]}
    return circles(edges)


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


def constants_below(module: ast.Module) -> list[str]:
    """Constants that could stand above the first class or function and do not."""
    below: list[str] = []
    defined: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif (name := _constant(node)) is None:
            continue
        elif any(isinstance(each, ast.Name) and each.id in defined for each in ast.walk(_value(node))):
            defined.add(name)
        elif defined:
            below.append(name)
    return below


def _constant(node: ast.stmt) -> str | None:
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr())
        ):
            return name if name.isupper() else None
        case _:
            return None


def _value(node: ast.stmt) -> ast.AST:
    return node.value if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None else node


def json_libraries(files: list[SourceFile]) -> dict[str, int]:
    """How many files of the daemon use each."""
    ours = [file for file in files if file.name.startswith("kcl_daemon")]
    used = [set(_USES_JSON.findall(file.text)) for file in ours]
    return {library: sum(library in each for each in used) for library in JSON_LIBRARIES}


def vague_tests() -> int:
    """Tests whose names begin with what they are about, where behaviour should stand."""
    return sum(content(path).count(_VAGUE_TEST) for path in modules())


def figures(root: Path = ROOT) -> dict[str, dict[str, float]]:
    """The table, by section and the name of each row."""
    files = source_files(root)
    lines, words = (Counter[str](), Counter[str]())
    for file in files:
        lines[file.bounded_as] += file.lines
        words[file.bounded_as] += file.words
    found = imports(files)
    plain = loaded(found)
    whole = {
        "source files": len(files),
        "source lines": lines.total(),
        "docstring and comment words": words.total(),
        "longest file, lines": max(file.lines for file in files),
        "files over 600 lines": len(long_files(files)),
        "files in import circles": sum(map(len, file_circles(found))),
        "packages in import circles": sum(map(len, package_circles(files, found))),
        "modules that a plain daemon loads": len(plain),
        "lines that a plain daemon loads": sum(file.lines for file in files if file.name in plain),
        "files with constants below a definition": sum(bool(constants_below(file.tree)) for file in files),
        **{f"files of the daemon with {name}": count for name, count in json_libraries(files).items()},
        "tests named test_what_": vague_tests(),
        "classes with one public method, %": round(100 * one_method_share(files), 1),
        "constructors with more than 8 parameters": len(long_constructors(files)),
        "README lines": len((root / "README.md").read_text("utf-8").splitlines()),
    }
    return {"whole": whole, "lines": dict(sorted(lines.items())), "words": dict(sorted(words.items()))}


def long_files(files: list[SourceFile]) -> list[str]:
    return [f"{file.name}, {file.lines}" for file in files if file.lines > _LINES_MANY]


def main() -> None:
    """Print the table, and what stands behind some of its rows; with --lower or --shift, write the bounds."""
    found = figures()
    limits = bounds()
    for section, rows in found.items():
        for name, value in rows.items():
            shown = name if section == "whole" else f"{section} of {name}"
            print(f"{value:>10,} of {limits[section].get(name, 0):>7,}  {shown}")  # noqa: T201 - this is what it is for
    files = source_files()
    known = imports(files)
    behind = {
        "over 600 lines": long_files(files),
        "circle": [", ".join(each) for each in (*file_circles(known), *package_circles(files, known))],
        "constructor": long_constructors(files),
        "above": above(found, limits),
        "changed": write(lowered(found, limits, shift="--shift" in sys.argv)) if sys.argv[1:] else [],
    }
    for name, lines in behind.items():
        for line in lines:
            print(f"{name}: {line}")  # noqa: T201


if __name__ == "__main__":
    main()
