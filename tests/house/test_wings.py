"""What `kcl-daemon run` imports before it knows its settings: no part that only some settings ask for."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.process.test_loaded import ABSENT

DAEMON: Final = Path(__file__).parents[2] / "daemon"
FIRST: Final = "kcl_daemon.cli.run"


def file_of(module: str) -> Path | None:
    path = DAEMON.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def at_once(body: Sequence[ast.stmt]) -> Iterator[str]:
    """What a module imports when it is imported itself."""
    for each in body:
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield from (f"{each.module}.{alias.name}" for alias in each.names)
            yield str(each.module)
        elif isinstance(each, ast.If) and "TYPE_CHECKING" not in ast.unparse(each.test):
            yield from at_once((*each.body, *each.orelse))
        elif isinstance(each, ast.Try):
            yield from at_once((*each.body, *each.orelse, *each.finalbody))


def closure(module: str) -> dict[str, str]:
    """All modules of ours that come with it, each with the one that imports it first."""
    found, waiting = {module: ""}, [module]
    while waiting:
        importer = waiting.pop()
        file = file_of(importer)
        assert file is not None
        for name in at_once(ast.parse(file.read_text("utf-8")).body):
            if name not in found and file_of(name) is not None:
                found[name] = importer
                waiting.append(name)
    return found


def test_the_core_imports_no_wing_at_module_level() -> None:
    found = closure(FIRST)
    assert "kcl_daemon.consumer.consumer" in found
    assert {name: found[name] for name in ABSENT if name in found} == {}
