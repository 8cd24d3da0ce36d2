"""A destination of dead letters is one file and its registration: no other module of ours knows one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kcl_daemon.config import dead_letters
from tests.house.files import ROOT, content, modules, shown, tree

DAEMON: Final = ROOT / "daemon" / "kcl_daemon"
OURS: Final = DAEMON / "destinations"
REGISTRY: Final = DAEMON / "config" / "dead_letters.py"
SCHEMES: Final = tuple(path.stem for path in sorted(OURS.glob("[a-z]*.py")))
# Words that mean nothing else.
ALONE: Final = {"sqs", "sns"}
# Addresses of something else.
ELSEWHERE: Final = {
    ("daemon/kcl_daemon/cli/landing.py", "file:"),
    ("daemon/kcl_daemon/config/landing.py", "s3:"),
    ("daemon/kcl_daemon/records/letters.py", "s3://BUCKET/KEY"),
    ("daemon/kcl_daemon/records/letters.py", "s3://[^/]+/.+"),
}


def others() -> Iterator[Path]:
    for path in modules():
        if path.is_relative_to(DAEMON) and path != REGISTRY and not path.is_relative_to(OURS):
            yield path


def named(path: Path) -> Iterator[str]:
    """Imports of a destination, and texts that are, or begin with, the scheme of one."""
    if not any(
        each.encode() in content(path) for each in ("destinations", *ALONE, *(f"{each}:" for each in SCHEMES))
    ):
        return
    for node in ast.walk(tree(path)):
        match node:
            case ast.ImportFrom(module=str() as module) if module.startswith("kcl_daemon.destinations"):
                yield module
            case ast.Constant(value=str() as text) if text in ALONE or text.startswith(
                tuple(f"{each}:" for each in SCHEMES)
            ):
                yield text
            case _:
                pass


def test_every_destination_is_a_file_that_is_registered() -> None:
    registered = vars(dead_letters)["_OWN"]
    assert sorted(registered) == list(SCHEMES)
    for scheme in SCHEMES:
        kind = vars(dead_letters)["_kind"](scheme)
        assert (kind.scheme, kind.__module__) == (scheme, f"kcl_daemon.destinations.{scheme}")


def test_no_other_module_names_one() -> None:
    found = {(shown(path), text) for path in others() for text in named(path)}
    assert found == ELSEWHERE


def test_a_module_that_names_one_is_found(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        'from kcl_daemon.destinations.s3 import BucketLetters\nif place == "sqs" or text[:5] == "file:": ...\n'
    )
    assert set(named(path)) == {"kcl_daemon.destinations.s3", "sqs", "file:"}
