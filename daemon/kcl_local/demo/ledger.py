"""The ledger: what each word-count process received and did, one file for each process.

A line is a JSON array `[kind, time, shard, details]`, flushed before the process continues. A killed process
leaves at most one unfinished line, which readers skip.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import orjson


def monotonic_s() -> float:
    """CLOCK_MONOTONIC: the same in every process of the machine."""
    return time.monotonic()  # noqa: TID251 - it must compare times of real processes


DIRECTORY_VARIABLE: Final = "KCL_DEMO_LEDGER"
SUFFIX: Final = ".ledger"

EntryKind = Literal["start", "records", "checkpoint", "ended", "stopping", "lost"]


@dataclass(frozen=True, slots=True)
class CountedRecord:
    sequence_number: str
    words: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of a ledger; `process` is the name of its file.

    `records` and `ended` (shardEnded) come before their checkpoint; `stopping` is shutdownRequested, `lost`
    is leaseLost.
    """

    kind: EntryKind
    at_s: float
    shard_id: str
    process: str
    records: Sequence[CountedRecord] = field(default=())


class LedgerWriter:
    def __init__(self, directory: Path, shard_id: str) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f"{shard_id}.{os.getpid()}.", suffix=SUFFIX, dir=directory)
        self._file = os.fdopen(descriptor, "wb")
        self._shard_id = shard_id
        self.path = Path(name)

    def close(self) -> None:
        self._file.close()

    def note(self, kind: EntryKind) -> None:
        """After the return the entry outlives the process."""
        self._append(kind, monotonic_s(), ())

    def records(self, at_s: float, records: Sequence[CountedRecord]) -> None:
        """After the return the batch outlives the process."""
        self._append("records", at_s, records)

    def _append(self, kind: EntryKind, at_s: float, records: Sequence[CountedRecord]) -> None:
        details = [(record.sequence_number, record.words) for record in records]
        self._file.write(
            orjson.dumps((kind, at_s, self._shard_id, details), option=orjson.OPT_APPEND_NEWLINE)
        )
        self._file.flush()


class LedgerReader:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._positions: dict[str, int] = {}

    def new_entries(self) -> Iterator[LedgerEntry]:
        """Complete entries since the last call, ordered within each file only."""
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            yield from self._of(path)

    def _of(self, path: Path) -> Iterator[LedgerEntry]:
        position = self._positions.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(position)
            new_lines = file.read()
        whole = new_lines[: new_lines.rfind(b"\n") + 1]
        self._positions[path.name] = position + len(whole)
        for line in whole.splitlines():
            kind, at_s, shard_id, details = orjson.loads(line)
            records = tuple(CountedRecord(number, counts) for number, counts in details)
            yield LedgerEntry(kind, at_s, shard_id, path.name, records)
