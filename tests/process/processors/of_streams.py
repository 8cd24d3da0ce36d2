"""A record processor that notes under its stream's name what it was told and given."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kcl_client import Batch, Checkpointer, RecordProcessor, ShardStart, run
from kcl_local.demo.check import DIRECTORY_VARIABLE

_TOLD = ("KCL_STREAM_NAME", "KCL_STREAM_ARN", "KCL_SHARD_ID")


class OfStreams(RecordProcessor):
    """One JSON line for the start and for each record, before it is checkpointed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "nowhere"

    def initialize(self, start: ShardStart) -> None:
        self._file = self._directory / f"{start.extra['streamName']}.{start.shard_id}"
        reported = {name: os.environ.get(name) for name in _TOLD}
        self._note({**reported, "streamArn": start.extra["streamArn"], "shardId": start.shard_id})

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            self._note({"data": record.data.decode()})
        checkpointer.checkpoint()

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()

    def _note(self, what: dict[str, object]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    run(OfStreams(Path(os.environ[DIRECTORY_VARIABLE])))
