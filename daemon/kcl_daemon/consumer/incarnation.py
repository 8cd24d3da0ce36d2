"""One child process for one lease, from its start to its end (KCL: MultiLangShardRecordProcessor, ShardConsumer)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import anyio
from anyio.abc import TaskGroup

from kcl_daemon.consumer.checkpointer import Checkpointer
from kcl_daemon.consumer.dialect import Dialect
from kcl_daemon.consumer.dialogue import Dialogue
from kcl_daemon.consumer.ending import end_child
from kcl_daemon.consumer.interrupts import Call, Interrupts
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.consumer.scrutiny import Scrutiny
from kcl_daemon.consumer.shard_end import create_child_leases
from kcl_daemon.consumer.tally import Tally
from kcl_daemon.coordination.keeper import HeldLease
from kcl_daemon.errors import ChildBrokeProtocol, ChildError, ChildStartFailed, ChildTimedOut, LeaseLost
from kcl_daemon.ports import Child, Log, StreamRef
from kcl_daemon.progress.cause import Cause
from kcl_daemon.retrieval.batch import Batch, EndOfShard
from kcl_daemon.retrieval.reader import Reader
from kcl_daemon.retrieval.source import Source
from kcl_daemon.retrieval.start import StartMemory
from kcl_protocol.messages import Initialize


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole shard has been processed and SHARD_END is stored."""


@dataclass(frozen=True, slots=True)
class CalledAway:
    """The worker stops, the lease moves or is lost; the child has been told as far as there was time."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The child did something it must not; another one is to go on from the checkpoint.

    Args:
        error: what it did.
        progressed: whether it had stored a new checkpoint before.
        refused: whether a checkpoint of its last action was refused for no fault of its own.
        stderr: its last lines, oldest first.
    """

    error: ChildError
    progressed: bool
    refused: bool = False
    stderr: tuple[str, ...] = ()


Outcome = Finished | CalledAway | Failed


class NoFinalCheckpoint(ChildError):
    """Raised when the child answered shardEnded without a checkpoint: the shard cannot be called finished."""

    def __str__(self) -> str:
        return "child answered shardEnded without a checkpoint; checkpoint in shardEnded, best without a sequence number"


