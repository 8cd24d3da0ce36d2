"""The Dockerfile as instructions, and how its stages are built without an engine.

Not a Dockerfile parser for everybody: what ours does not use is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = ROOT / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of them: `RUN`, and what follows."""

    name: str
    words: str


@dataclass(slots=True)
class Stage:
    """From one FROM to the next.

    Args:
        base: the image that it begins with.
        name: what others call it.
    """

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list[Instruction])

    def last(self, name: str) -> str:
        """What the last instruction of this name says."""
        return [each.words for each in self.instructions if each.name == name][-1]


def stages(path: Path = DOCKERFILE) -> list[Stage]:
    """The stages of a Dockerfile, in order."""
    without_comments = "\n".join(
        line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")
    )
    found: list[Stage] = []
    for line in re.sub(r"\\\n\s*", " ", without_comments).splitlines():
        name, _, words = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = words.partition(" AS ")
            found.append(Stage(base, alias or str(len(found))))
        elif name:
            found[-1].instructions.append(Instruction(name, words.strip()))
    return found
