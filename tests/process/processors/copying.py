"""A record processor that notes the last image of each item, in the order of delivery, in one file for all shards."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kcl_client import Batch, Checkpointer, RecordProcessor, run
from kcl_local.demo.check import DIRECTORY_VARIABLE


class Copying(RecordProcessor):
    """Changes in the form `lambda`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        lines = list[str]()
        for record in batch:
            change = json.loads(record.data)["dynamodb"]
            lines.append(json.dumps([change["Keys"]["id"]["S"], change.get("NewImage")]) + "\n")
        with self._file.open("a") as file:
            file.write("".join(lines))
        checkpointer.checkpoint()

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()


if __name__ == "__main__":
    run(Copying(Path(os.environ[DIRECTORY_VARIABLE]) / "copy"))
