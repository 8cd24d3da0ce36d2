"""What is known of the mutants of a file: kept in `build/mutation`, so that an ended run goes on where it was."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tests.house.files import ROOT
from tests.mutation.running import KILLED
from tests.mutation.subjects import Subject

FOLDER: Final = ROOT / "build" / "mutation"


class Stored(msgspec.Struct):
    """Digests of the source and of the tests, and the verdicts by the name of the mutant."""

    source: str
    tests: dict[str, str]
    verdicts: dict[str, str]


@dataclass
class Known:
    """The verdicts of a subject that still hold."""

    subject: Subject
    verdicts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            before = msgspec.json.decode(self._path.read_bytes(), type=Stored)
        except (OSError, msgspec.MsgspecError):
            return
        if before.source == _digest(self.subject.path):
            now = self._tests()
            self.verdicts = {
                name: verdict for name, verdict in before.verdicts.items() if holds(verdict, before, now)
            }

    def keep(self, verdicts: dict[str, str]) -> None:
        """Add them, and store all."""
        self.verdicts |= verdicts
        FOLDER.mkdir(parents=True, exist_ok=True)
        stored = Stored(_digest(self.subject.path), self._tests(), self.verdicts)
        self._path.write_bytes(msgspec.json.encode(stored))

    def _tests(self) -> dict[str, str]:
        return {path: _digest(path) for path in self.subject.tests}

    @property
    def _path(self) -> Path:
        return FOLDER / f"{self.subject.module}.json"


def holds(verdict: str, before: Stored, now: dict[str, str]) -> bool:
    """A mutant stays killed while the test that killed it is there; all else depends on all tests."""
    killer = verdict.removeprefix(KILLED).strip().partition("::")[0]
    if verdict.startswith(KILLED) and killer in now:
        return before.tests.get(killer) == now[killer]
    return before.tests == now


def _digest(path: str) -> str:
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
