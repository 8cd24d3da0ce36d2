"""The messages of the line protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """From the schema registry. `version_id` is a UUID, `data_format` is `AVRO`, `JSON` or `PROTOBUF`."""

    name: str
    version_id: str
    data_format: str
    definition: str


@dataclass(frozen=True, slots=True)
class Record:
    """One user record as the child sees it.

    Args:
        data: base64 with padding, without line breaks.
        partition_key: None if the producer gave none, which streams with RecordDistributionStrategy AUTO allow.
        approximate_arrival_timestamp: epoch milliseconds.
        sub_sequence_number: index inside a KPL aggregate, 0 for a plain record.
        schema: an extension, sent only with a schema registry.
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

    `stream_name` and `stream_arn` are an extension, sent only if one daemon reads many streams. `extra` has all other scalar
    fields; the daemon sends `lane` and `lanes` to the children of a shard with several.
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
    """`complete_ms`, an extension for relays: all that arrived before it has been sent, with this."""

    action: ClassVar[str] = "processRecords"
    records: Sequence[Record]
    millis_behind_latest: int | None
    complete_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Stands for `processRecords`: the records follow as so many bytes (`frames`).

    `keyless`: an empty partition key in it stands for none.
    """

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
    """Every record has been delivered: the child must checkpoint now.

    `child_shards` is an extension, sent only to a lander of the landing log.
    """

    action: ClassVar[str] = "shardEnded"
    child_shards: tuple[str, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """Before a shutdown or a handoff: the child's last chance to checkpoint."""

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
    """Repeats the request. `error` is None once the record is a dead letter; `message` says more."""

    action: ClassVar[str] = "reject"
    sequence_number: str | None
    sub_sequence_number: int | None
    error: str | None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """All but `response_for` are extensions.

    Args:
        frames: for `initialize`, the version of frames that the child takes.
        pause_ms: no records before so many milliseconds have passed.
        sequence_number, sub_sequence_number: for `initialize`, the last record that the child has stored by itself.
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
    """An extension: the child cannot process this record of its batch, which is done once it is a dead letter."""

    action: ClassVar[str] = "reject"
    sequence_number: str | None = None
    sub_sequence_number: int | None = None
    reason: str = ""


Action = Initialize | ProcessRecords | LeaseLost | ShardEnded | ShutdownRequested | Shutdown
DaemonMessage = Action | CheckpointAnswer | RejectAnswer
ChildMessage = Status | CheckpointRequest | Reject
Message = DaemonMessage | ChildMessage
