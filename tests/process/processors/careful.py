"""A record processor as a user would write one: keeps a ledger, and checkpoints each batch before it takes the next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kcl_client import Batch, Checkpointer, RecordProcessor, ShardStart, run
from kcl_local.demo.check import DIRECTORY_VARIABLE, CountedRecord, LedgerWriter, monotonic_s


class Careful(RecordProcessor):
    """What is in the ledger when it ends in order has been checkpointed: nothing is to be delivered again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open_ledger: LedgerWriter | None = None

    @property
    def _ledger(self) -> LedgerWriter:
        assert self._open_ledger is not None, "initialize comes before all else"
        return self._open_ledger

    def initialize(self, start: ShardStart) -> None:
        self._open_ledger = LedgerWriter(self._directory, start.shard_id)
        self._ledger.note("start")

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> Mapping[str, object] | None:
        self._ledger.records(monotonic_s(), [CountedRecord(record.sequence_number, {}) for record in batch])
        checkpointer.checkpoint()
        self._ledger.note("checkpoint")
        return None

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self._ledger.note("ended")
        checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        self._ledger.note("stopping")
        checkpointer.checkpoint()

    def lease_lost(self) -> None:
        self._ledger.note("lost")

    def close(self) -> None:
        """Close the ledger."""
        if self._open_ledger is not None:
            self._open_ledger.close()


if __name__ == "__main__":
    processor = Careful(Path(os.environ[DIRECTORY_VARIABLE]))
    try:
        run(processor)
    finally:
        processor.close()
