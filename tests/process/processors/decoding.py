"""A processor that decodes: `python -m tests.process.processors.decoding FILE` appends a JSON line for each record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kcl_client import Batch, Checkpointer, RecordProcessor, run
from kcl_client.schemas import decode


class Decoding(RecordProcessor):
    """Notes down the schema's name, format and id, and what was written; the bare bytes where there is no schema."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        with self._file.open("a", encoding="ascii") as lines:
            for record in batch:
                schema = record.schema
                reported = (
                    [record.data.hex()]
                    if schema is None
                    else [schema.name, schema.data_format, schema.version_id, decode(record)]
                )
                lines.write(json.dumps(reported) + "\n")
        checkpointer.checkpoint()


if __name__ == "__main__":
    run(Decoding(Path(sys.argv[1])))
