"""Output and position in one transaction: each record is in the store exactly once.

Derive from `OnceProcessor` and give it a store. A child that is killed or has lost its lease may still have a
transaction on its way, so two conditions guard each one. The fencing token of the lease says who may still write: a
later reader of the shard has a larger one. The stored position must be the one that this reader knows, so a late
transaction of an earlier child with the same token is noticed. A reader that is refused ends its process and has stored
nothing; the next one begins at the stored position.

docs/exactly-once.md says what is promised, and by whom.
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
