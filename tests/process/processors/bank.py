"""Transfers in SQLite, with `kcl_client.once`: one row for each record. It takes a moment for each batch, so that it can be killed in it."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

from kcl_client import Batch, run
from kcl_client.once import Cursor, OnceProcessor, SqliteStore
from kcl_local.demo.check import DIRECTORY_VARIABLE


class Transfers(OnceProcessor[Cursor]):
    checkpoint_every_s = 1.0

    def process(self, batch: Batch, transaction: Cursor) -> None:
        values = [(int(record.text()), os.getpid()) for record in batch]
        transaction.executemany("INSERT INTO transfers VALUES (?, ?)", values)
        Event().wait(0.02)


if __name__ == "__main__":
    # All workers of the application share it.
    run(Transfers(SqliteStore(Path(os.environ[DIRECTORY_VARIABLE]).parent / "bank.db", application="bank")))
