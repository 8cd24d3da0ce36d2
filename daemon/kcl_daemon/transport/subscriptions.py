"""The port `FanOut`: subscriptions over this transport's streams, consumers by the SDK.

Owns the request and the errors inside a stream. Knows nothing of when to subscribe again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Protocol

from kcl_daemon.aws.codes import service_error
from kcl_daemon.errors import AwsError, StreamNotFound, SubscriptionTaken, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import ReadFrom, StreamRef
from kcl_daemon.ports_fan_out import Consumer, ConsumerName, Pushed, Subscription
from kcl_daemon.transport.caller import Caller, Stream
from kcl_daemon.transport.events import EVENT, OPERATION, pushed
from kcl_daemon.transport.frames import Event, Failure, FrameReader, MalformedFrame
from kcl_daemon.transport.refusals import Refusal

# Something comes every five seconds or so, were it only an event without records.
_SILENCE_S: Final = 30.0
_IN_USE: Final = "ResourceInUseException"


class Consumers(Protocol):
    """The part of the port that the SDK does."""

    async def describe_consumer(self, consumer: ConsumerName | str) -> Consumer | None:
        """As the port says."""
        ...

    async def register_consumer(self, consumer: ConsumerName) -> Consumer:
        """As the port says."""
        ...


class StreamedSubscription:
    """One subscription; its stream is open for as long as the context that it came from.

    Args:
        stream: the answer.
    """

    def __init__(self, stream: Stream) -> None:
        self._pieces = stream.pieces
        self._reader = FrameReader()
        self._messages: deque[Event | Failure] = deque()

    async def next(self) -> Pushed | None:
        """As the port says."""
        while True:
            while not self._messages:
                if not await self._read():
                    return None
            match self._messages.popleft():
                case Failure(code, message):
                    raise _error(code, message)
                case Event(kind, payload):
                    if kind == EVENT:
                        return pushed(payload)

    async def _read(self) -> bool:
        """One piece more; False at the end."""
        try:
            piece = await anext(self._pieces, None)
            if piece is None:
                self._reader.close()
                return False
            self._messages.extend(self._reader.feed(piece))
        except MalformedFrame as broken:
            raise Unavailable(str(broken), operation=OPERATION) from broken
        return True


class StreamedFanOut:
    """Enhanced fan-out of Kinesis Data Streams.

    Args:
        caller: for subscriptions.
        consumers: for the rest.
    """

    def __init__(self, caller: Caller, consumers: Consumers) -> None:
        self._caller = caller
        self._consumers = consumers

    async def describe_consumer(self, consumer: ConsumerName | str) -> Consumer | None:
        """As the port says."""
        return await self._consumers.describe_consumer(consumer)

    async def register_consumer(self, consumer: ConsumerName) -> Consumer:
        """As the port says."""
        return await self._consumers.register_consumer(consumer)

    @asynccontextmanager
    async def subscribe(
        self,
        stream: StreamRef,  # noqa: ARG002 - of the port
        consumer_arn: str,
        shard_id: ShardId,
        read_from: ReadFrom,
    ) -> AsyncGenerator[Subscription, None]:
        """As the port says."""
        position: dict[str, object] = {"Type": read_from.kind.value}
        if read_from.sequence_number is not None:
            position["SequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            position["Timestamp"] = read_from.timestamp_s
        request = {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": position}
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self._caller.open_stream(OPERATION, request, silence_s=_SILENCE_S)
                )
            except Unavailable as error:
                cause = error.__cause__
                if isinstance(cause, Refusal) and cause.code == _IN_USE:
                    raise SubscriptionTaken(str(error)) from error
                raise
            yield StreamedSubscription(answer)


def _error(code: str, message: str) -> AwsError:
    if code == _IN_USE:
        return SubscriptionTaken(f"{code}: {message}", operation=OPERATION)
    return service_error(code, message, operation=OPERATION, not_found=StreamNotFound)
