"""The line protocol between the daemon and a record processor, without I/O.

Everything public is exported here. Each side cuts bytes into lines (`LineFramer`), decodes and encodes
messages, and checks each one with a `Conversation`.
"""

from __future__ import annotations

from kcl_protocol.codec import (
    Echo,
    LogLine,
    Stray,
    decode_child_line,
    decode_daemon_line,
    decode_log_line,
    encode,
    encode_log_line,
)
from kcl_protocol.conversation import Conversation, Role, State, state_diagram
from kcl_protocol.errors import (
    CheckpointDependencyFailed,
    CheckpointError,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointShutdown,
    CheckpointThrottled,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    UnknownCheckpointError,
    checkpoint_error,
)
from kcl_protocol.framing import LineFramer, OversizedLine
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Record,
    RecordSchema,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import (
    AT_TIMESTAMP,
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    Sentinel,
)

__all__ = [
    "AT_TIMESTAMP",
    "LATEST",
    "SHARD_END",
    "TRIM_HORIZON",
    "Action",
    "CheckpointAnswer",
    "CheckpointDependencyFailed",
    "CheckpointError",
    "CheckpointIllegalArgument",
    "CheckpointInvalidState",
    "CheckpointRequest",
    "CheckpointShutdown",
    "CheckpointThrottled",
    "ChildMessage",
    "Conversation",
    "DaemonMessage",
    "Echo",
    "ExtendedSequenceNumber",
    "Initialize",
    "LeaseLost",
    "LineFramer",
    "LocalProtocolError",
    "LogLine",
    "Message",
    "OversizedLine",
    "ProcessRecords",
    "ProtocolError",
    "Record",
    "RecordSchema",
    "RemoteProtocolError",
    "Role",
    "Sentinel",
    "ShardEnded",
    "Shutdown",
    "ShutdownRequested",
    "State",
    "Status",
    "Stray",
    "UnknownCheckpointError",
    "checkpoint_error",
    "decode_child_line",
    "decode_daemon_line",
    "decode_log_line",
    "encode",
    "encode_log_line",
    "state_diagram",
]
