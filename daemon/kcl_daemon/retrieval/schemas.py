"""Decodes records with a Glue Schema Registry header (`schemaRegistry = DECODE`).

Records behind one whose schema is missing wait, so order is kept. Schemas are cached; "not found" only
briefly, because the registry can lag behind producers. `schemaRegistryFailure` decides about failures: wait,
or deliver as received.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

import anyio
from anyio.lowlevel import checkpoint

from kcl_daemon.config.retrieval import SchemaFailure
from kcl_daemon.errors import AccessDenied, AwsError, SchemaNotFound, Unavailable
from kcl_daemon.ports import Clock, Log, Randomness, Schemas
from kcl_daemon.records import schema_header
from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES, Payload, RawRecord, SchemaRecord, SchemaTexts
from kcl_daemon.records.schema_header import Header, UnreadablePayload
from kcl_protocol.messages import RecordSchema

MAX_KNOWN_BYTES: Final = 16 * 2**20
UNKNOWN_S: Final = 30.0
"""An unknown version is not requested again within this time."""
_MAX_UNKNOWN: Final = 10_000
_CALL_S: Final = 20.0


class SchemaCache:
    def __init__(self, schemas: Schemas, clock: Clock) -> None:
        self._schemas = schemas
        self._clock = clock
        self._known: OrderedDict[str, SchemaTexts] = OrderedDict()
        self._known_bytes = 0
        self._unknown: OrderedDict[str, tuple[float, SchemaNotFound]] = OrderedDict()
        self._asking: dict[str, anyio.Lock] = {}

    async def schema(self, version_id: str) -> SchemaTexts:
        """Return a schema version. Callers share one request; if it is cancelled, the next caller makes it.

        Raises:
            SchemaNotFound: there is none, as far as is known.
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
        if error is not None and self._clock.monotonic() < until_s:
            raise SchemaNotFound(str(error))
        return None

    async def _ask(self, version_id: str) -> SchemaTexts:
        try:
            return self._keep(version_id, await self._answer(version_id))
        except SchemaNotFound as error:
            self._unknown[version_id] = (self._clock.monotonic() + UNKNOWN_S, error)
            self._unknown.move_to_end(version_id)
            if len(self._unknown) > _MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            raise

    async def _answer(self, version_id: str) -> SchemaTexts:
        with self._clock.move_on_after(_CALL_S):
            registered = await self._schemas.schema(version_id)
            return SchemaTexts.of(
                RecordSchema(registered.name, version_id, registered.data_format, registered.definition)
            )
        raise Unavailable(f"no answer within {_CALL_S:g} s", operation="GetSchemaVersion")

    def _keep(self, version_id: str, schema: SchemaTexts) -> SchemaTexts:
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


class FailureAction(Enum):
    RETRY = "try to open it again"
    AS_RECEIVED = "deliver it with its header, without a schema"


@dataclass(frozen=True, slots=True)
class DecodeFailure:
    record: RawRecord
    version_id: str
    reason: str
    attempt: int


class DecodeFailurePolicy(Protocol):
    """The shard delivers nothing while this waits."""

    async def judge(self, failure: DecodeFailure) -> FailureAction: ...


@dataclass(frozen=True, slots=True)
class RetryWait:
    """Pauses between attempts. Logs the first failure, then ever fewer."""

    clock: Clock
    randomness: Randomness
    log: Log

    async def wait_for_schema(self, failure: DecodeFailure) -> None:
        await self._wait("schema_unresolved", failure, _OF_THE_RECORD)

    async def wait_for_registry(self, failure: DecodeFailure, error: AwsError) -> None:
        if isinstance(error, AccessDenied):
            await self._wait("schema_registry_refused", failure, "allow glue:GetSchemaVersion", is_grave=True)
        else:
            await self._wait("schema_registry_failed", failure, "the shard waits until Glue answers")

    async def _wait(self, event: str, failure: DecodeFailure, advice: str, *, is_grave: bool = False) -> None:
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failure.attempt - 1, _MAX_DOUBLINGS))
        pause_s = longest_s * self.randomness.uniform(0.5, 1.0)
        rarely = failure.attempt & (failure.attempt - 1) == 0
        loud = self.log.error if is_grave else self.log.warning
        log_event = loud if rarely else self.log.debug
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
        await self.clock.sleep(pause_s)


class RetryPolicy:
    """Retries forever: no record is lost or delivered undecoded, but the shard waits."""

    def __init__(self, patience: RetryWait) -> None:
        self._patience = patience

    async def judge(self, failure: DecodeFailure) -> FailureAction:
        await self._patience.wait_for_schema(failure)
        return FailureAction.RETRY


