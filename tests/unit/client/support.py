"""A daemon made of prepared bytes, for tests that need it to be wrong, late or gone."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client's asynchronous form is asyncio's
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from kcl_client import AsyncCheckpointer, AsyncRecordProcessor, Batch, Checkpointer, RecordProcessor
from kcl_client._asynchronous import AsyncRuntime
from kcl_client._processor import PlainRuntime, complete
from kcl_client._session import Session, SessionOptions
from kcl_protocol.codec import decode_child_line, encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    Initialize,
    ProcessRecords,
    Record,
    Reject,
    Status,
)

INITIALIZE = Initialize("shardId-0", "TRIM_HORIZON", 0)
BATCH = ProcessRecords([Record("YQ==", "a", "1"), Record("Yg==", "b", "2")], 0)
STORED = CheckpointAnswer(None, None, None)

Handler = Callable[[Batch, Checkpointer], Any]


class Wire:
    """What the daemon will have said, chunk by chunk, and what the child said."""

    def __init__(self, *chunks: DaemonMessage | bytes) -> None:
        self._chunks = deque(chunk if isinstance(chunk, bytes) else encode(chunk) for chunk in chunks)
        self.written = b""
        self.before_read: Callable[[], None] = lambda: None

    def read(self) -> bytes:
        self.before_read()
        return self._chunks.popleft() if self._chunks else b""

    def write(self, data: bytes) -> None:
        self.written += data

    @property
    def said(self) -> list[ChildMessage]:
        messages: list[ChildMessage] = []
        for line in self.written.splitlines():
            message = decode_child_line(line)
            if isinstance(message, Status | CheckpointRequest | Reject):
                messages.append(message)
        return messages

    @property
    def statuses(self) -> list[str | None]:
        return [message.response_for for message in self.said if isinstance(message, Status)]


class Handled(RecordProcessor):
    """A processor that is one function."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> Any:
        return self._handler(batch, checkpointer)


class Idle(Handled):
    """A processor that does nothing."""

    def __init__(self) -> None:
        super().__init__(lambda _batch, _checkpointer: None)


def no_wait(_seconds: float) -> None:
    """For sessions that do not look at their waits."""


def serve(
    processor: RecordProcessor,
    wire: Wire,
    *,
    max_line_bytes: int = sys.maxsize,
    takes_frames: bool = False,
    takes_rejects: bool = True,
    sleep: Callable[[float], None] = no_wait,
) -> None:
    """Run a plain processor over the wire to its end."""
    runtime = PlainRuntime(wire.read, wire.write, sleep)
    options = SessionOptions(max_line_bytes, takes_frames, takes_rejects)
    complete(Session(processor, Checkpointer, runtime, options).serve())


def serve_async(processor: AsyncRecordProcessor, wire: Wire) -> None:
    """Run an asynchronous processor over the wire to its end, on a loop of its own."""

    async def read() -> bytes:
        await asyncio.sleep(0)
        return wire.read()

    async def main() -> None:
        runtime = AsyncRuntime(read, wire.write)
        options = SessionOptions(takes_rejects=True)
        await Session(processor, AsyncCheckpointer, runtime, options).serve()

    asyncio.run(main())
