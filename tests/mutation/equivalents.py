"""Mutants that no test can kill, each with the reason: `equivalents.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tests.house.files import ROOT
from tests.mutation.mutants import Mutant

LIST: Final = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A mutant that does what the source does.

    Args:
        file: of the source.
        within: class and function.
        line: without indentation.
        becomes: the line of the mutant; several, if one reason is for all.
        why: no test can tell them apart.
    """

    file: str
    within: str
    line: str
    becomes: tuple[str, ...]
    why: str

    def is_mutant(self, file: str, mutant: Mutant) -> bool:
        return (self.file, self.within, self.line) == (file, mutant.within, mutant.line) and (
            mutant.becomes in self.becomes
        )


def equivalents() -> list[Equivalent]:
    found = tomllib.loads(LIST.read_text("utf-8"))
    return msgspec.convert(found.get("equivalent", []), type=list[Equivalent])


def stale(known: Iterable[Equivalent]) -> list[Equivalent]:
    """Those whose line is not in the source, or which give no reason."""
    return [each for each in known if not each.why.strip() or not _stands(each)]


def _stands(each: Equivalent) -> bool:
    path = ROOT / each.file
    return path.is_file() and each.line in map(str.strip, path.read_text("utf-8").splitlines())
