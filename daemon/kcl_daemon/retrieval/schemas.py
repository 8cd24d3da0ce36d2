"""Opens the records of a shard that carry the header of a schema registry: `schemaRegistry = DECODE`.

Owns the order: what comes before a record whose schema is awaited is delivered, what comes behind it is not. Knows
neither Glue (`ports_schemas`) nor the bytes (`schema_header`). Records without a header cost one look at three
characters of a batch, done in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from anyio.lowlevel import checkpoint

from kcl_daemon.config.schema_settings import SchemaFailure
from kcl_daemon.errors import AwsError, SchemaNotFound
from kcl_daemon.ports import Clock, Log, Randomness
from kcl_daemon.ports_schemas import Schemas
from kcl_daemon.retrieval import schema_header
from kcl_daemon.retrieval.payload import RECORD_OVERHEAD_BYTES, Payload, RawRecord, SchemaRecord, SchemaTexts
from kcl_daemon.retrieval.schema_cache import SchemaCache
from kcl_daemon.retrieval.schema_header import Header, UnreadablePayload
from kcl_daemon.retrieval.schema_policy import Failure, OpeningPolicy, Patience, Verdict, policy_of

PART_BYTES: Final = 4 * 2**20
"""About the length of a line of opened records: each holds its definition, so that ten thousand could be very long."""

Trouble = Callable[[str | None], None]
"""Is told why a shard waits, and None when it goes on."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What all records with the same header have in common."""

    header: Header
    schema: SchemaTexts


class SchemaDecoder:
    """What all shards of a worker share.

    Args:
        schemas: the registry.
        on_failure: what becomes of a record that cannot be opened.
        clock: for pauses and time-outs.
        randomness: spreads retries.
    """

    def __init__(
        self, schemas: Schemas, *, on_failure: SchemaFailure, clock: Clock, randomness: Randomness
    ) -> None:
        self._cache = SchemaCache(schemas, clock)
        self._on_failure = on_failure
        self._clock = clock
        self._randomness = randomness

    def of_shard(self, log: Log) -> ShardSchemas:
        """For one reader; `log` is that of its shard."""
        patience = Patience(self._clock, self._randomness, log)
        return ShardSchemas(self._cache, policy_of(self._on_failure, patience), patience)


class ShardSchemas:
    """Opens the records of one reader.

    Args:
        cache: of schemas.
        policy: judges records that cannot be opened.
        patience: for a registry that does not answer.
    """

    def __init__(self, cache: SchemaCache, policy: OpeningPolicy, patience: Patience) -> None:
        self._cache = cache
        self._policy = policy
        self._patience = patience

    def opening(self, payload: Payload, trouble: Trouble) -> Opening | None:
        """The payload to be opened; None where none of its records can have a header, and it is as it should be.

        Args:
            payload: aggregates taken apart.
            trouble: told while it waits.
        """
        if not schema_header.may_have_header(payload.records):
            return None
        return Opening(self, payload.records, trouble)

    async def schema(self, version_id: str) -> SchemaTexts:
        """From the cache, or from the registry; raises as `SchemaCache.schema`."""
        return await self._cache.schema(version_id)

    async def judge(self, failure: Failure, error: AwsError | UnreadablePayload) -> Verdict:
        """What to do about a record that could not be opened, after such a while as that takes."""
        if isinstance(error, AwsError) and not isinstance(error, SchemaNotFound):
            await self._patience.wait_for_registry(failure, error)
            return Verdict.AGAIN
        return await self._policy.judge(failure)


class Opening:
    """One payload on its way through; `next` until there is nothing more."""

    def __init__(self, schemas: ShardSchemas, records: Sequence[RawRecord], trouble: Trouble) -> None:
        self._schemas = schemas
        self._records = records
        self._trouble = trouble
        self._at = 0
        self._known: dict[bytes, _Known] = {}

    async def next(self) -> Payload | None:
        """The next part, in order; None at the end. Never raises for what the registry does.

        Waits before the first record that cannot be opened, with those before it already given. Cancelled: the part is
        lost, as all that comes behind it.
        """
        if self._at:
            await checkpoint()  # unpacking may have taken a while
        part: list[RawRecord] = []
        part_bytes = 0
        while self._at < len(self._records) and part_bytes < PART_BYTES:
            opened = await self._opened(self._records[self._at], may_wait=not part)
            if opened is None:
                break
            self._at += 1
            part.append(opened)
            part_bytes += _size_bytes(opened)
        return Payload(part, part_bytes) if part else None

    async def _opened(self, record: RawRecord, *, may_wait: bool) -> RawRecord | None:
        """The record as it is to be delivered; None where it has to be waited for and may not be."""
        text = schema_header.beginning(record.data)
        if text is None:
            return record
        known = self._known.get(text)
        header = schema_header.header(text) if known is None else known.header
        if header is None:
            return record
        attempt = 0
        while True:
            attempt += 1
            try:
                if known is None:
                    known = self._known[text] = _Known(header, await self._schemas.schema(header.version_id))
                opened = SchemaRecord.of(record, schema_header.payload(record.data, header), known.schema)
            except (AwsError, UnreadablePayload) as error:
                if not may_wait:
                    return None
                if await self._judge(record, header, error, attempt) is Verdict.AS_IT_CAME:
                    return record
            else:
                if attempt > 1:
                    self._trouble(None)
                return opened

    async def _judge(
        self, record: RawRecord, header: Header, error: AwsError | UnreadablePayload, attempt: int
    ) -> Verdict:
        reason = str(error)
        self._trouble(reason)
        verdict = await self._schemas.judge(Failure(record, header.version_id, reason, attempt), error)
        if verdict is Verdict.AS_IT_CAME:
            self._trouble(None)
        return verdict


def _size_bytes(record: RawRecord) -> int:
    size = len(record.data) + len(record.partition_key) + RECORD_OVERHEAD_BYTES
    return size + len(record.schema_definition) if isinstance(record, SchemaRecord) else size
