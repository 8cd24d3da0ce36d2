"""Reads one shard by enhanced fan-out: one subscription after another, one event ahead of the child (KCL: FanOutRecordsPublisher).

Owns where the next subscription begins and when. While the child is busy nothing is read: the service then has to
wait, and at worst ends the subscription, after which another one goes on behind the last event that was taken.
"""

from __future__ import annotations

from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    StreamNotFound,
    SubscriptionTaken,
    Throttled,
    Unavailable,
)
from kcl_daemon.ports import Clock, IteratorKind, Log, Randomness, ReadFrom
from kcl_daemon.ports_fan_out import FanOut, Pushed, Subscription
from kcl_daemon.retrieval.batch import NOT_AN_END, Batch, EndOfShard, arrived_s
from kcl_daemon.retrieval.fanout_consumer import ConsumerRegistration
from kcl_daemon.retrieval.gate import BodyGate
from kcl_daemon.retrieval.payload import EMPTY, Payload
from kcl_daemon.retrieval.source import Source
from kcl_daemon.retrieval.start import read_from

# The service refuses a second subscription for so long; the margin covers the way there.
_PROTECTED_S: Final = 5.2
# Somebody else reads the shard: the lease is on its way there, and to fight for it would hurt both.
_OVERTAKEN_S: Final = 10.0
# While the stream itself is gone.
_GONE_PAUSE_S: Final = 60.0
_SHORTEST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 10.0
_MOST_DOUBLINGS: Final = 10


