"""The files of the repository: which there are, what is in them."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_LISTS: Final = ("body", "handlers", "cases", "orelse", "finalbody")
_HAVE_PARTS: Final = (ast.mod, ast.stmt, ast.excepthandler, ast.match_case)
_PARTS: Final[Mapping[type[ast.AST], tuple[str, ...]]] = {
    kind: tuple(each for each in _LISTS if each in kind._fields)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, _HAVE_PARTS)
}
SOURCE_FOLDERS: Final = ("daemon", "protocol", "clients", "tests")


def listed(root: Path) -> list[Path]:
    """Every file that git knows or would take; without git (an sdist) whatever is no dot file."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        found = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=60)
        paths = [root / name for name in found.stdout.split("\0") if name]
    else:
        hidden = re.compile(r"/(\.|__pycache__)")
        paths = [path for path in root.rglob("*") if not hidden.search(f"/{path.relative_to(root)}")]
    return [path for path in paths if path.is_file()]


@cache
def tracked() -> tuple[Path, ...]:
    return tuple(listed(ROOT))


@cache
def modules() -> tuple[Path, ...]:
    """Of the product and of the tests."""
    folders = tuple(f"{ROOT / folder}/" for folder in SOURCE_FOLDERS)
    return tuple(path for path in tracked() if path.suffix == ".py" and str(path).startswith(folders))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def content(path: Path) -> bytes:
    return path.read_bytes()


@cache
def tree(path: Path) -> ast.Module:
    found = ast.parse(content(path))
    gc.freeze()  # who keeps many would have them looked through for garbage, which takes longer than to parse them
    return found


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """What stands directly in a module or a statement: statements, handlers, cases."""
    for name in _PARTS[type(node)]:
        yield from getattr(node, name)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Of a module or a statement, in all depths: a fifth of the nodes that `ast.walk` visits."""
    for each in parts(node):
        if isinstance(each, ast.stmt):
            yield each
        yield from statements(each)
