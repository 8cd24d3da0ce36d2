"""Write a record processor in Python: subclass `RecordProcessor`, and give an instance to `run`.

Only the names exported here are public.

A process has one shard. The daemon starts it, holds the lease, reads Kinesis, and sends batches over stdin. Each record
is delivered at least once, in the order of its shard. A checkpoint says that all up to a position is done; the next
process begins after it. An exception in the processor ends only this process: another one gets the records after the
last checkpoint again. Who must not see a record twice stores output and position together, with `kcl_client.once`.

How it works: `_session` does the daemon's actions by calling the methods of `_processor`, and knows when a checkpoint
is possible. It is written in coroutines: a plain processor runs them over a runtime that blocks, an async one over
asyncio (`_asynchronous`). `_concurrent` works on many records at once and stores only what lies below the first
unfinished one (`_window`); `_timed` stores by the clock between two batches. `_run` owns the pipes and exit codes,
`_preload` forks processes from a template.

`_function`, `_decoding` and `_target` make a processor of a user's function, for `python -m kcl_client.run` and `app`.
`aws_lambda` runs handlers of AWS Lambda, `testing` a processor without a daemon.
"""

from __future__ import annotations

import sys

# Started by `python -m` it is a child of the daemon; importing works anywhere.
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
