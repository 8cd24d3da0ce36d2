"""What a properties file says about children that fail and records that make them fail.

Pure values, part of `Settings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ChildFailurePolicy(Enum):
    """What a failing child means for the daemon."""

    RESTART = "RESTART"
    EXIT = "EXIT"


class PoisonRecordPolicy(Enum):
    """What is done about a record that makes one child after the other fail."""

    RETRY = "RETRY"
    SKIP = "SKIP"
    DEADLETTER = "DEADLETTER"


class LetterBox(Enum):
    """What kind of place dead letters go to."""

    FILE = "file"
    SQS = "sqs"
    KINESIS = "kinesis"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where dead letters go.

    Args:
        box: what kind of place.
        address: path of a file, URL of a queue, or name or ARN of a stream.
        region_name: where the address tells it.
    """

    box: LetterBox
    address: str
    region_name: str | None = None

    def __str__(self) -> str:
        return f"{self.box.value}:{self.address}"


@dataclass(frozen=True, slots=True)
class FailureSettings:
    """Children that fail.

    Args:
        policy: whether a failed child is replaced, or the daemon ends.
        failures_most: after so many failures in a row without progress the lease is released; 0: it never is.
        degraded_ms: for so long this worker does not begin again with a shard that it released so.
        poison: what is done about a record that makes children fail.
        poison_tries: so many children in a row must fail at one record alone before it is set aside.
        dead_letters: where records that were set aside go.
    """

    policy: ChildFailurePolicy = ChildFailurePolicy.RESTART
    failures_most: int = 10
    degraded_ms: int = 60_000
    poison: PoisonRecordPolicy = PoisonRecordPolicy.RETRY
    poison_tries: int = 3
    dead_letters: Destination | None = None
