"""A record processor with a fault: it cannot process records whose data begins with `poison`. Else a careful one."""

from __future__ import annotations

import os
from pathlib import Path

from kcl_client import Batch, Checkpointer, run
from kcl_local.demo.check import DIRECTORY_VARIABLE
from tests.process.processors.careful import Careful


class Poisoned(Careful):
    """Fails before anything of its batch is in the ledger."""

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if record.data.startswith(b"poison"):
                raise ValueError(f"cannot read {record.data.decode()!r}")
        super().process_records(batch, checkpointer)


if __name__ == "__main__":
    processor = Poisoned(Path(os.environ[DIRECTORY_VARIABLE]))
    try:
        run(processor)
    finally:
        processor.close()
