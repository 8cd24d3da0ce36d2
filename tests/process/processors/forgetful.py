"""The processor of a proof, but it does not note record 7."""

from __future__ import annotations

from kcl_client import Batch, Checkpointer
from kcl_local.demo.wordcount import main
from kcl_prove.child import Noting


class Forgetful(Noting):
    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        kept = tuple(record for record in batch if b'"number": 7,' not in record.data)
        super().process_records(Batch(kept, batch.millis_behind_latest), checkpointer)


if __name__ == "__main__":
    main(Forgetful)
