"""The stage of a Glue Schema Registry (`schemaRegistry = DECODE`).

Records behind one whose schema is missing wait, so order is kept. "Not found" is cached only briefly, because the
registry can lag behind producers. `schemaRegistryFailure`: wait, or deliver as received.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from kcl_daemon.config.retrieval import SchemaFailure
from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import AccessDenied, AwsError, SchemaNotFound
from kcl_daemon.ports import Schemas
from kcl_daemon.progress.progress import LastFetch
from kcl_daemon.records import schema_header
from kcl_daemon.records.batch import Batch
from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES, AnyRecord, Payload, SchemaRecord, SchemaTexts
from kcl_daemon.records.schema_header import Header, UnreadablePayload
from kcl_daemon.retrieval.source import Parts, Passed
from kcl_protocol.messages import RecordSchema

MAX_KNOWN_BYTES: Final = 16 * 2**20
UNKNOWN_S: Final = 30.0
_MAX_UNKNOWN: Final = 10_000
_CALL_S: Final = 20.0


class SchemaCache:
    def __init__(self, schemas: Schemas, context: WorkerContext) -> None:
        self._schemas = schemas
        self._context = context
        self._known: OrderedDict[str, SchemaTexts] = OrderedDict()
        self._known_bytes = 0
        self._unknown: OrderedDict[str, tuple[float, SchemaNotFound]] = OrderedDict()
        self._asking: dict[str, anyio.Lock] = {}

    def decoder(
        self, on_failure: SchemaFailure, context: WorkerContext, last_fetch: LastFetch
    ) -> ShardSchemaDecoder:
        return ShardSchemaDecoder(self, on_failure, context, last_fetch)

    async def schema(self, version_id: str) -> SchemaTexts:
        """Callers share one request; if it is cancelled, the next one makes it.

        Raises:
            SchemaNotFound: as far as is known.
            AwsError: the registry did not answer; not cached.
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
        found = self._known.get(version_id)
        if found is not None:
            self._known.move_to_end(version_id)
            return found
        until_s, error = self._unknown.get(version_id, (0.0, None))
        if error is not None and self._context.clock.monotonic() < until_s:
            raise SchemaNotFound(str(error))
        return None

    async def _ask(self, version_id: str) -> SchemaTexts:
        answer = self._schemas.schema(version_id)
        try:
            found = await self._context.call(answer, "GetSchemaVersion", timeout_s=_CALL_S)
        except SchemaNotFound as error:
            self._unknown[version_id] = (self._context.clock.monotonic() + UNKNOWN_S, error)
            self._unknown.move_to_end(version_id)
            if len(self._unknown) > _MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            raise
        schema = SchemaTexts.of(RecordSchema(found.name, version_id, found.data_format, found.definition))
        self._unknown.pop(version_id, None)
        self._known[version_id] = schema
        self._known_bytes += len(schema.definition)
        while self._known_bytes > MAX_KNOWN_BYTES and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._known_bytes -= len(forgotten.definition)
        return schema


_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_MAX_DOUBLINGS: Final = 10
_OF_THE_RECORD: Final = (
    "the shard waits. Was the schema deleted, or is it in another account or region (glueClient.region, "
    "AwsCredentialsProviderGlue)? With schemaRegistryFailure = PASSTHROUGH, a record that only looks "
    "like one of the registry is delivered"
)


PART_BYTES: Final = 4 * 2**20
"""Each record of a line carries its definition."""


@dataclass(frozen=True, slots=True)
class DecodeFailure:
    record: AnyRecord
    version_id: str
    reason: str
    attempt: int


@dataclass(frozen=True, slots=True)
class _KnownSchema:
    header: Header
    schema: SchemaTexts


