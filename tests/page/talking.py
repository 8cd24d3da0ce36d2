"""A record processor that tells on stderr what it does, as a person would, with angle brackets and all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kcl_client import Batch, Checkpointer, ShardStart, run
from kcl_local.demo.check import DIRECTORY_VARIABLE
from tests.process.processors.careful import Careful


class Talking(Careful):
    """Careful, and says so."""

    _batches = 0

    def initialize(self, start: ShardStart) -> None:
        super().initialize(start)
        print(f"<b>began</b> with {start.shard_id}", file=sys.stderr)  # noqa: T201 - that is what it is for

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        super().process_records(batch, checkpointer)
        self._batches += 1
        # Numbered: whoever waits for new lines must be able to tell them from the old ones.
        print(f"a batch of {len(batch)}, number {self._batches}", file=sys.stderr)  # noqa: T201 - the same


if __name__ == "__main__":
    processor = Talking(Path(os.environ[DIRECTORY_VARIABLE]))
    try:
        run(processor)
    finally:
        processor.close()
