"""A record processor that writes each change of a table down, and checkpoints each batch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kcl_client import Batch, Checkpointer, RecordProcessor, ShardStart, run
from kcl_local.demo.check import DIRECTORY_VARIABLE

_HELD: Final = Path("hold")


class Changed(RecordProcessor):
    """While there is a file `hold`, it checkpoints nothing."""

    def initialize(self, start: ShardStart) -> None:
        self._shard_id = start.shard_id
        self._ledger = (Path(os.environ[DIRECTORY_VARIABLE]) / start.shard_id).open("a", buffering=1)

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> Mapping[str, object] | None:
        for record in batch:
            image = json.loads(record.data)["dynamodb"]["NewImage"]
            noted = {
                "id": image["id"]["S"],
                "version": int(image["version"]["N"]),
                "key": record.partition_key,
            }
            self._ledger.write(json.dumps(noted) + "\n")
        if not _HELD.exists():
            checkpointer.checkpoint()
        return None

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self._ledger.write('{"ended": true}\n')
        checkpointer.checkpoint()


if __name__ == "__main__":
    run(Changed())
