"""A record processor that takes a tenth of a second for each record, and notes how many it has done.

Given "hang" it hangs; batches with "quick" take no time and are not checkpointed.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

from kcl_client import Batch, Checkpointer, RecordProcessor, run
from kcl_local.demo.check import DIRECTORY_VARIABLE


class Slow(RecordProcessor):
    """`done` holds the number of records in all batches that it has answered."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done = 0

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if record.data == b"hang":
                Event().wait(3600)
            Event().wait(0.0 if record.data == b"quick" else 0.1)
        if all(record.data != b"quick" for record in batch):
            checkpointer.checkpoint()
        self._done += len(batch)
        whole = self._directory / "whole"
        whole.write_text(str(self._done), "ascii")
        whole.rename(self._directory / "done")

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()


if __name__ == "__main__":
    run(Slow(Path(os.environ[DIRECTORY_VARIABLE])))
