"""Write a record processor in Python: subclass `RecordProcessor`, call `run`.

Only the names exported here are public.
"""

from __future__ import annotations

from kcl_client._processor import (
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Batch,
    Checkpointer,
    JsonValue,
    Position,
    Record,
    RecordProcessor,
    ShardStart,
)
from kcl_client._run import EXIT_PROTOCOL_ERROR, EXIT_USER_ERROR, run
from kcl_protocol.errors import (
    CheckpointDependencyFailed,
    CheckpointError,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointShutdown,
    CheckpointThrottled,
    UnknownCheckpointError,
)
from kcl_protocol.messages import RecordSchema, Scalar
from kcl_protocol.sequence import ExtendedSequenceNumber

__all__ = [
    "EXIT_PROTOCOL_ERROR",
    "EXIT_USER_ERROR",
    "AsyncCheckpointer",
    "AsyncRecordProcessor",
    "Batch",
    "CheckpointDependencyFailed",
    "CheckpointError",
    "CheckpointIllegalArgument",
    "CheckpointInvalidState",
    "CheckpointShutdown",
    "CheckpointThrottled",
    "Checkpointer",
    "ExtendedSequenceNumber",
    "JsonValue",
    "Position",
    "Record",
    "RecordProcessor",
    "RecordSchema",
    "Scalar",
    "ShardStart",
    "UnknownCheckpointError",
    "run",
]
