"""What is known of the mutants of a file: kept in `build/mutation`, so that an ended run goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tests.house.files import ROOT
from tests.mutation.running import KILLED
from tests.mutation.subjects import Subject

FOLDER: Final = ROOT / "build" / "mutation"


class Verdict(msgspec.Struct, frozen=True):
    """As long as the tests that it depends on are the same: `basis` is their digest."""

    verdict: str
    basis: str

    @property
    def is_killed(self) -> bool:
        return self.verdict.startswith(KILLED)


class Stored(msgspec.Struct):
    """Digest of the source, and verdicts by the name of the mutant."""

    source: str
    verdicts: dict[str, Verdict]


def basis_of(verdict: str, tests: Mapping[str, str]) -> str:
    """A mutant stays killed while the test that killed it is the same; all else depends on all tests.

    Args:
        verdict: of the run.
        tests: digests by file.
    """
    killer = verdict.removeprefix(KILLED).strip().partition("::")[0]
    return tests.get(killer) or _digest(repr(sorted(tests.items())).encode())


@dataclass
class Known:
    """The verdicts of a subject that still hold.

    Args:
        subject: which.
        trust: what was killed counts as killed although tests have changed.
        verdicts: by the name of the mutant.
    """

    subject: Subject
    trust: bool = False
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            before = msgspec.json.decode(self._path.read_bytes(), type=Stored)
        except (OSError, msgspec.MsgspecError):
            return
        if before.source == self._source():
            tests = self._tests()
            self.verdicts = {
                name: each
                for name, each in before.verdicts.items()
                if each.basis == basis_of(each.verdict, tests) or (self.trust and each.is_killed)
            }

    def keep(self, verdicts: dict[str, str]) -> None:
        """Add them, and store all."""
        tests = self._tests()
        self.verdicts |= {name: Verdict(each, basis_of(each, tests)) for name, each in verdicts.items()}
        self._path.write_bytes(msgspec.json.encode(Stored(self._source(), self.verdicts)))

    def _source(self) -> str:
        return _digest((ROOT / self.subject.path).read_bytes())

    def _tests(self) -> dict[str, str]:
        return {path: _digest((ROOT / path).read_bytes()) for path in self.subject.tests}

    @property
    def _path(self) -> Path:
        return FOLDER / f"{self.subject.module}.json"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
