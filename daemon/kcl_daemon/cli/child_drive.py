"""One child driven without a stream: records that are there already, checkpoints in memory, a conversation on tape.

Owns the order of what such a child is told. The conversation itself is the daemon's own (`consumer.dialogue`), and so
are the rules of checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final, Literal

import anyio
import orjson

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.consumer.dialect import Dialect
from kcl_daemon.consumer.dialogue import Dialogue
from kcl_daemon.consumer.ending import end_child
from kcl_daemon.errors import ChildError, ChildStartFailed
from kcl_daemon.leases.checkpoint import CheckpointWindow
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Child, Clock, Log
from kcl_protocol.errors import CheckpointError
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    ProcessRecords,
    Record,
)
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

End = Literal["shard-ended", "stopped", "lost"]
EXIT_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Script:
    """What the child is told.

    Args:
        shard_id: of the records.
        batches: the records, batch by batch.
        end: how it ends: the shard has ended, the worker stops, or the lease is lost.
        dialect: which generation of the protocol.
        timeout_s: how long each answer may take.
    """

    shard_id: str
    batches: list[list[Record]]
    end: End
    dialect: Dialect
    timeout_s: float


@dataclass(slots=True)
class Outcome:
    """What came of it.

    Attributes:
        delivered: records in batches that were answered.
        checkpoint: the last position that was stored.
        requests: how many checkpoints were asked for.
        exit_code: of the child; None where it could not be started.
        error: what it did wrong; None: nothing.
    """

    delivered: int = 0
    checkpoint: ExtendedSequenceNumber = TRIM_HORIZON
    requests: int = 0
    exit_code: int | None = None
    error: str | None = None


async def drive(
    command: tuple[str, ...], script: Script, *, clock: Clock, log: Log, tape: BinaryIO | None
) -> Outcome:
    """Start a program, go through the script, end it; what came of it.

    Args:
        command: program and arguments.
        script: what to tell it.
        clock: for time-outs.
        log: what it writes to stderr, and what is odd.
        tape: where the conversation is recorded, as a transcript.
    """
    outcome = Outcome()
    shard_id = ShardId(script.shard_id)
    async with ProcessChildren(command, log, clock) as children:
        try:
            started = await children.start(shard_id)
        except ChildStartFailed as failed:
            outcome.error = failed.plain
            return outcome
        child: Child = started if tape is None else Taped(started, tape)
        run = _Run(child, script, outcome, clock=clock, log=log)
        async with anyio.create_task_group() as beside:
            beside.start_soon(run.dialogue.pump)
            await run.converse()
            await end_child(child, clock=clock, grace_s=EXIT_GRACE_S, ask=outcome.error is None, log=log)
            beside.cancel_scope.cancel()
        outcome.exit_code = await child.wait()
    if outcome.error is None and outcome.exit_code != 0:
        outcome.error = f"it exited with code {outcome.exit_code}"
    return outcome


class _Run:
    """One conversation, and the checkpoints in it."""

    def __init__(self, child: Child, script: Script, outcome: Outcome, *, clock: Clock, log: Log) -> None:
        self._script = script
        self._outcome = outcome
        self._log = log
        self._largest = TRIM_HORIZON
        self._shard_ended = False
        self.dialogue = Dialogue(
            child,
            clock=clock,
            log=log,
            timeout_s=script.timeout_s,
            encode_answer=script.dialect.answer,
            on_checkpoint=self._checkpoint,
            on_silence=lambda: None,
        )

    async def converse(self) -> None:
        """All of it, up to the first fault of the child."""
        try:
            await self._converse()
        except ChildError as error:
            self._outcome.error = str(error)

    async def _converse(self) -> None:
        script, perform = self._script, self.dialogue.perform
        await perform(Initialize(script.shard_id, str(TRIM_HORIZON), 0))
        for batch in script.batches:
            await perform(ProcessRecords(batch, 0), on_its_way=partial(self._deliver, batch[-1]))
            self._outcome.delivered += len(batch)
        if script.end == "shard-ended":
            await perform(script.dialect.shard_ended, on_its_way=self._end_shard)
            if not self._outcome.checkpoint.is_shard_end:
                self._outcome.error = "it answered shardEnded without a checkpoint"
            return
        if script.end == "stopped" and (asks := script.dialect.shutdown_requested) is not None:
            await perform(asks)
        await perform(script.dialect.lease_lost)

    def _deliver(self, last: Record) -> None:
        self._largest = ExtendedSequenceNumber(last.sequence_number, last.sub_sequence_number)

    def _end_shard(self) -> None:
        self._shard_ended = True

    async def _checkpoint(self, request: CheckpointRequest) -> CheckpointAnswer:
        self._outcome.requests += 1
        window = CheckpointWindow(self._outcome.checkpoint, self._largest, self._shard_ended)
        error: str | None = None
        try:
            self._outcome.checkpoint = window.position(request.sequence_number, request.sub_sequence_number)
        except CheckpointError as refused:
            error = refused.wire_name
            self._log.warning("checkpoint_refused", error=error, reason=str(refused))
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, error)


class Taped:
    """A child whose every line is recorded on its way; else the child itself."""

    def __init__(self, child: Child, tape: BinaryIO) -> None:
        self._child = child
        self._tape = tape
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """As the child's."""
        return self._child.stderr_tail

    async def send(self, line: bytes) -> None:
        """Record the line and send it."""
        self._record("daemon", line)
        await self._child.send(line)

    async def receive(self) -> bytes:
        """Record the whole lines that come, and pass them on as they came."""
        piece = await self._child.receive()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                self._record("child", line)
        return piece

    async def close_stdin(self) -> None:
        """As the child does."""
        await self._child.close_stdin()

    async def wait(self) -> int:
        """As the child does."""
        return await self._child.wait()

    def terminate(self) -> None:
        """As the child does."""
        self._child.terminate()

    def kill(self) -> None:
        """As the child does."""
        self._child.kill()

    async def aclose(self) -> None:
        """As the child does."""
        await self._child.aclose()

    def _record(self, speaker: str, line: bytes) -> None:
        entry = {"from": speaker, "line": line.strip().decode(errors="replace")}
        self._tape.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
