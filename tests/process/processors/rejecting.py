"""Record processors that reject the records whose data begins with `poison`; the argument says in which way."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from kcl_client import (
    AsyncRecordProcessor,
    Batch,
    Checkpointer,
    ItemFailures,
    Record,
    RejectRecord,
    ShardStart,
    run,
)
from kcl_local.demo.check import DIRECTORY_VARIABLE, CountedRecord, LedgerWriter, monotonic_s
from tests.process.processors.careful import Careful


def divided(batch: Batch) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """What can be processed, and what cannot."""
    bad = tuple(record for record in batch if record.data.startswith(b"poison"))
    return tuple(record for record in batch if record not in bad), bad


class Rejecting(Careful):
    """Rejects them one by one; the others are in the ledger."""

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> Mapping[str, object] | None:
        good, bad = divided(batch)
        for record in bad:
            batch.reject(record, f"cannot read {record.text()!r}")
        return super().process_records(Batch(good), checkpointer)


class AsInLambda(Rejecting):
    """Names them in its answer, and has tried the others."""

    item_failures = ItemFailures(exact=True)

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> Mapping[str, object]:
        good, bad = divided(batch)
        self._ledger.records(monotonic_s(), [CountedRecord(record.sequence_number, {}) for record in good])
        self._ledger.note("checkpoint")
        return {"batchItemFailures": [{"itemIdentifier": record.sequence_number} for record in bad]}


class Singly(AsyncRecordProcessor):
    """Works on many at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def initialize(self, start: ShardStart) -> None:
        self._ledger = LedgerWriter(self._directory, start.shard_id)
        self._ledger.note("start")

    async def process_record(self, record: Record) -> None:
        if record.data.startswith(b"poison"):
            raise RejectRecord(f"cannot read {record.text()!r}")
        self._ledger.records(monotonic_s(), [CountedRecord(record.sequence_number, {})])

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()


if __name__ == "__main__":
    kinds: dict[str, Callable[[Path], Rejecting | Singly]] = {
        "plain": Rejecting,
        "lambda": AsInLambda,
        "singly": Singly,
    }
    processor = kinds[sys.argv[1]](Path(os.environ[DIRECTORY_VARIABLE]))
    try:
        if isinstance(processor, Singly):
            run(processor, concurrency=8, checkpoint_every_s=0.2)
        else:
            run(processor)
    finally:
        processor.close()
