"""A schema registry in memory, and records as its producers write them."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from uuid import UUID

import anyio

from kcl_daemon.errors import AwsError, SchemaNotFound
from kcl_daemon.ports import Schema
from kcl_protocol.messages import RecordSchema

ORDERS = "b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63"
CLICKS = "ffffffff-ffff-ffff-ffff-ffffffffffff"
DEFINITION = '{"type": "record", "name": "Order", "doc": "é", "fields": []}'


def framed(payload: bytes, version_id: str = ORDERS, *, packed: bool = False) -> bytes:
    """The data of a record."""
    how, rest = (b"\5", zlib.compress(payload)) if packed else (b"\0", payload)
    return b"\3" + how + UUID(version_id).bytes + rest


def reported(version_id: str = ORDERS) -> RecordSchema:
    """What a child hears of a version that `MemorySchemas.register` made."""
    return RecordSchema(f"schema-{version_id[:4]}", version_id, "AVRO", DEFINITION)


class MemorySchemas:
    """The port `Schemas`.

    Attributes:
        troubles: what the next calls raise.
        asked: how often each version was asked for.
        answers_after_s: how long a call takes.
    """

    def __init__(self, *version_ids: str) -> None:
        self._known: dict[str, Schema] = {}
        self.troubles: deque[AwsError] = deque()
        self.asked: Counter[str] = Counter()
        self.answers_after_s = 0.0
        for version_id in version_ids:
            self.register(version_id)

    def register(self, version_id: str, definition: str = DEFINITION) -> None:
        """There is such a version from now on."""
        self._known[version_id] = Schema(version_id, f"schema-{version_id[:4]}", "AVRO", definition)

    async def schema(self, version_id: str) -> Schema:
        self.asked[version_id] += 1
        await anyio.sleep(self.answers_after_s)
        if self.troubles:
            raise self.troubles.popleft()
        if version_id not in self._known:
            raise SchemaNotFound(f"no version {version_id}", operation="GetSchemaVersion")
        return self._known[version_id]
