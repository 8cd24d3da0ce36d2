"""Our Terraform files as values: parsed, references to variables and tables replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import hcl2

# Any: the parser's own trees.
Tree = Any
_REFERENCE: Final = re.compile(r"\$\{([^}]+)\}")


def load(folder: Path) -> dict[str, dict[str, Tree]]:
    """Resources and data sources of all files, by `kind.name`, each as its attributes and lists of blocks."""
    found: dict[str, dict[str, Tree]] = {}
    for path in sorted(folder.glob("*.tf")):
        with path.open(encoding="utf-8") as file:
            tree = cast("dict[str, list[Tree]]", hcl2.load(file))
        for block in (*tree.get("resource", []), *tree.get("data", [])):
            for kind, named in _plain(block).items():
                found |= {f"{kind}.{name}": body for name, body in named.items()}
    return found


def resolve(tree: Tree, values: Mapping[str, str]) -> Tree:
    """The tree with every `${reference}` replaced by its value."""
    if isinstance(tree, list):
        return [resolve(each, values) for each in tree]
    if isinstance(tree, dict):
        return {name: resolve(each, values) for name, each in cast("dict[str, Tree]", tree).items()}
    if isinstance(tree, str):
        return _REFERENCE.sub(lambda match: values[match[1]], tree)
    return tree


def _plain(tree: Tree) -> Tree:
    """Without the parser's quotes and notes."""
    if isinstance(tree, list):
        return [_plain(each) for each in tree]
    if isinstance(tree, dict):
        return dict(_entries(cast("dict[str, Tree]", tree)))
    if isinstance(tree, str):
        return tree.removeprefix('"').removesuffix('"')
    return tree


def _entries(table: Mapping[str, Tree]) -> Iterator[tuple[str, Tree]]:
    for name, each in table.items():
        if not name.startswith("__"):
            yield name.strip('"'), _plain(each)