class FanOutReader:
    """The `Reader` of one shard by subscriptions.

    Args:
        source: what is read.
        fan_out: from where.
        consumer: to whom the subscriptions belong.
        clock: for pauses.
        randomness: spreads retries.
        log: for what Kinesis does.
        gate: bounds what all shards have in hand.
        tells_empty: whether the taker wants to hear of events without records.
    """

    def __init__(
        self,
        source: Source,
        *,
        fan_out: FanOut,
        consumer: ConsumerRegistration,
        clock: Clock,
        randomness: Randomness,
        log: Log,
        gate: BodyGate,
        tells_empty: bool,
    ) -> None:
        self._source = source
        self._fan_out = fan_out
        self._consumer = consumer
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._gate = gate
        self._tells_empty = tells_empty
        self._item: Batch | EndOfShard | None = None
        self._filled = anyio.Event()
        self._taken = anyio.Event()
        self._awaited = False
        self._continuation: str | None = None
        self._last_sequence_number: str | None = None
        self._failures = 0
        self._heard = source.heard
        self._heard.trouble = None

    @property
    def trouble(self) -> str | None:
        """As the protocol says."""
        return self._heard.trouble

    @property
    def oldest_s(self) -> float | None:
        """As the protocol says."""
        return self._item.arrived_s if isinstance(self._item, Batch) else None

    async def next(self) -> Batch | EndOfShard:
        """As the protocol says."""
        while (item := self._item) is None:
            self._filled = anyio.Event()
            self._awaited = True
            self._gate.stir()
            try:
                await self._filled.wait()
            finally:
                self._awaited = False
        self._item = None
        self._taken.set()
        return item

    def close(self) -> None:
        """As the protocol says."""
        item, self._item = self._item, None
        if isinstance(item, Batch):
            item.release()

    async def run(self) -> None:
        """As the protocol says."""
        while True:
            try:
                arn = await self._consumer.arn()
            except AwsError as error:  # the registration has said what is wrong
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
            except AwsError as error:
                self._tell(error)
                had_begun = self._source.memory.subscribed_at_s != before_s
                await self._pause(overtaken=had_begun and isinstance(error, SubscriptionTaken))

    async def _subscribe(self, arn: str) -> bool:
        """One subscription; True at the end of the shard."""
        where, source = self._position(), self._source
        async with self._fan_out.subscribe(source.stream, arn, source.shard_id, where) as subscription:
            self._began(where)
            return await self._take_all(subscription)

    async def _take_all(self, subscription: Subscription) -> bool:
        while (pushed := await subscription.next()) is not None:
            self._failures = 0
            if (pushed.continuation is None) is not bool(pushed.child_shards):
                raise Unavailable(NOT_AN_END, operation="SubscribeToShard")
            await self._accept(pushed)
            if pushed.continuation is None:
                await self._put(EndOfShard(pushed.child_shards))
                return True
            self._continuation = pushed.continuation
            del pushed  # and with it its body, which would stay in memory while the next one is waited for
        return False

    def _position(self) -> ReadFrom:
        if self._continuation is not None:
            return ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=self._continuation)
        return read_from(self._source.checkpoint, self._source.memory, self._source.timestamp_s)

    def _began(self, where: ReadFrom) -> None:
        memory = self._source.memory
        memory.subscribed_at_s = self._clock.monotonic()
        if where.kind is IteratorKind.LATEST:
            # Were it to break before the first event, LATEST again would skip some.
            memory.idle_until_s = self._clock.wall_ms() / 1000
        self._log.debug("subscribed", position=where.kind.value, sequence_number=where.sequence_number)

    async def _accept(self, pushed: Pushed) -> None:
        """Put an event before the child; back when there is room for another one."""
        self._remember(pushed)
        at_the_end = pushed.continuation is None
        gave = False
        for number, payload in enumerate(self._source.undelivered(pushed.payload)):
            if number:
                await checkpoint()  # a million user records in aggregates would hold up renewals
            if not gave:
                self._hear(pushed, empty=not payload and not at_the_end)
            opening = self._source.opening(payload, self._troubled)
            if opening is None:
                if payload:
                    gave = True
                    await self._deliver(payload, pushed.millis_behind_latest)
                continue
            while (part := await opening.next()) is not None:
                gave = True
                await self._deliver(part, pushed.millis_behind_latest)
        if not gave:
            self._hear(pushed, empty=not at_the_end)
            if self._tells_empty:
                await self._put(Batch(EMPTY, pushed.millis_behind_latest))

    async def _deliver(self, payload: Payload, behind_ms: int | None) -> None:
        oldest_s = arrived_s(payload, behind_ms, self._clock)  # before the wait for room, which takes time
        hold = await self._gate.admit(payload.size_bytes, is_awaited=lambda: self._awaited)
        batch = Batch(payload, behind_ms, hold.release, arrived_s=oldest_s)
        hold.resize(batch.size_bytes)
        await self._put(batch)

    def _hear(self, pushed: Pushed, *, empty: bool) -> None:
        self._heard.answer(behind_ms=pushed.millis_behind_latest, empty=empty, now_s=self._clock.monotonic())

    def _troubled(self, reason: str | None) -> None:
        self._heard.trouble = reason

    def _remember(self, pushed: Pushed) -> None:
        """Where a child that is started anew begins."""
        memory, payload = self._source.memory, pushed.payload
        if payload:
            if self._last_sequence_number is None:
                self._source.look_at_beginning(payload.first.sequence_number, self._log)
            self._last_sequence_number = payload.last.sequence_number
            memory.idle_after = memory.idle_iterator = None
            if memory.first_sequence_number is None:
                memory.first_sequence_number = payload.first.sequence_number
        elif memory.first_sequence_number is None:
            memory.idle_after = pushed.continuation

    async def _put(self, item: Batch | EndOfShard) -> None:
        """Give an item to the taker; back when it has been taken."""
        self._item = item
        self._taken = anyio.Event()
        self._filled.set()
        await self._taken.wait()

    async def _shard_is_gone(self, gone: StreamNotFound, arn: str) -> bool:
        """Whether it is the shard that does not exist any more, not stream or consumer; where those, a while later."""
        is_there = self._source.stream_is_there
        self._note(gone)
        try:
            if is_there is not None and not await is_there():
                await self._source.wait_out(self._clock, _GONE_PAUSE_S)
                return False
            if not await self._consumer.exists(arn):
                await self._pause()
                return False
        except AwsError as error:
            self._tell(error)
            await self._pause()
            return False
        self._log.warning(
            "shard_not_found",
            error=str(gone),
            advice="the stream no longer has this shard; the lease ends here",
        )
        return True

    def _note(self, error: AwsError) -> None:
        self._failures += 1
        self._heard.trouble = str(error)

    def _tell(self, error: AwsError) -> None:
        """Say what a failed or broken subscription leaves to do."""
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
                self._source.memory.idle_after = None  # but not the time until which nothing had come
            case _:
                # One break in a while is nothing: connections do not live for ever.
                tell = self._log.info if self._failures == 1 else self._log.warning
                tell("subscription_broken", error=str(error), failures=self._failures)

    async def _until_unprotected(self) -> None:
        """Wait as long as the service protects the subscription before this one."""
        began_s = self._source.memory.subscribed_at_s
        if began_s is not None:
            await self._clock.sleep(max(0.0, began_s + _PROTECTED_S - self._clock.monotonic()))

    async def _pause(self, *, overtaken: bool = False) -> None:
        """After a failure; the first one of a subscription that was good costs nothing but its protection."""
        if overtaken:
            await self._clock.sleep(_OVERTAKEN_S)
        elif self._failures > 1:
            doublings = min(self._failures - 2, _MOST_DOUBLINGS)
            most_s: float = min(_LONGEST_BACKOFF_S, _SHORTEST_BACKOFF_S * 2**doublings)
            await self._clock.sleep(most_s * self._randomness.uniform(0.5, 1.0))
