"""The typed settings of enhanced fan-out, and how shards are read at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RetrievalMode(Enum):
    """How records come; the values are KCL's. Its third, DEFAULT, is resolved when the file is read."""

    FANOUT = "FANOUT"
    POLLING = "POLLING"


@dataclass(frozen=True, slots=True)
class FanOutSettings:
    """The consumer that subscriptions belong to.

    Args:
        consumer_arn: use this one and register none.
        consumer_name: find or register one of that name; None: that of the application.
        describe_stream_tries: how often the stream is asked about in one attempt to find the consumer.
        describe_consumer_tries: how often the consumer is, also while it becomes ACTIVE.
        register_tries: how often it is tried to register one.
        retry_backoff_ms: pause between two of these tries.
        fallback_to_polling: poll where no consumer can be had.
    """

    consumer_arn: str | None = None
    consumer_name: str | None = None
    describe_stream_tries: int = 10
    describe_consumer_tries: int = 10
    register_tries: int = 10
    retry_backoff_ms: int = 1_000
    fallback_to_polling: bool = False
