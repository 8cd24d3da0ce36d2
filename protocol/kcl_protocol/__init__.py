"""The line protocol between the daemon and a record processor, without I/O. docs/protocol.md has all of it.

The daemon talks with the process of each shard over its stdin and stdout, in lines of JSON: the protocol of KCL's
MultiLangDaemon, so programs that know only that one work unchanged. What goes beyond it is an extension, used only
where the other side knows it or can ignore it.

The two sides take turns. The daemon sends an action, the child does it and answers with one status; meanwhile it may
ask for checkpoints. A record is done when a checkpoint at or behind it is stored, not when it was delivered. So a child
that crashes, or breaks the rules, loses nothing: the daemon ends it, and the next one gets all records after the
checkpoint, again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from kcl_protocol.conversation import (
    ChildSide,
    Conversation,
    DaemonSide,
    LineFramer,
    OversizedLine,
    Role,
    State,
)
from kcl_protocol.errors import (
    CheckpointDependencyFailed,
    CheckpointError,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointShutdown,
    CheckpointThrottled,
    DeadLetterTooLarge,
    LocalProtocolError,
    NoDeadLetterDestination,
    ProtocolError,
    RecordNotInBatch,
    RejectError,
    RemoteProtocolError,
    UnknownCheckpointError,
    checkpoint_error,
    reject_error,
)
from kcl_protocol.messages import (
    FRAMES_VERSION,
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    FrameHeader,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Record,
    RecordSchema,
    Reject,
    RejectAnswer,
    Scalar,
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

if TYPE_CHECKING:
    from kcl_protocol.frames import Columns, Frame, decode_frame, encode_frame
else:

    def __getattr__(name: str) -> object:
        """Few children take frames."""
        if name not in {"Columns", "Frame", "decode_frame", "encode_frame"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kcl_protocol import frames

        return getattr(frames, name)


__all__ = [
    "AT_TIMESTAMP",
    "FRAMES_VERSION",
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
    "ChildSide",
    "Columns",
    "Conversation",
    "DaemonMessage",
    "DaemonSide",
    "DeadLetterTooLarge",
    "Echo",
    "ExtendedSequenceNumber",
    "Frame",
    "FrameHeader",
    "Initialize",
    "LeaseLost",
    "LineFramer",
    "LocalProtocolError",
    "LogLine",
    "Message",
    "NoDeadLetterDestination",
    "OversizedLine",
    "ProcessRecords",
    "ProtocolError",
    "Record",
    "RecordNotInBatch",
    "RecordSchema",
    "Reject",
    "RejectAnswer",
    "RejectError",
    "RemoteProtocolError",
    "Role",
    "Scalar",
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
    "decode_frame",
    "decode_log_line",
    "encode",
    "encode_frame",
    "encode_log_line",
    "reject_error",
]
