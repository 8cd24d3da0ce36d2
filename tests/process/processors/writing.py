"""A record processor that appends every record to a file of its shard, and checkpoints each batch."""

from __future__ import annotations

import os
from pathlib import Path

from kcl_client import Batch, Checkpointer, RecordProcessor, ShardStart, run
from kcl_local.demo.check import DIRECTORY_VARIABLE


class Writing(RecordProcessor):
    """A line for each record: its sequence number and its data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory

    def initialize(self, start: ShardStart) -> None:
        self._path = self._directory / start.shard_id

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        with self._path.open("ab") as file:
            for record in batch:
                file.write(f"{record.sequence_number} ".encode() + record.data + b"\n")
        checkpointer.checkpoint()

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()


if __name__ == "__main__":
    run(Writing(Path(os.environ[DIRECTORY_VARIABLE])))
