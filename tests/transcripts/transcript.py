"""The transcripts as typed values, for the replay here and for whoever else wants a whole conversation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcl_protocol.conversation import Role, State

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a conversation; the fields are those of README.md."""

    speaker: Role
    line: bytes
    end: bytes
    ours: bytes
    reads_as: str | None
    refused: str | None

    @property
    def is_message(self) -> bool:
        return self.reads_as is None


@dataclass(frozen=True, slots=True)
class Transcript:
    """One file."""

    name: str
    about: str
    ends: State
    lines: tuple[Line, ...]

    def said_by(self, speaker: Role) -> bytes:
        """All that one side wrote, as it stood on the pipe."""
        return b"".join(line.line + line.end for line in self.lines if line.speaker is speaker)


def load(path: Path) -> Transcript:
    header, *entries = [json.loads(text) for text in path.read_text(encoding="utf-8").split("\n") if text]
    return Transcript(
        path.stem, header["about"], State(header["ends"]), tuple(_line(entry) for entry in entries)
    )


def load_all() -> list[Transcript]:
    return [load(path) for path in sorted(FOLDER.glob("*.jsonl"))]


def _line(entry: dict[str, Any]) -> Line:
    unknown = entry.keys() - {"from", "line", "end", "ours", "reads_as", "refused"}
    assert not unknown, unknown
    return Line(
        speaker=Role(entry["from"]),
        line=entry["line"].encode(),
        end=entry.get("end", "\n").encode(),
        ours=entry.get("ours", entry["line"]).encode(),
        reads_as=entry.get("reads_as"),
        refused=entry.get("refused"),
    )
