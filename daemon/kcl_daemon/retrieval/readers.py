"""Chooses how each shard is read, and counts each call (KCL: KinesisDataFetcher, PrefetchRecordsPublisher)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import CallMetrics, WorkerContext
from kcl_daemon.errors import NO_FAN_OUT, AwsError, IteratorExpired
from kcl_daemon.leases.lease import HashRange, ShardId
from kcl_daemon.metrics import kcl as shard_metrics
from kcl_daemon.ports import (
    ConsumerName,
    FanOut,
    FetchedRecords,
    Kinesis,
    Log,
    Meters,
    ReadFrom,
    Schemas,
    StreamConsumer,
    StreamRef,
    StreamSummary,
    Subscription,
    streams_of,
)
from kcl_daemon.progress.invariants import Invariants
from kcl_daemon.progress.progress import LastFetch
from kcl_daemon.records.payload import AnyRecord, Piece, Split
from kcl_daemon.retrieval.byte_budget import ByteBudget, Reservation
from kcl_daemon.retrieval.distribution import Distribution, Strays
from kcl_daemon.retrieval.polling import PollingReader, has_service_limits
from kcl_daemon.retrieval.source import ReadItem, ShardReader, ShardSource
from kcl_daemon.retrieval.stages import SkippedRecords, stages
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.source import Source, source_named

if TYPE_CHECKING:
    from kcl_daemon.records.kpl import Deaggregator
    from kcl_daemon.retrieval.fan_out import ConsumerRegistration, FanOutReader

_SERVICE: Final = "kinesis"
_SUBSCRIBE: Final = "SubscribeToShard"
T = TypeVar("T")


def shard_labels(shard_id: ShardId, stream: StreamRef) -> dict[str, str]:
    """`stream` only if there are several."""
    if stream.identity is None:
        return {"shard_id": shard_id}
    return {"shard_id": shard_id, "stream": str(stream.identity)}


class MeteredKinesis:
    def __init__(self, kinesis: Kinesis, meters: Meters) -> None:
        self._kinesis = kinesis
        self._meters = meters
        self._calls = dict[str, CallMetrics]()

    async def _counted(self, operation: str, stream: StreamRef, call: Awaitable[T]) -> T:
        return await self._of(stream.source).counted(operation, call)

    def _of(self, source: Source) -> CallMetrics:
        return self._calls.setdefault(source.metered_as, CallMetrics(self._meters, source.metered_as))

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return await self._counted(stream.source.describes, stream, self._kinesis.describe_stream(stream))

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._of(source_named("kinesis")).counted("ListStreams", self._kinesis.list_streams())

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return await self._of(source_named("dynamodb")).counted(
            "ListStreams", streams_of(self._kinesis, table)
        )

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        return await self._counted(stream.source.lists, stream, self._kinesis.list_shards(stream, start))

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        with self._meters.operation(shard_metrics.PROCESS_ITERATOR, **shard_labels(shard_id, stream)):
            call = self._kinesis.get_shard_iterator(stream, shard_id, read_from)
            return await self._counted("GetShardIterator", stream, call)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        labels = shard_labels(shard_id, stream)
        try:
            with self._meters.operation(shard_metrics.PROCESS_READ, **labels):
                call = self._kinesis.get_records(stream, shard_id, iterator, limit)
                return await self._counted("GetRecords", stream, call)
        except IteratorExpired:
            self._meters.add(shard_metrics.PROCESS_EXPIRED)
            raise


class MeteredFanOut:
    """Events are not measured, as in KCL."""

    def __init__(self, fan_out: FanOut, meters: Meters) -> None:
        self._fan_out = fan_out
        self._meters = meters
        self._calls = CallMetrics(meters, _SERVICE)

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        return await self._calls.counted("DescribeStreamConsumer", self._fan_out.describe_consumer(consumer))

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        return await self._calls.counted("RegisterStreamConsumer", self._fan_out.register_consumer(consumer))

    @asynccontextmanager
    async def subscribe(
        self, stream: StreamRef, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom
    ) -> AsyncGenerator[Subscription, None]:
        """A subscription that breaks off later counts as a success."""
        opened = self._fan_out.subscribe(stream, consumer_arn, shard_id, read_from)
        async with AsyncExitStack() as stack:
            yield await self._calls.counted(_SUBSCRIBE, stack.enter_async_context(opened))


_RETRY_S = 5.0


class ReaderFactory:
    """The clock of `context` has the time of day of Kinesis."""

    def __init__(
        self,
        context: WorkerContext,
        settings: Settings,
        *,
        kinesis: Kinesis,
        fan_out: FanOut | None,
        schemas: Schemas | None = None,
    ) -> None:
        self._context = context
        self._settings = settings
        self._kinesis = kinesis
        self._budget = ByteBudget(context.clock)
        self._fan_out = fan_out if settings.retrieval.mode is RetrievalMode.FANOUT else None
        self._consumers: dict[StreamRef, ConsumerRegistration] = {}
        self._distributions: dict[StreamRef, Distribution] = {}
        self._schemas = None
        if schemas is not None and settings.schemas.are_resolved:
            from kcl_daemon.retrieval.schemas import SchemaCache  # few streams have schemas

            self._schemas = SchemaCache(schemas, context)

    @property
    def reserved_bytes(self) -> int:
        return self._budget.reserved_bytes

    def reserve(self, shrink: Callable[[], None], invariants: Invariants) -> Reservation:
        return self._budget.take(0, shrink, invariants=invariants)

    def reader(self, source: ShardSource, *, hash_range: HashRange | None, log: Log) -> ShardReader:
        context = replace(self._context, log=log)
        skipped = SkippedRecords(context.meters, shard_labels(source.shard_id, source.stream), log)
        if self._settings.delivery.keeps_other_shards:
            hash_range = None
        strays = Strays(self._distribution_of(source.stream), context.clock)
        continues = self._settings.changes.continues_trimmed
        source = replace(
            source,
            stops_at_loss=source.stream.source.stops_at_loss if continues is None else not continues,
            split=_split_later(hash_range, skipped, strays),
            skipped=skipped,
            strays=strays,
            stages=stages(
                self._settings, self._schemas, skipped, context=context, last_fetch=source.last_fetch
            ),
        )
        if self._fan_out is None or not source.stream.source.has_fan_out:
            return self._polling(source, context)
        consumer = self._consumer_of(source.stream, self._fan_out)
        pushed = self._pushed(source, context, self._fan_out, consumer)
        if not self._settings.fan_out.fallback_to_polling:
            return pushed
        polled = self._polling(source, context)
        return FanOutOrPolling(consumer, context, source.last_fetch, pushed=pushed, polled=polled)

    def _distribution_of(self, stream: StreamRef) -> Distribution:
        found = self._distributions.get(stream)
        if found is None:
            found = self._distributions[stream] = Distribution(
                self._kinesis, stream, self._context.clock, self._context.log
            )
        return found

    def _consumer_of(self, stream: StreamRef, fan_out: FanOut) -> ConsumerRegistration:
        found = self._consumers.get(stream)
        if found is None:
            from kcl_daemon.retrieval.fan_out import ConsumerRegistration  # not where shards are polled

            found = self._consumers[stream] = ConsumerRegistration(
                self._context,
                fan_out=fan_out,
                kinesis=self._kinesis,
                stream=stream,
                settings=self._settings.fan_out,
                application_name=self._settings.application_name,
            )
        return found

    def _pushed(
        self, source: ShardSource, context: WorkerContext, fan_out: FanOut, consumer: ConsumerRegistration
    ) -> FanOutReader:
        from kcl_daemon.retrieval.fan_out import FanOutReader  # as above

        return FanOutReader(
            source,
            context,
            self._budget,
            fan_out=fan_out,
            kinesis=self._kinesis,
            consumer=consumer,
            reports_empty=self._settings.child.call_for_empty,
        )

    def _polling(self, source: ShardSource, context: WorkerContext) -> PollingReader:
        endpoint = getattr(self._settings.endpoints, source.stream.source.endpoint)
        return PollingReader(
            source,
            context,
            self._budget,
            kinesis=self._kinesis,
            settings=self._settings.retrieval,
            limited=has_service_limits(endpoint),
            reports_empty=self._settings.child.call_for_empty,
        )


def _split_later(hash_range: HashRange | None, skipped: SkippedRecords, strays: Strays) -> Split:
    """Many streams hold no aggregates."""
    made: list[Deaggregator] = []

    def split(record: AnyRecord) -> Iterable[Piece]:
        if not made:
            from kcl_daemon.records.kpl import Deaggregator

            events = (skipped.malformed, skipped.other_shard, skipped.bad_keys)
            made.append(Deaggregator(hash_range, *events, strays=strays))
        return made[0](record)

    return split


class FanOutOrPolling:
    def __init__(
        self,
        consumer: ConsumerRegistration,
        context: WorkerContext,
        last_fetch: LastFetch,
        *,
        pushed: FanOutReader,
        polled: PollingReader,
    ) -> None:
        self._consumer = consumer
        self._context = context
        self._pushed = pushed
        self._polled = polled
        self._last_fetch = last_fetch
        self._chosen: ShardReader | None = None
        self._is_chosen = anyio.Event()

    @property
    def trouble(self) -> str | None:
        return self._last_fetch.trouble

    @property
    def oldest_s(self) -> float | None:
        return None if self._chosen is None else self._chosen.oldest_s

    @property
    def waiting(self) -> tuple[int, int]:
        return (0, 0) if self._chosen is None else self._chosen.waiting

    async def run(self) -> None:
        self._chosen = chosen = await self._choose()
        self._is_chosen.set()
        await chosen.run()

    async def next(self) -> ReadItem:
        while self._chosen is None:
            await self._is_chosen.wait()
        return await self._chosen.next()

    def close(self) -> None:
        self._pushed.close()
        self._polled.close()

    async def _choose(self) -> ShardReader:
        while True:
            try:
                await self._consumer.arn()
            except NO_FAN_OUT as error:
                self._context.log.info("polling_instead_of_fan_out", why=str(error))
                return self._polled
            except AwsError as error:
                self._last_fetch.trouble = str(error)
                await self._context.clock.sleep(_RETRY_S)
            else:
                return self._pushed
