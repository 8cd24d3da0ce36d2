"""What can be set about the Kinesis model. The defaults are the service's own figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast one shard may be read, by all its readers together.

    Args:
        reads_per_s: GetRecords calls in any one second.
        bytes_per_s: a shard that gave more than this within a second gives nothing more until it would have taken
            that long at this rate: five seconds after an answer of 10 MiB.
    """

    reads_per_s: int = 5
    bytes_per_s: int = 2 * MIB


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a `KinesisModel`.

    Args:
        limits: None: reads are never refused.
        iterator_ttl_s: age at which a shard iterator is refused; 0: at once.
        retention_hours: of new streams.
        creating_s: how long a new stream is CREATING.
        answer_bytes_max: data and partition keys in one GetRecords answer; one larger record is given all the same.
        record_bytes_max: data and partition key of one record.
    """

    limits: Limits | None = None
    iterator_ttl_s: float = 300.0
    retention_hours: int = 24
    creating_s: float = 0.0
    answer_bytes_max: int = 10 * MIB
    record_bytes_max: int = 1 * MIB


DEFAULTS: Final = Options()
