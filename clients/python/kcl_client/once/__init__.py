"""Output and position in one transaction: each record is in the store exactly once.

Derive from `OnceProcessor` and give it a store. docs/exactly-once.md says what is promised, and by whom.
"""

from __future__ import annotations

from kcl_client.once._core import (
    Conflict,
    Fenced,
    Moved,
    Once,
    Reader,
    Stopped,
    Store,
    Stored,
    TooMuch,
    refusal,
)
from kcl_client.once._dynamodb import DynamoDbStore
from kcl_client.once._processor import OnceProcessor
from kcl_client.once._sql import Cursor, PostgresStore, SqliteStore

__all__ = [
    "Conflict",
    "Cursor",
    "DynamoDbStore",
    "Fenced",
    "Moved",
    "Once",
    "OnceProcessor",
    "PostgresStore",
    "Reader",
    "SqliteStore",
    "Stopped",
    "Store",
    "Stored",
    "TooMuch",
    "refusal",
]
