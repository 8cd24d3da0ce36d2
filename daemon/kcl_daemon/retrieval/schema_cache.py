"""The schemas that this worker has seen, so that each is asked for once, whichever shard needs it.

Owns how much is kept and for how long. Knows nothing of records. A version never changes, so that what is known stays
true; that there is none may change, as a registry can be a moment behind its producers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import anyio

from kcl_daemon.errors import SchemaNotFound, Unavailable
from kcl_daemon.ports import Clock
from kcl_daemon.ports_schemas import Schemas
from kcl_daemon.retrieval.payload import SchemaTexts
from kcl_protocol.messages import RecordSchema

KNOWN_BYTES_MOST: Final = 16 * 2**20
"""Definitions that are kept; one has 170,000 characters at most."""
UNKNOWN_S: Final = 30.0
"""A version that the registry did not know is not asked for again within this time."""
_UNKNOWN_MOST: Final = 10_000
# Asking takes longer only where connecting, reading and the queue before it all do.
_CALL_S: Final = 20.0


class SchemaCache:
    """What the registry has told, bounded.

    Args:
        schemas: the registry.
        clock: for how long something is unknown.
    """

    def __init__(self, schemas: Schemas, clock: Clock) -> None:
        self._schemas = schemas
        self._clock = clock
        self._known: OrderedDict[str, SchemaTexts] = OrderedDict()
        self._known_bytes = 0
        self._unknown: OrderedDict[str, tuple[float, SchemaNotFound]] = OrderedDict()
        self._asking: dict[str, anyio.Lock] = {}

    async def schema(self, version_id: str) -> SchemaTexts:
        """A version; whoever asks while it is asked for waits for that answer. Cancelled: the next one asks.

        Raises:
            SchemaNotFound: there is no such version, as far as is known.
            AwsError: the registry did not tell; nothing is kept of that.
        """
        found = self._found(version_id)
        if found is not None:
            return found
        lock = self._asking.setdefault(version_id, anyio.Lock())
        try:
            async with lock:
                return self._found(version_id) or await self._ask(version_id)
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._asking.pop(version_id, None)

    def _found(self, version_id: str) -> SchemaTexts | None:
        """What is known; SchemaNotFound where it is known that there is none."""
        found = self._known.get(version_id)
        if found is not None:
            self._known.move_to_end(version_id)
            return found
        until_s, error = self._unknown.get(version_id, (0.0, None))
        if error is not None and self._clock.monotonic() < until_s:
            raise SchemaNotFound(str(error))
        return None

    async def _ask(self, version_id: str) -> SchemaTexts:
        try:
            return self._keep(version_id, await self._answer(version_id))
        except SchemaNotFound as error:
            self._unknown[version_id] = (self._clock.monotonic() + UNKNOWN_S, error)
            self._unknown.move_to_end(version_id)
            if len(self._unknown) > _UNKNOWN_MOST:
                self._unknown.popitem(last=False)
            raise

    async def _answer(self, version_id: str) -> SchemaTexts:
        with self._clock.move_on_after(_CALL_S):
            told = await self._schemas.schema(version_id)
            return SchemaTexts.of(RecordSchema(told.name, version_id, told.data_format, told.definition))
        raise Unavailable(f"no answer within {_CALL_S:g} s", operation="GetSchemaVersion")

    def _keep(self, version_id: str, schema: SchemaTexts) -> SchemaTexts:
        self._unknown.pop(version_id, None)
        self._known[version_id] = schema
        self._known_bytes += len(schema.definition)
        while self._known_bytes > KNOWN_BYTES_MOST and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._known_bytes -= len(forgotten.definition)
        return schema