class PassThroughPolicy:
    """Delivers the record as received; warns once per reader."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._count = 0

    async def judge(self, failure: DecodeFailure) -> FailureAction:
        self._count += 1
        log_event = self._log.warning if self._count == 1 else self._log.debug
        log_event(
            "schema_passed_over",
            reason=failure.reason,
            schema_version_id=failure.version_id,
            sequence_number=failure.record.sequence_number,
            sub_sequence_number=failure.record.sub_sequence_number,
            count=self._count,
            advice="it is delivered with its header; the processor sees it by the missing schemaVersionId",
        )
        return FailureAction.AS_RECEIVED


def policy_of(choice: SchemaFailure, patience: RetryWait) -> DecodeFailurePolicy:
    match choice:
        case SchemaFailure.RETRY:
            return RetryPolicy(patience)
        case SchemaFailure.PASSTHROUGH:
            return PassThroughPolicy(patience.log)


PART_BYTES: Final = 4 * 2**20
"""Each record of a line carries its definition, so a line could be very long."""

OnTrouble = Callable[[str | None], None]
"""Receives why a shard waits, None when it continues."""


@dataclass(frozen=True, slots=True)
class _KnownSchema:
    header: Header
    schema: SchemaTexts


class SchemaDecoder:
    def __init__(
        self, schemas: Schemas, *, on_failure: SchemaFailure, clock: Clock, randomness: Randomness
    ) -> None:
        self._cache = SchemaCache(schemas, clock)
        self._on_failure = on_failure
        self._clock = clock
        self._randomness = randomness

    def of_shard(self, log: Log) -> ShardSchemaDecoder:
        patience = RetryWait(self._clock, self._randomness, log)
        return ShardSchemaDecoder(self._cache, policy_of(self._on_failure, patience), patience)


class ShardSchemaDecoder:
    def __init__(self, cache: SchemaCache, policy: DecodeFailurePolicy, patience: RetryWait) -> None:
        self._cache = cache
        self._policy = policy
        self._patience = patience

    def decoder(self, payload: Payload, trouble: OnTrouble) -> PayloadDecoder | None:
        if not schema_header.may_have_header(payload.records):
            return None
        return PayloadDecoder(self, payload.records, trouble)

    async def schema(self, version_id: str) -> SchemaTexts:
        return await self._cache.schema(version_id)

    async def judge(self, failure: DecodeFailure, error: AwsError | UnreadablePayload) -> FailureAction:
        if isinstance(error, AwsError) and not isinstance(error, SchemaNotFound):
            await self._patience.wait_for_registry(failure, error)
            return FailureAction.RETRY
        return await self._policy.judge(failure)


class PayloadDecoder:
    def __init__(self, schemas: ShardSchemaDecoder, records: Sequence[RawRecord], trouble: OnTrouble) -> None:
        self._schemas = schemas
        self._records = records
        self._trouble = trouble
        self._at = 0
        self._known: dict[bytes, _KnownSchema] = {}

    async def next(self) -> Payload | None:
        """Return the next part in order; None at the end. Waits while the registry fails.

        Records before one that cannot be decoded are returned first. If cancelled, the rest of the payload is
        lost.
        """
        if self._at:
            await checkpoint()
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
        """Return None if the record must wait but `may_wait` is False."""
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
                    known = self._known[text] = _KnownSchema(
                        header, await self._schemas.schema(header.version_id)
                    )
                opened = SchemaRecord.of(record, schema_header.payload(record.data, header), known.schema)
            except (AwsError, UnreadablePayload) as error:
                if not may_wait:
                    return None
                if await self._judge(record, header, error, attempt) is FailureAction.AS_RECEIVED:
                    return record
            else:
                if attempt > 1:
                    self._trouble(None)
                return opened

    async def _judge(
        self, record: RawRecord, header: Header, error: AwsError | UnreadablePayload, attempt: int
    ) -> FailureAction:
        reason = str(error)
        self._trouble(reason)
        verdict = await self._schemas.judge(DecodeFailure(record, header.version_id, reason, attempt), error)
        if verdict is FailureAction.AS_RECEIVED:
            self._trouble(None)
        return verdict


def _size_bytes(record: RawRecord) -> int:
    size = len(record.data) + len(record.partition_key) + RECORD_OVERHEAD_BYTES
    return size + len(record.schema_definition) if isinstance(record, SchemaRecord) else size
