"""Runs a record processor without a daemon: `drive` hands it records and reports what it did.

The processor is run by the same code as in production, over the same bytes; only the daemon is one in memory
(`_memory_daemon`), and waits are noted instead of waited. Ships with the client so that users can test with it.
"""

from __future__ import annotations

import sys
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kcl_client._memory_daemon import MemoryDaemon
from kcl_client.callbacks import AsyncCallbacks, Callbacks, PlainCallbacks
from kcl_client.checkpointer import AsyncCheckpointer, Checkpointer
from kcl_client.plain import PlainRuntime, complete
from kcl_client.processor import AsyncRecordProcessor, RecordProcessor
from kcl_client.runner import EXIT_USER_ERROR
from kcl_client.session import ProcessorFailed, Session
from kcl_protocol.errors import CheckpointError
from kcl_protocol.messages import (
    Action,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Record,
    RecordSchema,
    ShardEnded,
    ShutdownRequested,
)
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

__all__ = ["CheckpointOutcome", "Ending", "Payload", "Report", "drive", "make_record"]

Payload = bytes | str | Record
CheckpointOutcome = type[CheckpointError] | str | None

# Of the size of real ones: sequence numbers do not fit in 64 bits.
_FIRST_SEQUENCE_NUMBER: Final = 49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_001


class Ending(Enum):
    """What comes after the last record, before the daemon closes the connection."""

    SHARD_ENDED = "shard ended"
    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"
    CLOSED = "closed"

    @property
    def messages(self) -> tuple[Action, ...]:
        """What the daemon says before it closes the connection."""
        match self:
            case Ending.SHARD_ENDED:
                return (ShardEnded(),)
            case Ending.LEASE_LOST:
                return (LeaseLost(),)
            case Ending.SHUTDOWN:
                return (ShutdownRequested(), LeaseLost())
            case Ending.CLOSED:
                return ()


@dataclass(frozen=True, slots=True)
class Report:
    """What a driven processor did.

    Args:
        messages: everything said, by both sides, in order.
        checkpoints: the positions stored, in order; the end of the shard as SHARD_END.
        refusals: wire names of the errors that checkpoints were answered with, in order.
        backoffs_s: the waits before checkpoints were tried again, in seconds; they were not waited.
        exception: what left a method of the processor and ended the run, else None.
        exit_code: what the process would have ended with.
    """

    messages: tuple[Message, ...]
    checkpoints: tuple[ExtendedSequenceNumber, ...]
    refusals: tuple[str, ...]
    backoffs_s: tuple[float, ...]
    exception: BaseException | None
    exit_code: int

    @property
    def last_checkpoint(self) -> ExtendedSequenceNumber | None:
        """Where the next process of this shard would start; None where nothing was stored."""
        return self.checkpoints[-1] if self.checkpoints else None


def make_record(
    data: bytes | str,
    *,
    sequence_number: str = str(_FIRST_SEQUENCE_NUMBER),
    sub_sequence_number: int = 0,
    partition_key: str = "key",
    arrival_ms: int | None = None,
    schema: RecordSchema | None = None,
) -> Record:
    """A record for `drive` where more than the payload matters; text becomes UTF-8."""
    payload = data.encode() if isinstance(data, str) else data
    return Record(
        data=b2a_base64(payload, newline=False).decode("ascii"),
        partition_key=partition_key,
        sequence_number=sequence_number,
        approximate_arrival_timestamp=arrival_ms,
        sub_sequence_number=sub_sequence_number,
        schema=schema,
    )


def drive(
    processor: RecordProcessor | AsyncRecordProcessor,
    records: Iterable[Payload],
    *,
    shard_id: str = "shardId-000000000000",
    start: ExtendedSequenceNumber = TRIM_HORIZON,
    batch_size: int = 100,
    ending: Ending = Ending.SHARD_ENDED,
    checkpoint_errors: Sequence[CheckpointOutcome] = (),
) -> Report:
    """Run a processor over records, from `initialize` to the end of the connection.

    Args:
        processor: an instance of your class.
        records: payloads, which get rising sequence numbers, or records of `make_record` as they are.
        shard_id: told to `initialize`.
        start: told to `initialize` as the last checkpoint.
        batch_size: records in each `process_records`, the last may have fewer.
        ending: what happens after the last batch.
        checkpoint_errors: how the first, second, ... checkpoint is answered: an error or its wire name, None for
            storing it. Those after the list are stored where the position is a legal one.

    Raises:
        ValueError: `batch_size` is not positive.
    """
    actions = _actions(shard_id, start, list(records), batch_size, ending)
    daemon = MemoryDaemon(actions, [_wire_name(outcome) for outcome in checkpoint_errors], start)
    backoffs_s: list[float] = []
    if isinstance(processor, AsyncRecordProcessor):
        exit_code, exception = _run_async(processor, daemon, backoffs_s)
    else:
        runtime = PlainRuntime(daemon.read, daemon.write, backoffs_s.append)
        session = Session(runtime, max_line_bytes=sys.maxsize)
        callbacks = PlainCallbacks(processor, Checkpointer(session.store))
        exit_code, exception = complete(_serve(session, callbacks))
    return Report(
        messages=tuple(daemon.messages),
        checkpoints=tuple(daemon.checkpoints),
        refusals=tuple(daemon.refusals),
        backoffs_s=tuple(backoffs_s),
        exception=exception,
        exit_code=exit_code,
    )


def _run_async(
    processor: AsyncRecordProcessor, daemon: MemoryDaemon, backoffs_s: list[float]
) -> tuple[int, BaseException | None]:
    from kcl_client import asynchronous  # noqa: PLC0415 - asyncio costs more start-up time than all the rest

    async def read() -> bytes:
        await asynchronous.pause()
        return daemon.read()

    async def note(seconds: float) -> None:
        backoffs_s.append(seconds)
        await asynchronous.pause()

    async def main() -> tuple[int, BaseException | None]:
        session = Session(asynchronous.AsyncRuntime(read, daemon.write, note), max_line_bytes=sys.maxsize)
        return await _serve(session, AsyncCallbacks(processor, AsyncCheckpointer(session.store)))

    return asynchronous.run_until_complete(main())


async def _serve(session: Session, callbacks: Callbacks) -> tuple[int, BaseException | None]:
    try:
        await session.serve(callbacks)
    except ProcessorFailed as failure:
        return EXIT_USER_ERROR, failure.__cause__
    except SystemExit as wish:
        code = 1 if isinstance(wish.code, str) else wish.code or 0
        return code, wish
    return 0, None


def _actions(
    shard_id: str, start: ExtendedSequenceNumber, records: Sequence[Payload], batch_size: int, ending: Ending
) -> list[Action]:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1: {batch_size}")
    wire = [
        record
        if isinstance(record, Record)
        else make_record(record, sequence_number=str(_FIRST_SEQUENCE_NUMBER + index))
        for index, record in enumerate(records)
    ]
    return [
        Initialize(shard_id, str(start.sequence_number), start.sub_sequence_number),
        *(ProcessRecords(wire[first : first + batch_size], 0) for first in range(0, len(wire), batch_size)),
        *ending.messages,
    ]


def _wire_name(outcome: CheckpointOutcome) -> str | None:
    return outcome if outcome is None or isinstance(outcome, str) else outcome.wire_name
