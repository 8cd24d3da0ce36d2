"""The last image of an item wins."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Final

import orjson

from kcl_client import Batch, Checkpointer, RecordProcessor, ShardStart, run
from kcl_client.dynamodb import Change
from kcl_local.demo.check import DIRECTORY_VARIABLE

KEY: Final = "id"
_FILE: Final = "copy.sqlite"
_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, item TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS kinds (kind TEXT PRIMARY KEY, changes INTEGER NOT NULL);
"""
_COUNT: Final = (
    "INSERT INTO kinds VALUES (?, ?) ON CONFLICT DO UPDATE SET changes = changes + excluded.changes"
)
_BUSY_FOR_S: Final = 60


def item_text(item: Mapping[str, object]) -> str:
    """The same for two copies of an item: absent is null, `1.50` is 1.5, and a set has no order."""
    return orjson.dumps(_plain(item), option=orjson.OPT_SORT_KEYS).decode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return {"number": f"{Decimal(value).normalize():f}"}
    if isinstance(value, list | set | frozenset):
        return sorted(orjson.dumps(_plain(each)).decode() for each in value)
    return value


def open_copy(directory: Path) -> sqlite3.Connection:
    database = sqlite3.connect(directory / _FILE, timeout=_BUSY_FOR_S, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(_SCHEMA)
    return database


def copied(directory: Path) -> dict[str, str]:
    with closing(open_copy(directory)) as database:
        return dict(database.execute("SELECT id, item FROM items"))


def counted(directory: Path) -> Counter[str]:
    with closing(open_copy(directory)) as database:
        return Counter(dict(database.execute("SELECT kind, changes FROM kinds")))


class CopyTable(RecordProcessor):
    def __init__(self, directory: Path) -> None:
        self.database = open_copy(directory)
        self._is_of_snapshot = False

    def initialize(self, start: ShardStart) -> None:
        self._is_of_snapshot = "snapshot-" in start.shard_id

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        changes = [Change.of(record) for record in batch]
        kinds = Counter("snapshot" if self._is_of_snapshot else each.kind for each in changes)
        self.database.execute("BEGIN IMMEDIATE")
        for change in changes:
            key = str(change.keys[KEY])
            if change.new is None:
                self.database.execute("DELETE FROM items WHERE id = ?", (key,))
            else:
                self.database.execute("REPLACE INTO items VALUES (?, ?)", (key, item_text(change.new)))
        self.database.executemany(_COUNT, kinds.items())
        self.database.execute("COMMIT")
        checkpointer.checkpoint()


def main() -> None:
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        sys.exit(f"{DIRECTORY_VARIABLE} is not set: this program is started by `kcl-daemon demo --dynamodb`")
    with closing((processor := CopyTable(Path(directory))).database):
        run(processor)


if __name__ == "__main__":
    main()
