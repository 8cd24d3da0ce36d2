"""It must start quickly."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kcl_client import Batch, Checkpointer, Record, RecordProcessor, ShardStart, run
from kcl_local.demo.check import DIRECTORY_VARIABLE, CountedRecord, LedgerWriter, monotonic_s
from kcl_local.demo.text import words

CHECKPOINT_EVERY_S: Final = 1.0
"""A checkpoint for each batch would be many DynamoDB writes."""


class WordCount(RecordProcessor):
    """A batch is in the ledger before any checkpoint covers it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._saved_at_s = monotonic_s()
        self._open_ledger: LedgerWriter | None = None

    @property
    def _ledger(self) -> LedgerWriter:
        assert self._open_ledger is not None, "initialize comes before all else"
        return self._open_ledger

    def count(self, record: Record) -> Mapping[str, int]:
        return Counter(words(record.data))

    def initialize(self, start: ShardStart) -> None:
        self._open_ledger = LedgerWriter(self._directory, start.shard_id)
        self._ledger.note("start")

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        arrived_s = monotonic_s()
        counted = [CountedRecord(record.sequence_number, self.count(record)) for record in batch]
        self._ledger.records(arrived_s, counted)
        if arrived_s - self._saved_at_s >= CHECKPOINT_EVERY_S:
            self._save(checkpointer)

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self._ledger.note("ended")
        self._save(checkpointer)

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        self._ledger.note("stopping")
        self._save(checkpointer)

    def lease_lost(self) -> None:
        self._ledger.note("lost")

    def close(self) -> None:
        if self._open_ledger is not None:
            self._open_ledger.close()

    def _save(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()
        self._ledger.note("checkpoint")
        self._saved_at_s = monotonic_s()


def main(kind: type[WordCount] = WordCount) -> None:
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        sys.exit(
            f"{DIRECTORY_VARIABLE} is not set: this program is started by `kcl-daemon demo` and `kcl-daemon prove`"
        )
    processor = kind(Path(directory))
    try:
        run(processor)
    finally:
        processor.close()


if __name__ == "__main__":
    main()
