"""The ledger: what each word-count process has been given and has done, one file for each process.

Owns the format, its writer and its reader. A line is a JSON array `[kind, time, shard, details]`, written whole and
handed to the operating system before the process goes on; so a killed process leaves at most one unfinished line,
which is not read. Knows nothing of what is right or wrong (`check`).

The one clock of the demo: what its processes compare their times by.

Owns nothing else. The daemon takes its time from a port, so that it can be simulated; the demo is a program of its own
around real processes, and has to compare times that several of them took.
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
    """Seconds by the system's monotonic clock; the same clock in every process of one machine (CLOCK_MONOTONIC)."""
    return time.monotonic()  # noqa: TID251 - real processes on one machine: there is no port between them


DIRECTORY_VARIABLE: Final = "KCL_DEMO_LEDGER"
SUFFIX: Final = ".ledger"

EntryKind = Literal["start", "records", "checkpoint", "ended", "stopping", "lost"]


@dataclass(frozen=True, slots=True)
class CountedRecord:
    """One record as a process saw it: its sequence number and how often it has each word."""

    sequence_number: str
    words: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of a ledger.

    Args:
        kind: `start` (initialize), `records` (a batch, before any checkpoint for it), `checkpoint` (all delivered so far
            has been checkpointed), `ended` (shardEnded arrived, before its checkpoint), `stopping` (shutdownRequested
            arrived), `lost` (leaseLost arrived).
        at_s: when it happened, by `clock.monotonic_s`.
        shard_id: the shard of the process.
        process: which process; the name of its file.
        records: of a batch, in the order of delivery; else empty.
    """

    kind: EntryKind
    at_s: float
    shard_id: str
    process: str
    records: Sequence[CountedRecord] = field(default=())


class LedgerWriter:
    """The ledger of one process, which has one shard. To be closed."""

    def __init__(self, directory: Path, shard_id: str) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f"{shard_id}.{os.getpid()}.", suffix=SUFFIX, dir=directory)
        self._file = os.fdopen(descriptor, "wb")
        self._shard_id = shard_id
        self.path = Path(name)

    def close(self) -> None:
        """Close the file; nothing can be appended any more."""
        self._file.close()

    def note(self, kind: EntryKind) -> None:
        """Append an entry without records. On return it outlives the process."""
        self._append(kind, monotonic_s(), ())

    def records(self, at_s: float, records: Sequence[CountedRecord]) -> None:
        """Append a batch that arrived then. On return it outlives the process."""
        self._append("records", at_s, records)

    def _append(self, kind: EntryKind, at_s: float, records: Sequence[CountedRecord]) -> None:
        details = [(record.sequence_number, record.words) for record in records]
        self._file.write(
            orjson.dumps((kind, at_s, self._shard_id, details), option=orjson.OPT_APPEND_NEWLINE)
        )
        self._file.flush()


class LedgerReader:
    """Reads all ledgers of a directory as they grow; remembers how far it has come in each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._positions: dict[str, int] = {}

    def new_entries(self) -> Iterator[LedgerEntry]:
        """Every whole entry since the last call, in the order of each file; the files in no order of time."""
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
