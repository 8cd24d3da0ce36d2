"""What can be set about the Kinesis model. The defaults are the service's own figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast one shard may be read, by all its readers together.

    A consumer with fan-out has the bytes for itself.

    Args:
        reads_per_s: GetRecords calls in any one second.
        bytes_per_s: a shard that gave more than this within a second gives nothing more until it would have taken
            that long at this rate: five seconds after an answer of 10 MiB.
    """

    reads_per_s: int = 5
    bytes_per_s: int = 2 * MIB


@dataclass(frozen=True, slots=True)
class FanOut:
    """Settings of consumers with enhanced fan-out.

    Args:
        consumers_max: of one stream.
        creating_s: how long a new consumer is CREATING.
        deleting_s: how long a deregistered one is DELETING; 0: it is gone at once.
        idle_s: an event without records is sent after that long without one.
        lasts_s: a subscription ends by itself after that long.
        protected_s: how soon after a subscription another one for the same consumer and shard is refused; later it
            takes over.
        event_bytes_max: data and partition keys in one event; one larger record is given all the same.
        initial_response: whether a stream of events begins with that frame, as the service's does.
    """

    consumers_max: int = 20
    creating_s: float = 0.0
    deleting_s: float = 0.0
    idle_s: float = 5.0
    lasts_s: float = 300.0
    protected_s: float = 5.0
    event_bytes_max: int = 1 * MIB
    initial_response: bool = True


_FAN_OUT: Final = FanOut()


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a `KinesisModel`.

    Args:
        limits: None: reads are never refused.
        iterator_ttl_s: age at which a shard iterator is refused; 0: at once.
        retention_hours: of new streams.
        creating_s: how long a new stream is CREATING.
        answer_bytes_max: data and partition keys in one GetRecords answer; one larger record is given all the same.
        record_bytes_max: data and partition key of one record, in streams created without a limit of their own.
        fan_out: of consumers and their subscriptions.
    """

    limits: Limits | None = None
    iterator_ttl_s: float = 300.0
    retention_hours: int = 24
    creating_s: float = 0.0
    answer_bytes_max: int = 10 * MIB
    record_bytes_max: int = 1 * MIB
    fan_out: FanOut = _FAN_OUT


DEFAULTS: Final = Options()
