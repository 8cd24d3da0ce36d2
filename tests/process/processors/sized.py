"""A record processor that notes the texts of each batch, and checkpoints its last record by number."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kcl_client import Batch, Checkpointer, RecordProcessor, run
from kcl_local.demo.check import DIRECTORY_VARIABLE


class Sized(RecordProcessor):
    """One line for each batch."""

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        folder = Path(os.environ[DIRECTORY_VARIABLE])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "batches").open("a", encoding="utf-8") as notes:
            notes.write(json.dumps([record.data.decode() for record in batch]) + "\n")
        checkpointer.checkpoint(list(batch)[-1])


if __name__ == "__main__":
    run(Sized())
