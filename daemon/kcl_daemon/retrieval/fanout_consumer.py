"""The fan-out consumer of this application: found, registered where there is none, awaited (KCL: FanOutConsumerRegistration).

One for all shards of a worker. Owns the tries and what is said about them. Knows nothing of shards and records. Unlike
KCL it never gives up for good: whoever asks again later has it tried again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from kcl_daemon.config.fan_out_settings import FanOutSettings
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ConsumerLimitReached,
    InvalidRequest,
    StreamNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.ports import Clock, Kinesis, Log, Randomness, StreamRef
from kcl_daemon.ports_fan_out import Consumer, ConsumerName, ConsumerStatus, FanOut

T = TypeVar("T")

# Spreads the tries of workers that start together, as in KCL.
_SPREAD_S: Final = 0.1
# What could not be had is not asked for again for so long, however many shards want it.
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

IMPOSSIBLE: Final = (ConsumerLimitReached, AccessDenied, InvalidRequest)
"""What another try in a moment does not put right."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """The last attempt, and until when it stands for those that come after it."""

    error: AwsError
    until_s: float


class ConsumerRegistration:
    """Finds the consumer when it is first asked for, and remembers it.

    Args:
        fan_out: where consumers are.
        kinesis: tells the stream's ARN.
        stream: whose consumer.
        settings: which, and how often things are tried.
        application_name: the consumer's name where none is set.
        clock: for pauses.
        randomness: spreads them.
        log: for what was found, and why not.
    """

    def __init__(
        self,
        *,
        fan_out: FanOut,
        kinesis: Kinesis,
        stream: StreamRef,
        settings: FanOutSettings,
        application_name: str,
        clock: Clock,
        randomness: Randomness,
        log: Log,
    ) -> None:
        self._fan_out = fan_out
        self._kinesis = kinesis
        self._stream = stream
        self._settings = settings
        self._name = settings.consumer_name or application_name
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._lock = anyio.Lock()
        self._arn = settings.consumer_arn
        self._failed: _Failed | None = None

    async def arn(self) -> str:
        """ARN of a consumer that is, or was, ACTIVE. Cancellable at any point.

        Raises:
            AwsError: there is none now; it has been logged.
        """
        async with self._lock:
            if self._arn is None:
                self._arn = await self._found()
            return self._arn

    async def exists(self, arn: str) -> bool:
        """Whether a consumer is still ours, after the service has said that something is not there; AwsError: not known.

        One that has a name is found or registered anew at the next `arn` if it is gone.

        Args:
            arn: as `arn` gave it for the subscription that ended. Another shard may have registered another one since.
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
            lasts_s = _REFUSED_S if isinstance(error, IMPOSSIBLE) else _FAILED_S
            self._failed = _Failed(error, self._clock.monotonic() + lasts_s)
            self._tell(error)
            raise

    async def _search(self) -> str:
        summary = await self._tried(
            self._settings.describe_stream_tries, lambda: self._kinesis.describe_stream(self._stream)
        )
        named = ConsumerName(summary.arn, self._name)
        consumer = await self._described(named)
        if consumer is None or consumer.status is ConsumerStatus.DELETING:
            await self._tried(
                self._settings.register_tries, lambda: self._registered(named), also=ConsumerLimitReached
            )
        elif consumer.status is ConsumerStatus.ACTIVE:
            self._log.info("consumer_found", consumer_arn=consumer.arn)
            return consumer.arn
        return await self._tried(self._settings.describe_consumer_tries, lambda: self._active(named))

    async def _described(self, named: ConsumerName) -> Consumer | None:
        return await self._tried(
            self._settings.describe_consumer_tries, lambda: self._fan_out.describe_consumer(named)
        )

    async def _registered(self, named: ConsumerName) -> None:
        """Register it, or see that another worker has."""
        try:
            consumer = await self._fan_out.register_consumer(named)
        except Unavailable:
            there = await self._fan_out.describe_consumer(named)
            if there is None or there.status is ConsumerStatus.DELETING:
                raise
            return
        self._log.info("consumer_registered", consumer_arn=consumer.arn)

    async def _active(self, named: ConsumerName) -> str:
        consumer = await self._fan_out.describe_consumer(named)
        if consumer is None or consumer.status is not ConsumerStatus.ACTIVE:
            status = "not there" if consumer is None else consumer.status.value
            raise Unavailable(f"consumer {named.name} is {status}", operation="DescribeStreamConsumer")
        return consumer.arn

    async def _tried(
        self, tries: int, call: Callable[[], Awaitable[T]], *, also: type[AwsError] = Throttled
    ) -> T:
        """The result of a call that is made again where that may help."""
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

    def _tell(self, error: AwsError) -> None:
        tell = self._log.warning if self._settings.fallback_to_polling else self._log.error
        match error:
            case ConsumerLimitReached():
                tell("fan_out_impossible", error=str(error), advice=_ADVICE_LIMIT)
            case AccessDenied() | InvalidRequest():
                tell("fan_out_impossible", error=str(error), advice=_ADVICE_DENIED)
            case StreamNotFound():
                self._log.warning("consumer_not_found", error=str(error), advice="does the stream exist?")
            case _:
                self._log.warning("consumer_not_found", error=str(error))
