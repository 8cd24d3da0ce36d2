"""Every message of the line protocol as a typed value, both directions.

Owns the vocabulary. Knows nothing of JSON (`codec`), lines (`framing`) or who may speak when (`conversation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The schema that a record was written with, as its registry knows it; four fields of the record on the wire.

    Args:
        name: of the schema.
        version_id: of its version, a UUID.
        data_format: `AVRO`, `JSON` or `PROTOBUF`.
        definition: its text.
    """

    name: str
    version_id: str
    data_format: str
    definition: str


@dataclass(frozen=True, slots=True)
class Record:
    """One user record as the child sees it.

    Args:
        data: standard base64 with padding and without line breaks; empty for an empty payload.
        partition_key: as the producer gave it.
        sequence_number: decimal digits.
        approximate_arrival_timestamp: epoch milliseconds, or None where the service gave none.
        sub_sequence_number: index inside a KPL aggregate, 0 for a plain record.
        schema: only where the daemon asks a schema registry (`schemaRegistry`); an extension, which is not sent otherwise.
    """

    data: str
    partition_key: str
    sequence_number: str
    approximate_arrival_timestamp: int | None = None
    sub_sequence_number: int = 0
    schema: RecordSchema | None = None


@dataclass(frozen=True, slots=True)
class Initialize:
    """First message to a child: its shard and where it will start (the lease's checkpoint, or a sentinel).

    Args:
        shard_id: its shard.
        sequence_number: of the checkpoint.
        sub_sequence_number: of the checkpoint.
        stream_name: its stream, only where one daemon reads many; an extension, which is not sent otherwise.
        stream_arn: the same.
    """

    action: ClassVar[str] = "initialize"
    shard_id: str
    sequence_number: str | None
    sub_sequence_number: int | None
    stream_name: str | None = None
    stream_arn: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """A batch; `millis_behind_latest` is what Kinesis told with it."""

    action: ClassVar[str] = "processRecords"
    records: Sequence[Record]
    millis_behind_latest: int | None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease has gone to another worker: no checkpoint is possible any more."""

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
    """Both ends of life before KCL 2.0; known so that old transcripts can be read, never sent by default.

    Args:
        reason: `TERMINATE` (shard ended) or `ZOMBIE` (lease lost).
    """

    action: ClassVar[str] = "shutdown"
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """The daemon's answer to a `CheckpointRequest`; echoes the request, `error` is None where it was stored."""

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
