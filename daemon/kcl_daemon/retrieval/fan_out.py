"""Reads one shard by enhanced fan-out (KCL: FanOutRecordsPublisher, FanOutConsumerRegistration).

The reader reads one event ahead, and nothing while the child is busy. If the service then ends the
subscription, the next one continues after the last event taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from kcl_daemon import faults
from kcl_daemon.config.retrieval import FanOutSettings
from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import (
    NO_FAN_OUT,
    AccessDenied,
    AwsError,
    ConsumerLimitReached,
    InvalidRequest,
    StreamNotFound,
    SubscriptionTaken,
    Throttled,
    Trimmed,
    Unavailable,
)
from kcl_daemon.ports import (
    ConsumerName,
    ConsumerStatus,
    FanOut,
    IteratorKind,
    Kinesis,
    PushedRecords,
    ReadFrom,
    StreamConsumer,
    StreamRef,
    Subscription,
)
from kcl_daemon.records.batch import nothing
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.source import (
    INCONSISTENT_END,
    BufferedReader,
    DeliveryBatch,
    EndOfShard,
    Passed,
    ReachedBound,
    ReadItem,
    ShardSource,
    read_from,
    waiting_in,
)
from kcl_daemon.retrieval.stages import parts_of

T = TypeVar("T")

# Spreads workers that start together, as in KCL.
_SPREAD_S: Final = 0.1
# After a failure no shard asks again for this long.
_REFUSED_S: Final = 60.0
_FAILED_S: Final = 5.0
_ADVICE_LIMIT: Final = (
    "deregister a consumer of the stream or request a higher limit; or set fanoutConfig.consumerArn to "
    "an unused consumer, retrievalMode=POLLING, or fanoutFallbackToPolling=true"
)
_ADVICE_DENIED: Final = (
    "grant kinesis:DescribeStreamSummary on the stream, DescribeStreamConsumer, RegisterStreamConsumer "
    "and SubscribeToShard on stream and consumer; or set retrievalMode=POLLING, or "
    "fanoutFallbackToPolling=true"
)

_ADVICE_TIP: Final = "without it, windows over this shard wait while it is quiet: grant kinesis:GetShardIterator and GetRecords on the stream"


@dataclass(frozen=True, slots=True)
class _FailedAttempt:
    """Raised for all callers until `until_s` (monotonic)."""

    error: AwsError
    until_s: float


class ConsumerRegistration:
    """Of a stream, for all shards of the worker. Unlike KCL it never gives up for good."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        fan_out: FanOut,
        kinesis: Kinesis,
        stream: StreamRef,
        settings: FanOutSettings,
        application_name: str,
    ) -> None:
        self._fan_out = fan_out
        self._kinesis = kinesis
        self._stream = stream
        self._settings = settings
        self._name = settings.consumer_name or application_name
        self._clock = context.clock
        self._randomness = context.randomness
        self._log = context.log
        self._lock = anyio.Lock()
        self._arn = settings.consumer_arn
        self._failed: _FailedAttempt | None = None

    async def arn(self) -> str:
        """Of a consumer that is, or was, ACTIVE; AwsError if there is none now, which has been logged. Cancelling is safe."""
        async with self._lock:
            if self._arn is None:
                self._arn = await self._found()
            return self._arn

    async def exists(self, arn: str) -> bool:
        """AwsError if that is not known. A lost consumer is registered again by `arn`, unless its ARN is configured.

        Another shard may have done so since `arn` was in use.
        """
        if self._arn != arn:
            return False
        consumer = await self._fan_out.describe_consumer(arn)
        if consumer is not None and consumer.status is ConsumerStatus.ACTIVE:
            return True
        if self._arn == arn:
            self._log.warning(
                "consumer_gone", consumer_arn=arn, advice="it was deregistered while it was in use"
            )
            self._arn = self._settings.consumer_arn
        return False

    async def _found(self) -> str:
        failed = self._failed
        if failed is not None and self._clock.monotonic() < failed.until_s:
            raise failed.error
        try:
            return await self._search()
        except AwsError as error:
            lasts_s = _REFUSED_S if isinstance(error, NO_FAN_OUT) else _FAILED_S
            self._failed = _FailedAttempt(error, self._clock.monotonic() + lasts_s)
            self._log_failure(error)
            raise

    async def _search(self) -> str:
        summary = await self._with_retries(
            self._settings.describe_stream_tries, lambda: self._kinesis.describe_stream(self._stream)
        )
        named = ConsumerName(summary.arn, self._name)
        consumer = await self._described(named)
        if consumer is None or consumer.status is ConsumerStatus.DELETING:
            await self._with_retries(
                self._settings.register_tries, lambda: self._registered(named), also=ConsumerLimitReached
            )
        elif consumer.status is ConsumerStatus.ACTIVE:
            self._log.info("consumer_found", consumer_arn=consumer.arn)
            return consumer.arn
        return await self._with_retries(self._settings.describe_consumer_tries, lambda: self._active(named))

    async def _described(self, named: ConsumerName) -> StreamConsumer | None:
        return await self._with_retries(
            self._settings.describe_consumer_tries, lambda: self._fan_out.describe_consumer(named)
        )

    async def _registered(self, named: ConsumerName) -> None:
        """Another worker may do so at the same time."""
        try:
            consumer = await self._fan_out.register_consumer(named)
        except Unavailable:
            there = await self._fan_out.describe_consumer(named)
            if there is None or there.status is ConsumerStatus.DELETING:
                raise
            return
        faults.maybe("after-consumer-registered")
        self._log.info("consumer_registered", consumer_arn=consumer.arn)

    async def _active(self, named: ConsumerName) -> str:
        consumer = await self._fan_out.describe_consumer(named)
        if consumer is None or consumer.status is not ConsumerStatus.ACTIVE:
            status = "not there" if consumer is None else consumer.status.value
            raise Unavailable(f"consumer {named.name} is {status}", operation="DescribeStreamConsumer")
        return consumer.arn

    async def _with_retries(
        self, tries: int, call: Callable[[], Awaitable[T]], *, also: type[AwsError] = Throttled
    ) -> T:
        pause_s = self._settings.retry_backoff_ms / 1000
        while True:
            tries -= 1
            try:
                return await call()
            except (Throttled, Unavailable, also) as error:
                if not tries:
                    raise
                self._log.debug("consumer_awaited", error=str(error))
            await self._clock.sleep(pause_s + self._randomness.uniform(0, _SPREAD_S))

    def _log_failure(self, error: AwsError) -> None:
        log_event = self._log.warning if self._settings.fallback_to_polling else self._log.error
        match error:
            case ConsumerLimitReached():
                log_event("fan_out_impossible", error=str(error), advice=_ADVICE_LIMIT)
            case AccessDenied() | InvalidRequest():
                log_event("fan_out_impossible", error=str(error), advice=_ADVICE_DENIED)
            case StreamNotFound():
                self._log.warning("consumer_not_found", error=str(error), advice="does the stream exist?")
            case _:
                self._log.warning("consumer_not_found", error=str(error))


