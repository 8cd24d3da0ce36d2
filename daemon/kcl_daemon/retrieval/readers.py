"""Which way each shard is read: by fan-out, by polling, or by polling because there can be no fan-out.

Owns the choice, and what is done to records in either way: KPL aggregates taken apart, schemas resolved. Knows nothing of leases and children.
"""

from __future__ import annotations

from dataclasses import replace

import anyio

from kcl_daemon.config.fan_out_settings import RetrievalMode
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import HashRange
from kcl_daemon.ports import Clock, Kinesis, Log, Randomness, StreamRef
from kcl_daemon.ports_fan_out import FanOut
from kcl_daemon.ports_metrics import NO_METERS, Meters
from kcl_daemon.ports_schemas import Schemas
from kcl_daemon.progress.heard import Heard
from kcl_daemon.retrieval.aggregate import Complaint, Deaggregator
from kcl_daemon.retrieval.batch import Batch, EndOfShard
from kcl_daemon.retrieval.fanout import FanOutReader
from kcl_daemon.retrieval.fanout_consumer import IMPOSSIBLE, ConsumerRegistration
from kcl_daemon.retrieval.gate import BodyGate
from kcl_daemon.retrieval.left_out import LeftOut
from kcl_daemon.retrieval.metered import shard_labels
from kcl_daemon.retrieval.pacing import keeps_limits
from kcl_daemon.retrieval.prefetch import Prefetch
from kcl_daemon.retrieval.reader import Reader
from kcl_daemon.retrieval.schemas import SchemaDecoder
from kcl_daemon.retrieval.source import Source

_RETRY_S = 5.0


class Readers:
    """Makes the readers of one worker.

    Args:
        settings: say which way.
        kinesis: for polling, and for what a consumer is registered with.
        fan_out: for fan-out; None: there is none here, and shards are polled whatever the settings say.
        clock: for pauses, and for positions by time.
        randomness: spreads retries.
        log: for what concerns all shards.
        schemas: the registry that records are opened with, where the settings say so; None: there is none here.
        meters: told of what is read and not delivered.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        kinesis: Kinesis,
        fan_out: FanOut | None,
        clock: Clock,
        randomness: Randomness,
        log: Log,
        schemas: Schemas | None = None,
        meters: Meters = NO_METERS,
    ) -> None:
        self._settings = settings
        self._kinesis = kinesis
        self._clock = clock
        self._randomness = randomness
        self._gate = BodyGate(clock)
        self._fan_out = fan_out if settings.retrieval.mode is RetrievalMode.FANOUT else None
        self._log = log
        self._meters = meters
        self._consumers: dict[StreamRef, ConsumerRegistration] = {}
        self._schemas = (
            SchemaDecoder(schemas, on_failure=settings.schemas.on_failure, clock=clock, randomness=randomness)
            if schemas is not None and settings.schemas.are_resolved
            else None
        )

    @property
    def in_hand_bytes(self) -> int:
        """What all of them have read and not yet handed on."""
        return self._gate.held_bytes

    def reader(self, source: Source, *, hash_range: HashRange | None, log: Log) -> Reader:
        """The reader of a shard for one child.

        Args:
            source: what is read; how aggregates are taken apart, records opened and left out is added.
            hash_range: of the shard, as far as it is known.
            log: of the shard.
        """
        left_out = LeftOut(self._meters, shard_labels(source.shard_id, source.stream), log)
        source = replace(
            source,
            split=Deaggregator(hash_range, _complaint(log), left_out.other_shard, left_out.bad_keys),
            left_out=left_out,
            schemas=None if self._schemas is None else self._schemas.of_shard(log),
        )
        if self._fan_out is None:
            return self._polling(source, log)
        consumer = self._consumer_of(source.stream, self._fan_out)
        if not self._settings.fan_out.fallback_to_polling:
            return self._pushed(source, self._fan_out, consumer, log)
        return FanOutOrPolling(
            consumer,
            pushed=self._pushed(source, self._fan_out, consumer, log),
            polled=self._polling(source, log),
            heard=source.heard,
            clock=self._clock,
            log=log,
        )

    def _consumer_of(self, stream: StreamRef, fan_out: FanOut) -> ConsumerRegistration:
        """The consumer of a stream, one for all shards."""
        found = self._consumers.get(stream)
        if found is None:
            found = self._consumers[stream] = ConsumerRegistration(
                fan_out=fan_out,
                kinesis=self._kinesis,
                stream=stream,
                settings=self._settings.fan_out,
                application_name=self._settings.application_name,
                clock=self._clock,
                randomness=self._randomness,
                log=self._log,
            )
        return found

    def _polling(self, source: Source, log: Log) -> Prefetch:
        return Prefetch(
            source,
            kinesis=self._kinesis,
            settings=self._settings.retrieval,
            clock=self._clock,
            randomness=self._randomness,
            log=log,
            gate=self._gate,
            limited=keeps_limits(self._settings.endpoints.kinesis),
            tells_empty=self._settings.child.call_for_empty,
        )

    def _pushed(
        self, source: Source, fan_out: FanOut, consumer: ConsumerRegistration, log: Log
    ) -> FanOutReader:
        return FanOutReader(
            source,
            fan_out=fan_out,
            consumer=consumer,
            clock=self._clock,
            randomness=self._randomness,
            log=log,
            gate=self._gate,
            tells_empty=self._settings.child.call_for_empty,
        )


class FanOutOrPolling:
    """The `Reader` that takes the one of two that is possible, before it reads anything.

    Args:
        consumer: whether there is one decides.
        pushed: where there is.
        polled: where there cannot be one.
        heard: of both.
        clock: for pauses.
        log: told of the choice.
    """

    def __init__(
        self,
        consumer: ConsumerRegistration,
        *,
        pushed: Reader,
        polled: Reader,
        heard: Heard,
        clock: Clock,
        log: Log,
    ) -> None:
        self._consumer = consumer
        self._pushed = pushed
        self._polled = polled
        self._clock = clock
        self._log = log
        self._chosen: Reader | None = None
        self._is_chosen = anyio.Event()
        self._heard = heard

    @property
    def trouble(self) -> str | None:
        """As the protocol says."""
        return self._heard.trouble

    @property
    def oldest_s(self) -> float | None:
        """As the protocol says."""
        return None if self._chosen is None else self._chosen.oldest_s

    async def run(self) -> None:
        """As the protocol says."""
        self._chosen = chosen = await self._choose()
        self._is_chosen.set()
        await chosen.run()

    async def next(self) -> Batch | EndOfShard:
        """As the protocol says."""
        while self._chosen is None:
            await self._is_chosen.wait()
        return await self._chosen.next()

    def close(self) -> None:
        """As the protocol says."""
        self._pushed.close()
        self._polled.close()

    async def _choose(self) -> Reader:
        while True:
            try:
                await self._consumer.arn()
            except IMPOSSIBLE as error:
                self._log.info("polling_instead_of_fan_out", why=str(error))
                return self._polled
            except AwsError as error:
                self._heard.trouble = str(error)
                await self._clock.sleep(_RETRY_S)
            else:
                return self._pushed


def _complaint(log: Log) -> Complaint:
    """Loud once for each reader: where one aggregate is broken, all of its producer's may be."""
    count = 0

    def complain(reason: str, sequence_number: str) -> None:
        nonlocal count
        count += 1
        tell = log.warning if count == 1 else log.debug
        tell(
            "aggregate_malformed",
            reason=reason,
            sequence_number=sequence_number,
            count=count,
            advice="it is delivered unchanged; check the producer, or anything that rewrites its records",
        )

    return complain
