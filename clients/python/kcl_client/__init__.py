"""Write a record processor in Python: subclass `RecordProcessor`, call `run`.

Only the names exported here are public.
"""

from __future__ import annotations

import sys

# `python -m` of a module in here is a child of the daemon. Only to import it, in a test, is possible anywhere.
if sys.platform == "win32" and sys.argv[:1] == ["-m"]:
    sys.stderr.write("kcl-daemon runs on Linux and macOS; on Windows use WSL\n")
    raise SystemExit(2)

from kcl_client._processor import (
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Batch,
    Checkpointer,
    ItemFailures,
    JsonValue,
    Position,
    Record,
    RecordProcessor,
    RejectRecord,
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
    DeadLetterTooLarge,
    NoDeadLetterDestination,
    RecordNotInBatch,
    RejectError,
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
    "DeadLetterTooLarge",
    "ExtendedSequenceNumber",
    "ItemFailures",
    "JsonValue",
    "NoDeadLetterDestination",
    "Position",
    "Record",
    "RecordNotInBatch",
    "RecordProcessor",
    "RecordSchema",
    "RejectError",
    "RejectRecord",
    "Scalar",
    "ShardStart",
    "UnknownCheckpointError",
    "run",
]