# The service refuses a new subscription for 5 s.
_PROTECTED_S: Final = 5.2
# The lease is probably moving to another worker. Competing would hurt both.
_OVERTAKEN_S: Final = 10.0
_GONE_PAUSE_S: Final = 60.0
_ASK_EVERY_S: Final = 2.0
_ASK_WITHIN_S: Final = 10.0
_SHORTEST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 10.0
_MAX_DOUBLINGS: Final = 10


class FanOutReader(BufferedReader):
    """If `reports_empty`, events without records become empty batches."""

    def __init__(
        self,
        source: ShardSource,
        context: WorkerContext,
        budget: ByteBudget,
        *,
        fan_out: FanOut,
        kinesis: Kinesis,
        consumer: ConsumerRegistration,
        reports_empty: bool,
    ) -> None:
        super().__init__(source, context, budget)
        self._fan_out = fan_out
        self._kinesis = kinesis
        self._consumer = consumer
        self._reports_empty = reports_empty
        self._item: ReadItem | None = None
        self._continuation: str | None = None
        self._tip: str | None = None
        """`_continuation` where the shard seemed to end when it was given."""
        self._failures = 0

    @property
    def oldest_s(self) -> float | None:
        arrived = self._item.arrived_s if isinstance(self._item, DeliveryBatch) else None
        return self._handing_out_s if arrived is None else arrived

    @property
    def waiting(self) -> tuple[int, int]:
        return waiting_in((self._item,))

    async def next(self) -> ReadItem:
        while (item := self._item) is None:
            await self._wait_until_filled()
        self._item = None
        self._taken.set()
        return item

    def close(self) -> None:
        item, self._item = self._item, None
        if isinstance(item, DeliveryBatch):
            item.release()

    async def run(self) -> None:
        if not self._source.tells_complete:
            await self._run()
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask)
            await self._run()
            tasks.cancel_scope.cancel()

    async def _ask(self) -> None:
        """Tell a relay now and then until when it has all.

        An event does not show when it was sent: it may have waited in a buffer. A read is no older than its request.
        """
        refused = False
        while True:
            await self._clock.sleep(_ASK_EVERY_S)
            try:
                complete_ms = await self._asked(self._tip) if self._tip and self._is_free() else None
            except AwsError as error:
                log_event = self._log.debug if refused else self._log.warning
                log_event("tip_not_asked", error=str(error), advice=_ADVICE_TIP)
                refused = True
                continue
            if complete_ms is not None and self._is_free():
                self._item = DeliveryBatch(nothing(0, complete_ms))
                self._filled.set()

    def _is_free(self) -> bool:
        return self._item is None and self._child_waits

    async def _asked(self, tip: str) -> int | None:
        where, source = ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=tip), self._source
        at = self._kinesis.get_shard_iterator(source.stream, source.shard_id, where)
        iterator = await self._context.call(at, "GetShardIterator", timeout_s=_ASK_WITHIN_S)
        asked_ms = self._clock.passed_ms()
        answer = self._kinesis.get_records(source.stream, source.shard_id, iterator, 1)
        fetched = await self._context.call(answer, "GetRecords", timeout_s=_ASK_WITHIN_S)
        if fetched.payload or fetched.next_iterator is None:  # the children of a closed shard may have more
            return None
        return source.complete_ms(asked_ms, fetched.millis_behind_latest)

    async def _run(self) -> None:
        while True:
            try:
                arn = await self._consumer.arn()
            except StreamNotFound as gone:
                await self._shard_is_gone(gone, None)
                continue
            except AwsError as error:
                self._note(error)
                await self._pause()
                continue
            await self._until_unprotected()
            before_s = self._source.memory.subscribed_at_s
            try:
                if await self._subscribe(arn):
                    return
            except StreamNotFound as gone:
                if await self._shard_is_gone(gone, arn):
                    await self._put(EndOfShard(()))
                    return
            except Trimmed:
                await self._stand_still()
            except AwsError as error:
                self._log_failure(error)
                had_begun, failed_s = self._source.memory.subscribed_at_s != before_s, self._clock.monotonic()
                await self._pause(overtaken=had_begun and isinstance(error, SubscriptionTaken))
                if isinstance(error, Throttled):
                    self._flow.refused_s += self._waited_s(failed_s)

    async def _subscribe(self, arn: str) -> bool:
        where, source = self._position(), self._source
        asked_ms = self._clock.passed_ms()
        async with self._fan_out.subscribe(source.stream, arn, source.shard_id, where) as subscription:
            self._began(where)
            return await self._take_all(subscription, asked_ms)

    async def _take_all(self, subscription: Subscription, asked_ms: int) -> bool:
        while (pushed := await subscription.next()) is not None:
            self._failures = 0
            if (pushed.continuation is None) is not bool(pushed.child_shards):
                raise Unavailable(INCONSISTENT_END, operation="SubscribeToShard")
            at_bound = await self._accept(pushed, asked_ms)
            if at_bound or pushed.continuation is None:
                await self._put(ReachedBound(()) if at_bound else self._source.end(pushed.child_shards))
                return True
            self._continuation = pushed.continuation
            self._tip = pushed.continuation if pushed.millis_behind_latest == 0 else None
            # An event says nothing of its age, which only a new subscription limits.
            seems_beyond = self._source.is_beyond(pushed.millis_behind_latest, self._clock.wall_ms())
            del pushed
            if seems_beyond:
                return False
        return False

    def _position(self) -> ReadFrom:
        if self._continuation is not None:
            return ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=self._continuation)
        return read_from(self._source.checkpoint, self._source.memory, self._source.timestamp_s)

    def _began(self, where: ReadFrom) -> None:
        memory = self._source.memory
        memory.subscribed_at_s = self._clock.monotonic()
        if where.kind is IteratorKind.LATEST:
            # If it breaks before the first event, LATEST would skip records.
            memory.idle_until_s = self._clock.passed_ms() / 1000
        self._log.debug("subscribed", position=where.kind.value, sequence_number=where.sequence_number)

    async def _accept(self, pushed: PushedRecords, asked_ms: int) -> bool:
        self._remember(pushed)
        at_the_end = pushed.continuation is None
        whole, at_bound = self._whole(
            pushed.payload, pushed.millis_behind_latest, asked_ms, at_end=at_the_end, is_fresh=False
        )
        gave, passed = False, None
        self._opened, parts = parts_of(self._source, whole)
        while (part := await parts.next()) is not None:
            if isinstance(part, Passed):
                passed = part
                continue
            self._opened.oldest_s = part.arrived_s
            if not gave:
                self._record_fetch(pushed, empty=False)
            gave = True
            await self._put(self._batch(part, await self._reserve(part.payload.size_bytes)))
        self._opened = None
        if not gave:
            self._record_fetch(pushed, empty=not at_the_end)
            if self._reports_empty:
                await self._put(DeliveryBatch(whole.end))
        if passed is not None:
            await self._put(passed)
        return at_bound

    def _record_fetch(self, pushed: PushedRecords, *, empty: bool) -> None:
        self._last_fetch.answer(
            behind_ms=pushed.millis_behind_latest, empty=empty, now_s=self._clock.monotonic()
        )

    def _remember(self, pushed: PushedRecords) -> None:
        if pushed.payload:
            self._remember_records(pushed.payload)
        elif self._source.memory.first_sequence_number is None:
            self._source.memory.idle_after = pushed.continuation

    async def _put(self, item: ReadItem) -> None:
        self._item = item
        self._count(item)
        self._taken = anyio.Event()
        self._filled.set()
        await self._taken.wait()

    async def _shard_is_gone(self, gone: StreamNotFound, arn: str | None) -> bool:
        """If the stream or consumer is missing instead, pause and return False."""
        self._note(gone)
        try:
            if not await self._source.has_lost_shard():
                await self._source.wait_out(self._clock, _GONE_PAUSE_S)
                return False
            if arn is None or not await self._consumer.exists(arn):
                await self._pause()
                return False
        except AwsError as error:
            self._log_failure(error)
            await self._pause()
            return False
        return await self._ends_gone(gone)

    def _note(self, error: AwsError) -> None:
        self._failures += 1
        self._last_fetch.trouble = str(error)

    def _log_failure(self, error: AwsError) -> None:
        self._note(error)
        match error:
            case AccessDenied():
                self._log.error(
                    "subscription_failed",
                    error=str(error),
                    advice="grant kinesis:SubscribeToShard on the consumer",
                )
            case SubscriptionTaken() | Throttled():
                self._log.info("subscription_refused", error=str(error))
            case InvalidRequest():
                self._log.warning("subscription_failed", error=str(error), failures=self._failures)
                self._continuation = self._last_sequence_number
                self._source.memory.idle_after = None  # `idle_until_s` stays valid
            case _:
                log_event = self._log.info if self._failures == 1 else self._log.warning
                log_event("subscription_broken", error=str(error), failures=self._failures)

    async def _until_unprotected(self) -> None:
        began_s = self._source.memory.subscribed_at_s
        if began_s is not None:
            await self._clock.sleep(max(0.0, began_s + _PROTECTED_S - self._clock.monotonic()))

    async def _pause(self, *, overtaken: bool = False) -> None:
        """The first failure needs only the protection time."""
        if overtaken:
            await self._clock.sleep(_OVERTAKEN_S)
        elif self._failures > 1:
            doublings = min(self._failures - 2, _MAX_DOUBLINGS)
            most_s: float = min(_LONGEST_BACKOFF_S, _SHORTEST_BACKOFF_S * 2**doublings)
            await self._clock.sleep(most_s * self._context.randomness.uniform(0.5, 1.0))
