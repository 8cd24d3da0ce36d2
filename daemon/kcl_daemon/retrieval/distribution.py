"""Whether partition keys choose the shards of a stream (`RecordDistributionStrategy`): it may be switched at any time.

A record of an aggregate that belongs to another shard is left out only where the service has said that keys choose, after
the record was received, and had said so before it arrived. In doubt it is delivered.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from math import inf
from typing import Final

import anyio

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import HashRange
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef
from kcl_daemon.records.payload import AnyRecord, Payload

AUTO: Final = "AUTO"
_PAUSE_S: Final = 1.0
_LASTS_S: Final = 60.0
_ANSWER_S: Final = 10.0
_REFUSED_S: Final = 10.0
# Our clock of Kinesis' time may be wrong by so much.
_MARGIN_MS: Final = 60_000


class Distribution:
    def __init__(self, kinesis: Kinesis, stream: StreamRef, clock: Clock, log: Log | None = None) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._clock = clock
        self._log = log
        self._lock = anyio.Lock()
        self._tried_s = self._answered_s = -inf
        self._auto_until_s = -inf
        self._doubt_until_s = -inf
        self._by_key_since_ms: float | None = None
        self._told: str | None = None

    @property
    def is_new(self) -> bool:
        return self._tried_s == -inf

    def kept(self, record: AnyRecord, received_s: float) -> bool | None:
        """Whether the records of other shards in it are delivered; None: ask first."""
        now_s = self._clock.monotonic()
        if now_s < max(self._auto_until_s, self._doubt_until_s):
            return True
        arrived_ms, since_ms = record.approximate_arrival_timestamp, self._by_key_since_ms
        if since_ms is not None and (arrived_ms is None or arrived_ms < since_ms + _MARGIN_MS):
            return True  # whatever the answer is
        return None if self._answered_s < received_s else since_ms is None

    async def ask(self, received_s: float) -> None:
        """Returns when it was asked after that time; also if there was no answer."""
        clock = self._clock
        async with self._lock:
            if self._answered_s >= received_s or clock.monotonic() < self._doubt_until_s:
                return
            if not self.is_new:
                await clock.sleep(max(0.0, self._tried_s + _PAUSE_S - clock.monotonic()))
            self._tried_s, asked_ms = clock.monotonic(), clock.wall_ms()
            why = f"no answer within {_ANSWER_S:g} s"
            with clock.move_on_after(_ANSWER_S):
                try:
                    summary = await self._kinesis.describe_stream(self._stream)
                except AwsError as error:
                    why = str(error)
                else:
                    self._answered_s = self._tried_s
                    self._learn(summary.distribution, asked_ms)
                    return
            self._doubt_until_s = clock.monotonic() + _REFUSED_S
            if self._log is not None:
                self._log.warning("record_distribution_unknown", error=why)

    def _learn(self, told: str | None, asked_ms: int) -> None:
        if told == AUTO:
            self._auto_until_s, self._by_key_since_ms = self._clock.monotonic() + _LASTS_S, None
        elif self._by_key_since_ms is None:
            # A stream that was never seen with the setting cannot have been AUTO.
            self._by_key_since_ms = 0.0 if told is None and self._told is None else float(asked_ms)
        if told is not None and told != self._told:
            self._told = told
            if self._log is not None:
                self._log.info("record_distribution", stream=self._stream.name, distribution=told)


class Strays:
    """Of one reader; `Deaggregator` asks it about the aggregates of an answer."""

    def __init__(self, distribution: Distribution, clock: Clock) -> None:
        self._distribution = distribution
        self._clock = clock
        self._received_s = -inf
        self._must_ask = False

    def received(self) -> None:
        self._received_s = self._clock.monotonic()

    def kept(self, record: AnyRecord) -> bool | None:
        self._must_ask |= self._distribution.is_new
        return self._distribution.kept(record, self._received_s)

    def ask(self) -> None:
        self._must_ask = True

    async def settle(self) -> None:
        if self._must_ask:
            self._must_ask = False
            await self._distribution.ask(self._received_s)


async def user_records(
    payload: Payload, hash_range: HashRange | None, distribution: Distribution, clock: Clock
) -> AsyncGenerator[AnyRecord]:
    from kcl_daemon.records.kpl import Deaggregator

    strays = Strays(distribution, clock)
    strays.received()
    for part in payload.expanded(Deaggregator(hash_range, lambda _reason, _number: None, strays=strays)):
        await strays.settle()
        for record in part.records:
            yield record
