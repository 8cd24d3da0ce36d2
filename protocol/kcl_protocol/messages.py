"""Every message of the line protocol as a typed value, both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The schema that a record was written with; four fields of the record on the wire.

    `version_id` is a UUID, `data_format` is `AVRO`, `JSON` or `PROTOBUF`, `definition` is the schema's text.
    """

    name: str
    version_id: str
    data_format: str
    definition: str


@dataclass(frozen=True, slots=True)
class Record:
    """One user record as the child sees it.

    Args:
        data: standard base64 with padding, without line breaks; may be empty.
        sequence_number: decimal digits.
        approximate_arrival_timestamp: epoch milliseconds, or None if unknown.
        sub_sequence_number: index inside a KPL aggregate, 0 for a plain record.
        schema: only with a schema registry (`schemaRegistry`); an extension, otherwise not sent.
    """

    data: str
    partition_key: str
    sequence_number: str
    approximate_arrival_timestamp: int | None = None
    sub_sequence_number: int = 0
    schema: RecordSchema | None = None


@dataclass(frozen=True, slots=True)
class Initialize:
    """First message to a child: its shard and where it starts (the lease's checkpoint, or a sentinel).

    `stream_name` and `stream_arn` are an extension, sent only if one daemon reads many streams.
    """

    action: ClassVar[str] = "initialize"
    shard_id: str
    sequence_number: str | None
    sub_sequence_number: int | None
    stream_name: str | None = None
    stream_arn: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    action: ClassVar[str] = "processRecords"
    records: Sequence[Record]
    millis_behind_latest: int | None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker has the lease: no checkpoint is possible any more."""

    action: ClassVar[str] = "leaseLost"


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """Every record of the shard has been delivered: the child must checkpoint now."""

    action: ClassVar[str] = "shardEnded"


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The worker stops or hands the lease over: the child's last chance to checkpoint."""

    action: ClassVar[str] = "shutdownRequested"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Both ends before KCL 2.0, to read old transcripts; not sent by default.

    `reason` is `TERMINATE` or `ZOMBIE`.
    """

    action: ClassVar[str] = "shutdown"
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """The daemon's answer; repeats the request. `error` is None if the checkpoint was stored."""

    action: ClassVar[str] = "checkpoint"
    sequence_number: str | None
    sub_sequence_number: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """The child has finished an action; exactly one for each."""

    action: ClassVar[str] = "status"
    response_for: str | None


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """The child asks for a checkpoint; no sequence number means everything delivered so far."""

    action: ClassVar[str] = "checkpoint"
    sequence_number: str | None = None
    sub_sequence_number: int | None = None


Action = Initialize | ProcessRecords | LeaseLost | ShardEnded | ShutdownRequested | Shutdown
DaemonMessage = Action | CheckpointAnswer
ChildMessage = Status | CheckpointRequest
Message = DaemonMessage | ChildMessage