class ShardSchemaDecoder:
    """`context` has the log of the shard. `last_fetch` shows why the shard waits."""

    def __init__(
        self, cache: SchemaCache, on_failure: SchemaFailure, context: WorkerContext, last_fetch: LastFetch
    ) -> None:
        self.schema = cache.schema
        self._on_failure = on_failure
        self._context = context
        self._last_fetch = last_fetch
        self._passed_over = 0

    def decoded(self, parts: Parts) -> Parts:
        return _Decoded(self, parts)

    def decoder(self, batch: Batch) -> BatchDecoder | None:
        """None if nothing needs decoding."""
        return BatchDecoder(self, batch) if schema_header.may_have_header(batch.records) else None

    async def must_retry(self, failure: DecodeFailure, error: AwsError | UnreadablePayload) -> bool:
        """Waits before each attempt, forever if need be. False: deliver the record as received."""
        self._last_fetch.trouble = failure.reason
        if isinstance(error, AccessDenied):
            advice = "allow glue:GetSchemaVersion"
            await self._wait("schema_registry_refused", failure, advice, is_grave=True)
        elif isinstance(error, AwsError) and not isinstance(error, SchemaNotFound):
            await self._wait("schema_registry_failed", failure, "the shard waits until Glue answers")
        elif self._on_failure is SchemaFailure.RETRY:
            await self._wait("schema_unresolved", failure, _OF_THE_RECORD)
        else:
            self._pass_over(failure)
            self.succeeded()
            return False
        return True

    def succeeded(self) -> None:
        self._last_fetch.trouble = None

    async def _wait(self, event: str, failure: DecodeFailure, advice: str, *, is_grave: bool = False) -> None:
        log = self._context.log
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failure.attempt - 1, _MAX_DOUBLINGS))
        pause_s = longest_s * self._context.randomness.uniform(0.5, 1.0)
        rarely = failure.attempt & (failure.attempt - 1) == 0
        loud = log.error if is_grave else log.warning
        log_event = loud if rarely else log.debug
        log_event(
            event,
            reason=failure.reason,
            schema_version_id=failure.version_id,
            sequence_number=failure.record.sequence_number,
            sub_sequence_number=failure.record.sub_sequence_number,
            attempt=failure.attempt,
            pause_s=round(pause_s, 1),
            advice=advice,
        )
        await self._context.clock.sleep(pause_s)

    def _pass_over(self, failure: DecodeFailure) -> None:
        log = self._context.log
        self._passed_over += 1
        log_event = log.warning if self._passed_over == 1 else log.debug
        log_event(
            "schema_passed_through",
            reason=failure.reason,
            schema_version_id=failure.version_id,
            sequence_number=failure.record.sequence_number,
            sub_sequence_number=failure.record.sub_sequence_number,
            count=self._passed_over,
            advice="it is delivered with its header; the processor sees it by the missing schemaVersionId",
        )


@dataclass(slots=True)
class _Decoded:
    schemas: ShardSchemaDecoder
    parts: Parts
    decoder: BatchDecoder | None = None

    async def next(self) -> Batch | Passed | None:
        while True:
            if self.decoder is not None and (part := await self.decoder.next()) is not None:
                return part
            whole = await self.parts.next()
            self.decoder = self.schemas.decoder(whole) if isinstance(whole, Batch) else None
            if self.decoder is None:
                return whole


class BatchDecoder:
    def __init__(self, schemas: ShardSchemaDecoder, batch: Batch) -> None:
        self._schemas = schemas
        self._batch = batch
        self._records = batch.records
        self._at = 0
        self._known: dict[bytes, _KnownSchema] = {}

    async def next(self) -> Batch | None:
        """Waits while the registry fails; records before one that cannot be decoded come first. If cancelled, the rest is lost."""
        if self._at:
            await checkpoint()
        begin, part, part_bytes = self._at, list[AnyRecord](), 0
        while self._at < len(self._records) and part_bytes < PART_BYTES:
            opened = await self._opened(self._records[self._at], may_wait=not part)
            if opened is None:
                break
            self._at += 1
            part.append(opened)
            part_bytes += _size_bytes(opened)
        return self._batch.part(begin, self._at).holding(Payload(part, part_bytes)) if part else None

    async def _opened(self, record: AnyRecord, *, may_wait: bool) -> AnyRecord | None:
        """None: it must wait, and `may_wait` is False."""
        data = record.data
        text = schema_header.beginning(data)
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
                    known = self._known[text] = _KnownSchema(
                        header, await self._schemas.schema(header.version_id)
                    )
                opened = SchemaRecord.of(record, schema_header.payload(data, header), known.schema)
            except (AwsError, UnreadablePayload) as error:
                if not may_wait:
                    return None
                failure = DecodeFailure(record, header.version_id, str(error), attempt)
                if not await self._schemas.must_retry(failure, error):
                    return record
            else:
                if attempt > 1:
                    self._schemas.succeeded()
                return opened


def _size_bytes(record: AnyRecord) -> int:
    size = len(record.data) + len(record.partition_key) + RECORD_OVERHEAD_BYTES
    return size + len(record.schema_definition) if isinstance(record, SchemaRecord) else size
