"""The port of enhanced fan-out; apart from `ports` only for its size."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import ReadFrom, StreamRef
from kcl_daemon.retrieval.payload import Payload
from kcl_daemon.shards.shard import ChildShard


@dataclass(frozen=True, slots=True)
class ConsumerName:
    """A consumer by its name; names are unique in a stream.

    Args:
        stream_arn: its stream.
        name: of the consumer.
    """

    stream_arn: str
    name: str


class ConsumerStatus(Enum):
    """ConsumerStatus."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True)
class Consumer:
    """What DescribeStreamConsumer and RegisterStreamConsumer tell."""

    arn: str
    status: ConsumerStatus


@dataclass(frozen=True, slots=True)
class Pushed:
    """One event of a subscription.

    Args:
        payload: the records, in order, undecoded.
        continuation: a later subscription after this sequence number misses nothing; None at the end of a closed
            shard.
        millis_behind_latest: None where the service did not tell.
        child_shards: only at the end of a closed shard.
    """

    payload: Payload
    continuation: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]


class Subscription(Protocol):
    """A running SubscribeToShard."""

    async def next(self) -> Pushed | None:
        """The next event; None: the subscription has ended as it should, after about five minutes.

        Nothing more is read than what is asked for, so that who takes events slowly slows down the service, not more.
        May be cancelled; the subscription is to be left then.

        Raises:
            SubscriptionTaken: a later one took over.
            StreamNotFound: stream, shard or consumer were deleted.
            AwsError: it broke off, or nothing came for too long; another one may go on.
        """
        ...


class FanOut(Protocol):
    """Consumers with enhanced fan-out, and their subscriptions.

    Every call may raise Throttled, Unavailable, AccessDenied, InvalidRequest or StreamNotFound.
    """

    async def describe_consumer(self, consumer: ConsumerName | str) -> Consumer | None:
        """DescribeStreamConsumer, by name or by ARN; None where there is none, or no such stream."""
        ...

    async def register_consumer(self, consumer: ConsumerName) -> Consumer:
        """RegisterStreamConsumer.

        Also raises ConsumerLimitReached; Unavailable where there is one of that name already.
        """
        ...

    def subscribe(
        self, stream: StreamRef, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom
    ) -> AbstractAsyncContextManager[Subscription]:
        """SubscribeToShard; the subscription lasts no longer than the context is open.

        Also raises SubscriptionTaken, when the context is entered: the one before it is less than five seconds old.

        Args:
            stream: that of the consumer. The service knows it by the ARN; here it tells which of many is read.
            consumer_arn: who subscribes.
            shard_id: to what.
            read_from: where it begins.
        """
        ...
