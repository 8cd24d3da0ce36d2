"""The record processor of the demo: counts the words of each record and writes them into its ledger.

A program on `kcl_client`, as a user would write one. Knows nothing of the demo around it but the directory that
`KCL_DEMO_LEDGER` names; must start quickly, as one runs for each shard.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from kcl_client import Batch, Checkpointer, RecordProcessor, ShardStart, run
from kcl_local.demo.ledger import DIRECTORY_VARIABLE, CountedRecord, LedgerWriter, monotonic_s
from kcl_local.demo.text import words

CHECKPOINT_EVERY_S: Final = 1.0
"""A checkpoint is a write to DynamoDB: one for each batch would be many, and this much work is soon repeated."""


class WordCount(RecordProcessor):
    """Counts words. A batch is in the ledger before any checkpoint could take it for done.

    Args:
        directory: where its ledger is to be.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._saved_at_s = monotonic_s()
        self._open_ledger: LedgerWriter | None = None

    @property
    def _ledger(self) -> LedgerWriter:
        assert self._open_ledger is not None, "initialize comes before all else"
        return self._open_ledger

    def initialize(self, start: ShardStart) -> None:
        """Open the ledger of this process."""
        self._open_ledger = LedgerWriter(self._directory, start.shard_id)
        self._ledger.note("start")

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        """Count, write down, and checkpoint about once a second."""
        arrived_s = monotonic_s()
        counted = [CountedRecord(record.sequence_number, Counter(words(record.data))) for record in batch]
        self._ledger.records(arrived_s, counted)
        if arrived_s - self._saved_at_s >= CHECKPOINT_EVERY_S:
            self._save(checkpointer)

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        """Everything of this shard is in the ledger: checkpoint its end."""
        self._ledger.note("ended")
        self._save(checkpointer)

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """Everything so far is in the ledger: checkpoint it, so that nothing is repeated later."""
        self._ledger.note("stopping")
        self._save(checkpointer)

    def lease_lost(self) -> None:
        """Another worker goes on; nothing to undo."""
        self._ledger.note("lost")

    def close(self) -> None:
        """Close the ledger."""
        if self._open_ledger is not None:
            self._open_ledger.close()

    def _save(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()
        self._ledger.note("checkpoint")
        self._saved_at_s = monotonic_s()


def main() -> None:
    """Run until the daemon is done with this process."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        sys.exit(f"{DIRECTORY_VARIABLE} is not set: this program is started by `kcl-daemon demo`")
    processor = WordCount(Path(directory))
    try:
        run(processor)
    finally:
        processor.close()


if __name__ == "__main__":
    main()
