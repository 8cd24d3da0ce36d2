"""The shape of the repository: folders that are no packages, sizes, what goes into the wheel, what no file may name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kcl_daemon
from tests.house.files import ROOT, content, modules, shown, statements, tracked, tree

PACKAGE_FOLDERS = ("daemon", "protocol", "clients/python", "clients/landing", "clients/pyspark")
SINGLE_FILES = (
    "clients/pyspark/kcl_spark_sink.py",
    "clients/pyspark/kcl_spark_source.py",
    "clients/pyspark/pyspark_kcl.py",
)
"""Handed to Spark as it is, so it cannot be several."""
MODULE_LINES_MOST = 700
FUNCTION_LINES_MOST = 70
_DEFINITION = re.compile(rb"^( *)(def|async def|class|@)", re.MULTILINE)
# In two pieces, so that this file does not hold them.
FORBIDDEN = ("/wo" + "rk/", ".." + "/shared")


def packages() -> list[Path]:
    """Every import package on disk."""
    return sorted(init.parent for folder in PACKAGE_FOLDERS for init in (ROOT / folder).glob("*/__init__.py"))


def may_have_long_function(text: bytes) -> bool:
    """A function ends before the next definition that stands no deeper: without a parser, so that few files need one."""
    open_ones: list[tuple[int, int]] = []
    place = line = quotes = 0
    for found in (*_DEFINITION.finditer(text), None):
        end = len(text) if found is None else found.start()
        line += text.count(b"\n", place, end)
        quotes += text.count(b'"""', place, end)
        place = end
        depth = -1 if found is None else len(found[1])
        if found is not None and quotes % 2:
            continue  # inside a string
        while open_ones and open_ones[-1][0] >= depth:
            if line - open_ones.pop()[1] > FUNCTION_LINES_MOST:
                return True
        if found is not None and found[2].endswith(b"def"):
            open_ones.append((depth, line))
    return False


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in statements(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_are_modules_to_look_at() -> None:
    assert len(modules()) > 100


@pytest.mark.parametrize(
    "folder",
    ["daemon", "protocol", "clients", "clients/python", "clients/landing", "clients/pyspark", "packaging"],
)
def test_top_level_folders_are_no_packages(folder: str) -> None:
    # A package of that name would shadow one that others install: `packaging` is what pytest itself imports.
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_every_package_is_typed() -> None:
    assert [shown(package) for package in packages() if not (package / "py.typed").is_file()] == []


def test_the_wheel_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    declared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(declared) == sorted([*(shown(package) for package in packages()), *SINGLE_FILES])


def test_the_version_is_where_the_build_looks_for_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    text = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text("utf-8")
    assert f'__version__ = "{kcl_daemon.__version__}"' in text
    assert re.fullmatch(r"\d+\.\d+\.\d+", kcl_daemon.__version__)


def test_no_module_is_too_long() -> None:
    lengths = {
        shown(path): len(content(path).splitlines()) for path in modules() if shown(path) not in SINGLE_FILES
    }
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MOST} == {}


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{shown(path)}:{function.lineno} {function.name}"
        for path in modules()
        if may_have_long_function(content(path))
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MOST
    ]
    assert too_long == []


@pytest.mark.parametrize("line", ["1", '"""', "# def g():", "def g(): ..."])
def test_a_function_that_may_be_too_long_is_looked_at(line: str) -> None:
    longest = "def f():\n" + f"    {line}\n" * FUNCTION_LINES_MOST
    assert may_have_long_function(longest.encode())
    assert may_have_long_function(f'def f():\n    """\ndef g():\n"""\n{longest}'.encode())
    assert not may_have_long_function(
        b"class C:\n" + b"    def f():\n        1\n" * FUNCTION_LINES_MOST + b"1\n"
    )


def test_no_file_names_the_place_where_it_was_written() -> None:
    found = [
        f"{shown(path)}: {word}" for path in tracked() for word in FORBIDDEN if word.encode() in content(path)
    ]
    assert found == []
