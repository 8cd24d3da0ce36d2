"""Compares written with delivered records.

Each word-count process writes what it received and did into a file, its ledger: a JSON array `[kind, time, shard,
details]` a line, flushed before the process goes on. A killed process leaves at most one unfinished line, which readers
skip.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Literal, assert_never

import orjson

DIRECTORY_VARIABLE: Final = "KCL_DEMO_LEDGER"
SUFFIX: Final = ".ledger"


def monotonic_s() -> float:
    """CLOCK_MONOTONIC: the same in every process of the machine."""
    return time.monotonic()  # noqa: TID251 - it must compare times of real processes


EntryKind = Literal["start", "records", "checkpoint", "ended", "stopping", "lost"]


@dataclass(frozen=True, slots=True)
class CountedRecord:
    sequence_number: str
    words: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """`process`: the file's name. `records` and `ended` come before their checkpoint."""

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
        """On return the entry outlives the process."""
        self._append(kind, monotonic_s(), ())

    def records(self, at_s: float, records: Sequence[CountedRecord]) -> None:
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


class ShardState(Enum):
    WAITING = "waiting"
    READING = "reading"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(slots=True)
class ShardProgress:
    """`unsaved`: delivered since the last checkpoint."""

    shard_id: str
    parents: tuple[str, ...] = ()
    is_open: bool = True
    state: ShardState = ShardState.WAITING
    numbers: set[int] = field(default_factory=set[int])
    first_delivered_s: dict[int, float] = field(default_factory=dict[int, float])
    last_of_process: dict[str, int] = field(default_factory=dict[str, int])
    ended_at_s: float | None = None
    unsaved: int = 0

    @property
    def written(self) -> int:
        return len(self.numbers)

    @property
    def delivered(self) -> int:
        return len(self.first_delivered_s)

    @property
    def behind(self) -> int:
        """Never negative: a delivery may be known before its write."""
        return max(0, self.written - self.delivered)

    def done_at_s(self) -> float:
        """Infinity until all its records are delivered and its end is reported."""
        times = [self.first_delivered_s.get(number, float("inf")) for number in self.numbers]
        return max([*times, float("inf") if self.ended_at_s is None else self.ended_at_s])


@dataclass(frozen=True, slots=True)
class CheckResult:
    """In records. `unknown` were delivered but never written to that shard."""

    written: int
    delivered: int
    repeated: int
    lost: int
    unknown: int
    out_of_order: int
    before_parents: int
    words_written: Counter[str]
    words_delivered: Counter[str]

    @property
    def words_agree(self) -> bool:
        return self.words_written == self.words_delivered

    @property
    def is_right(self) -> bool:
        """Repeats are no fault: delivery is at least once."""
        faults = self.lost + self.unknown + self.out_of_order + self.before_parents
        return faults == 0 and self.words_agree


class Checker:
    def __init__(self) -> None:
        self._shards: dict[str, ShardProgress] = {}
        self._words_written: Counter[str] = Counter()
        self._words_delivered: Counter[str] = Counter()
        self._repeated = 0
        self._out_of_order = 0
        self.first_delivery_s: float | None = None
        self.last_delivery_s: float | None = None

    def lineage(self, shard_id: str, *, parents: tuple[str, ...], is_open: bool) -> None:
        shard = self._shard(shard_id)
        shard.parents = parents
        shard.is_open = is_open

    def wrote(self, shard_id: str, sequence_number: str, word_counts: Mapping[str, int]) -> None:
        self._shard(shard_id).numbers.add(int(sequence_number))
        self._words_written.update(word_counts)

    def reported(self, entry: LedgerEntry) -> None:
        shard = self._shard(entry.shard_id)
        match entry.kind:
            case "start":
                shard.state = ShardState.READING
                shard.unsaved = 0
            case "records":
                for record in entry.records:
                    self._delivered(shard, entry, record)
                shard.unsaved += len(entry.records)
            case "checkpoint":
                shard.unsaved = 0
            case "ended":
                shard.state = ShardState.ENDED
                shard.ended_at_s = min(entry.at_s, shard.ended_at_s or entry.at_s)
            case "stopping" | "lost":
                if shard.state is not ShardState.ENDED:
                    shard.state = ShardState.STOPPED
            case _:
                assert_never(entry.kind)

    def _delivered(self, shard: ShardProgress, entry: LedgerEntry, record: CountedRecord) -> None:
        number = int(record.sequence_number)
        if number <= shard.last_of_process.get(entry.process, -1):
            self._out_of_order += 1
        shard.last_of_process[entry.process] = number
        known_s = shard.first_delivered_s.get(number)
        if known_s is None:
            self._words_delivered.update(record.words)
        else:
            self._repeated += 1
        shard.first_delivered_s[number] = entry.at_s if known_s is None else min(known_s, entry.at_s)
        if self.first_delivery_s is None or entry.at_s < self.first_delivery_s:
            self.first_delivery_s = entry.at_s
        if self.last_delivery_s is None or entry.at_s > self.last_delivery_s:
            self.last_delivery_s = entry.at_s

    def _shard(self, shard_id: str) -> ShardProgress:
        return self._shards.setdefault(shard_id, ShardProgress(shard_id))

    def progress(self) -> tuple[ShardProgress, ...]:
        return tuple(shard for _, shard in sorted(self._shards.items()))

    @property
    def written(self) -> int:
        return sum(shard.written for shard in self._shards.values())

    @property
    def delivered(self) -> int:
        return sum(shard.delivered for shard in self._shards.values())

    def sequence_numbers(self) -> Iterator[int]:
        for shard in self._shards.values():
            yield from shard.numbers

    @property
    def is_settled(self) -> bool:
        return all(
            shard.numbers <= shard.first_delivered_s.keys()
            and (shard.is_open or shard.ended_at_s is not None)
            for shard in self._shards.values()
        )

    def verdict(self) -> CheckResult:
        shards = self._shards.values()
        return CheckResult(
            written=self.written,
            delivered=sum(len(shard.numbers & shard.first_delivered_s.keys()) for shard in shards),
            repeated=self._repeated,
            lost=sum(len(shard.numbers - shard.first_delivered_s.keys()) for shard in shards),
            unknown=sum(len(shard.first_delivered_s.keys() - shard.numbers) for shard in shards),
            out_of_order=self._out_of_order,
            before_parents=sum(self._before_parents(shard) for shard in shards),
            words_written=self._words_written,
            words_delivered=self._words_delivered,
        )

    def _before_parents(self, shard: ShardProgress) -> int:
        if not shard.parents:
            return 0
        allowed_s = max(self._shard(parent).done_at_s() for parent in shard.parents)
        return sum(at_s < allowed_s for at_s in shard.first_delivered_s.values())