class Incarnation:
    """Runs one child. Used once."""

    def __init__(
        self,
        *,
        parts: ConsumerParts,
        held: HeldLease,
        interrupts: Interrupts,
        memory: StartMemory,
        log: Log,
        scrutiny: Scrutiny | None = None,
    ) -> None:
        self._parts = parts
        self._held = held
        self._progress = held.progress
        self._interrupts = interrupts
        self._memory = memory
        self._scrutiny = scrutiny
        self._log = log
        self._dialect = Dialect(parts.settings.child.protocol)
        self._stream = parts.streams.of(held.lease)
        self._checkpointer = Checkpointer(held=held, keeper=parts.keeper, log=log)

    async def run(self) -> Outcome:
        """From the start of the process until it has ended; never raises for what the child or AWS does.

        Cancelled: the child is killed, nothing is written.
        """
        self._progress.starts()
        if self._scrutiny is not None:
            self._scrutiny.begin()
        try:
            child = await self._parts.children.start(self._held.lease.shard_id, self._told_stream)
        except ChildStartFailed as failed:
            return Failed(failed, progressed=False)
        self._log = self._log.bind(pid=child.pid)
        self._parts.beginnings.started(self._held.key)
        self._log.info("child_started", checkpoint=str(self._held.lease.checkpoint))
        try:
            outcome = await self._run(child)
        finally:
            await child.aclose()
            self._progress.child_ended()
        return replace(outcome, stderr=child.stderr_tail) if isinstance(outcome, Failed) else outcome

    @property
    def _told_stream(self) -> StreamRef | None:
        """What the child is told of its stream; nothing where there is one only, as ever."""
        return self._stream.ref if self._stream.ref.identity is not None else None

    async def _run(self, child: Child) -> Outcome:
        settings = self._parts.settings.child
        dialogue = Dialogue(
            child,
            clock=self._parts.clock,
            log=self._log,
            timeout_s=settings.timeout_s,
            warn_after_s=None if settings.warn_after_ms is None else settings.warn_after_ms / 1000,
            hears_logs=settings.log_messages,
            encode_answer=self._dialect.answer,
            on_checkpoint=self._checkpointer.answer,
            on_silence=self._interrupts.stir,
            tally=Tally(self._parts.meters, self._parts.clock, self._held.lease),
        )
        reader = self._reader()
        self._progress.reading(reader)
        outcome: Outcome = CalledAway()
        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(dialogue.pump)
                beside.start_soon(reader.run)
                outcome = await self._converse_and_end(child, dialogue, reader, beside)
                beside.cancel_scope.cancel()
        finally:
            self._progress.reading_ended()
            reader.close()
        return outcome

    async def _converse_and_end(
        self, child: Child, dialogue: Dialogue, reader: Reader, beside: TaskGroup
    ) -> Outcome:
        """The conversation, for as long as it may take, and the child's end."""
        outcome: Outcome = CalledAway()
        with anyio.CancelScope() as conversation:
            self._progress.child_started(child, conversation.cancel)
            beside.start_soon(self._limit, conversation)
            outcome = await self._converse(dialogue, reader)
        if conversation.cancelled_caught and self._progress.timed_out is not None:
            outcome = self._failed(self._progress.timed_out)
        elif conversation.cancelled_caught:
            self._log.warning(
                "child_overran",
                advice="it did not finish within shutdownGraceMillis, or gracefulLeaseHandoffTimeoutMillis at "
                "a handoff; it is stopped now",
            )
        elif isinstance(outcome, Failed) and isinstance(
            outcome.error, (ChildBrokeProtocol, NoFinalCheckpoint)
        ):
            # Now, and not when it has ended at last: what it does about the end of its stdin is another matter.
            self._log.warning("child_broke_protocol", error=str(outcome.error))
        stuck = conversation.cancelled_caught or (
            isinstance(outcome, Failed) and isinstance(outcome.error, ChildTimedOut)
        )
        await end_child(
            child,
            clock=self._parts.clock,
            grace_s=self._parts.settings.child.exit_grace_ms / 1000,
            ask=not stuck,
            log=self._log,
        )
        return outcome

    def _reader(self) -> Reader:
        parts, lease = self._parts, self._held.lease
        source = Source(
            stream=self._stream.ref,
            shard_id=lease.shard_id,
            checkpoint=lease.checkpoint,
            timestamp_s=self._stream.position.timestamp_s,
            memory=self._memory,
            heard=self._progress.heard,
            stream_is_there=self._stream.watch.is_there,
        )
        return parts.readers.reader(source, hash_range=lease.hash_range, log=self._log)

    async def _limit(self, conversation: anyio.CancelScope) -> None:
        """Once called away the child has so long, and not longer."""
        await self._interrupts.until_called()
        handed_over = self._held.next_owner is not None and not self._held.announced
        grace_s = self._parts.settings.child.shutdown_grace_ms / 1000
        await self._parts.clock.sleep(max(grace_s, self._parts.timings.handoff_s) if handed_over else grace_s)
        conversation.cancel()

    async def _converse(self, dialogue: Dialogue, reader: Reader) -> Outcome:
        start, told = self._held.lease.checkpoint, self._told_stream
        try:
            await dialogue.perform(
                Initialize(
                    self._held.lease.shard_id,
                    start.sequence_number,
                    start.sub_sequence_number,
                    stream_name=None if told is None else told.name,
                    stream_arn=None if told is None else told.arn,
                )
            )
            self._parts.beginnings.begun()
            end = await self._deliver(dialogue, reader)
            outcome = None if end is None else await self._end_shard(dialogue, end)
            if outcome is not None:
                return outcome
            await self._take_leave(dialogue)
        except ChildError as error:
            return self._failed(error)
        return CalledAway()

    def _failed(self, error: ChildError) -> Finished | Failed:
        """Once SHARD_END is stored there is nothing left to do for another child, however this one ends."""
        if self._held.lease.is_finished:
            self._log.warning("child_failed", error=str(error), advice="the shard was finished already")
            return Finished()
        return Failed(error, self._checkpointer.advanced, refused=self._checkpointer.refused)

    async def _deliver(self, dialogue: Dialogue, reader: Reader) -> EndOfShard | None:
        """Batch by batch until the shard ends, or until called away (None)."""
        while True:
            self._progress.awaits_records()
            item = await self._interrupts.interruptible(reader.next)
            if dialogue.silent:
                if isinstance(item, Batch):
                    item.release()  # it came in the same moment, and will be read again
                raise await dialogue.exited("idle")
            match item:
                case Batch():
                    await self._process(dialogue, item)
                case EndOfShard():
                    return item
                case None:
                    if self._interrupts.call is not Call.NONE:
                        return None

    async def _process(self, dialogue: Dialogue, batch: Batch) -> None:
        last = batch.last

        def on_its_way() -> None:
            if last is not None:
                self._checkpointer.delivering(last)

        try:
            if last is not None:
                self._held.throughput.record(batch.data_bytes, now_s=self._parts.clock.monotonic())
                if self._scrutiny is not None:
                    await self._scrutiny.deliver(
                        batch,
                        dialogue,
                        self._checkpointer,
                        may_go_on=lambda: self._interrupts.call is Call.NONE,
                    )
                    return
            elif not self._parts.settings.child.call_for_empty:
                return
            self._progress.works("processRecords", arrived_s=batch.arrived_s)
            self._checkpointer.takes_up()
            await dialogue.deliver(batch, on_its_way=on_its_way)
            self._progress.done(last, batch.count, batch.data_bytes)
        finally:
            batch.release()

    async def _end_shard(self, dialogue: Dialogue, end: EndOfShard) -> Finished | CalledAway | None:
        """What became of the end; None: called away before the child was told of it."""
        self._progress.read_to_end()
        self._progress.waits(Cause.DYNAMODB, "leases of child shards are being created")
        while await self._interrupts.interruptible(lambda: self._create_child_leases(end)) is None:
            if dialogue.silent:
                raise await dialogue.exited("idle")
            if self._interrupts.call is not Call.NONE:
                return None
        self._progress.shard_ended()
        await dialogue.perform(self._dialect.shard_ended, on_its_way=self._checkpointer.shard_ended)
        if self._held.lease.is_finished:
            return Finished()
        if self._held.lost is not None:
            return CalledAway()  # nothing may follow shardEnded, not even leaseLost
        raise NoFinalCheckpoint

    async def _create_child_leases(self, end: EndOfShard) -> bool | None:
        """True when it is done, None where the lease was lost meanwhile (which the interrupts know too)."""
        try:
            await create_child_leases(self._parts, self._held, end.children, self._log)
        except LeaseLost:
            return None
        return True

    async def _take_leave(self, dialogue: Dialogue) -> None:
        """The child's last words, and the lease on to the next (KCL: ShutdownNotificationTask, then leaseLost)."""
        if self._interrupts.call is Call.STOP and self._held.lost is None:
            if (asks_to_stop := self._dialect.shutdown_requested) is not None:
                self._progress.works("shutdownRequested")
                await dialogue.perform(asks_to_stop)
            self._progress.waits(Cause.LEASE, "it is passed on")
            await self._parts.keeper.give_up(self._held)
        self._progress.works("leaseLost")
        await dialogue.perform(self._dialect.lease_lost)
