from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

FRAMES_VERSION: Final = 1

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class RecordSchema:
    name: str
    version_id: str
    data_format: str
    definition: str


@dataclass(frozen=True, slots=True)
class Record:
    """`data` is base64 with padding, without line breaks; the arrival in epoch milliseconds.

    `sub_sequence_number` is the index inside a KPL aggregate. `partition_key` is None if the producer gave none, which
    streams with RecordDistributionStrategy AUTO allow.
    """

    data: str
    partition_key: str | None
    sequence_number: str
    approximate_arrival_timestamp: int | None = None
    sub_sequence_number: int = 0
    schema: RecordSchema | None = None


@dataclass(frozen=True, slots=True)
class Initialize:
    """The position is the lease's checkpoint, or a sentinel.

    Stream and ARN are sent only if one daemon reads many. `extra` has all other scalar fields.
    """

    action: ClassVar[str] = "initialize"
    shard_id: str
    sequence_number: str | None
    sub_sequence_number: int | None
    stream_name: str | None = None
    stream_arn: str | None = None
    extra: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar], compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """`complete_ms`: all that arrived before it has been sent, with this."""

    action: ClassVar[str] = "processRecords"
    records: Sequence[Record]
    millis_behind_latest: int | None
    complete_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Stands for `processRecords`. `keyless`: an empty partition key stands for none."""

    size_bytes: int
    count: int
    millis_behind_latest: int | None
    schemas: tuple[RecordSchema, ...] = ()
    keyless: bool = False
    complete_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    action: ClassVar[str] = "leaseLost"


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """The child must checkpoint now. Only a lander gets `child_shards`."""

    action: ClassVar[str] = "shardEnded"
    child_shards: tuple[str, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    action: ClassVar[str] = "shutdownRequested"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Both ends before KCL 2.0. `reason` is `TERMINATE` or `ZOMBIE`."""

    action: ClassVar[str] = "shutdown"
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """Repeats the request; `error` is None if the checkpoint was stored."""

    action: ClassVar[str] = "checkpoint"
    sequence_number: str | None
    sub_sequence_number: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RejectAnswer:
    """Repeats the request. `error` is None once the record is a dead letter."""

    action: ClassVar[str] = "reject"
    sequence_number: str | None
    sub_sequence_number: int | None
    error: str | None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """All but `response_for` are extensions.

    `frames`, a version, and the position of the last record that the child has stored by itself are for `initialize`.
    `pause_ms`: no records before so long.
    """

    action: ClassVar[str] = "status"
    response_for: str | None
    frames: int | None = field(default=None, repr=False)
    pause_ms: int | None = field(default=None, repr=False)
    sequence_number: str | None = field(default=None, repr=False)
    sub_sequence_number: int | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """No sequence number means everything delivered so far."""

    action: ClassVar[str] = "checkpoint"
    sequence_number: str | None = None
    sub_sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    action: ClassVar[str] = "reject"
    sequence_number: str | None = None
    sub_sequence_number: int | None = None
    reason: str = ""


Action = Initialize | ProcessRecords | LeaseLost | ShardEnded | ShutdownRequested | Shutdown
DaemonMessage = Action | CheckpointAnswer | RejectAnswer
ChildMessage = Status | CheckpointRequest | Reject
Message = DaemonMessage | ChildMessage
