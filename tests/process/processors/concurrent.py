"""A record processor that works on many records at once, and notes when each began and ended, and in which process.

Given "slow" it waits until the file `go` is there.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client's asynchronous form is asyncio's
import json
import os
from pathlib import Path

from kcl_client import AsyncRecordProcessor, Record, ShardStart, run
from kcl_local.demo.check import DIRECTORY_VARIABLE


class Concurrent(AsyncRecordProcessor):
    """Every line of `notes` is one JSON object."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def initialize(self, start: ShardStart) -> None:
        self._note("start", str(start.sequence_number))

    async def process_record(self, record: Record) -> None:
        self._note("begun", record.sequence_number, record.partition_key)
        await asyncio.sleep(int(record.sequence_number) % 7 / 1000)
        while record.data == b"slow" and not (self._directory / "go").exists():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        self._note("ended", record.sequence_number, record.partition_key)

    def _note(self, what: str, number: str, key: str | None = "") -> None:
        line = json.dumps({"what": what, "number": number, "key": key, "pid": os.getpid()})
        with (self._directory / "notes").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    run(Concurrent(Path(os.environ[DIRECTORY_VARIABLE])), concurrency=16, checkpoint_every_s=0.2)
