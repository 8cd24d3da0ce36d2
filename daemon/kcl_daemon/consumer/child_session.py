"""One child process for one lease, from start to end (KCL: MultiLangShardRecordProcessor, ShardConsumer)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup

from kcl_daemon import faults
from kcl_daemon.consumer.connection import (
    Checkpointer,
    ChildConnection,
    ChildMetrics,
    lease_lost,
    shard_ended,
)
from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.gate import Gate, Give
from kcl_daemon.consumer.lane import REFUSED_ADVICE, Lane, PositionRefused, Reading, is_readable, own_position
from kcl_daemon.consumer.set_aside import Rejects, SetAside
from kcl_daemon.errors import ChildBrokeProtocol, ChildError, ChildStartFailed, ChildTimedOut
from kcl_daemon.fleet.lease_renewer import lease_labels
from kcl_daemon.ports import Child, Clock, Log
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.records.batch_text import BatchEncoder
from kcl_daemon.retrieval.source import (
    DeliveryBatch,
    EndOfShard,
    Passed,
    ReachedBound,
    ReadItem,
    ShardReader,
    ShardSource,
    StartMemory,
)
from kcl_protocol.messages import Initialize, Scalar, ShutdownRequested
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    from kcl_daemon.consumer.poison import PoisonSearch
    from kcl_daemon.retrieval.batch_window import BatchWindow


async def end_child(child: Child, *, clock: Clock, grace_s: float, ask: bool, log: Log) -> None:
    """Close its stdin, then SIGTERM, then SIGKILL, `grace_s` apart. Read its stdout meanwhile.

    Returns also if SIGKILL has not helped in time. `ask=False` skips the first wait.
    """
    await child.close_stdin()
    if ask and await _ends_within(child, clock, grace_s):
        return
    if ask:
        log.warning("child_ignores_eof", pid=child.pid, grace_s=grace_s)
    child.terminate()
    if await _ends_within(child, clock, grace_s):
        return
    log.warning("child_ignores_sigterm", pid=child.pid, grace_s=grace_s)
    child.kill()
    if not await _ends_within(child, clock, grace_s):
        log.error(
            "child_survives_sigkill", pid=child.pid, advice="it hangs in the kernel; its lease is released"
        )


async def _ends_within(child: Child, clock: Clock, grace_s: float) -> bool:
    with clock.move_on_after(grace_s):
        await child.wait()
        return True
    return False


_STORE_PASSED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Finished:
    pass


@dataclass(frozen=True, slots=True)
class Stopped:
    pass


@dataclass(frozen=True, slots=True)
class Reached:
    """The lease is kept."""


@dataclass(frozen=True, slots=True)
class Failed:
    """`progressed`: it had stored a new checkpoint. `refused`: a checkpoint failed through no fault of the child."""

    error: ChildError
    progressed: bool
    refused: bool = False
    stderr: tuple[str, ...] = ()


ChildRunOutcome = Finished | Stopped | Reached | Failed


class NoFinalCheckpoint(ChildError):
    """The shard cannot be called finished."""

    def __str__(self) -> str:
        return "child answered shardEnded without a checkpoint; checkpoint in shardEnded, best without a sequence number"


class ChildRun:
    def __init__(
        self,
        *,
        parts: ConsumerContext,
        lane: Lane,
        stop_signal: StopSignal,
        memory: StartMemory,
        log: Log,
        set_aside: SetAside,
        poison_search: PoisonSearch | None = None,
    ) -> None:
        self._parts = parts
        self._lane = lane
        self._progress = lane.progress
        self._stop_signal = stop_signal
        self._memory = memory
        self._poison_search = poison_search
        self._log = log
        self._settings = parts.settings.child
        self._stream = parts.streams.of(lane.lease)
        self._set_aside = set_aside
        self._rejects = Rejects(set_aside, log)
        self._checkpointer = Checkpointer(
            lane=lane, log=log, rejects=self._rejects, lands=parts.settings.landing.uri is not None
        )
        self._reading: Reading
        self._window: BatchWindow | None = None
        self._store_passed_at_s = parts.context.clock.monotonic() + _STORE_PASSED_S

    async def run(self) -> ChildRunOutcome:
        """Raises nothing for failures of the child or AWS. Cancelled: the child is killed, nothing is written."""
        self._progress.starts()
        if self._poison_search is not None:
            self._poison_search.begin()
        try:
            child = await self._parts.standby.take(self._lane.key, self._lane.child_lane)
            child = child or await self._parts.children.start(
                self._lane.lease.shard_id, self._stream.for_child, self._lane.child_lane
            )
        except ChildStartFailed as failed:
            return Failed(failed, progressed=False)
        self._log = self._log.bind(pid=child.pid)
        self._parts.startup_failures.started(self._lane.key)
        self._log.info("child_started", checkpoint=str(self._lane.checkpoint))
        try:
            outcome = await self._run(child)
        finally:
            try:
                await child.aclose()
            finally:
                self._parts.live_children.ended(self._lane.key, self._lane_number, self)
            self._progress.child_ended()
            self._set_aside.summarize()
        return replace(outcome, stderr=child.stderr_tail) if isinstance(outcome, Failed) else outcome

    @property
    def _lane_number(self) -> int:
        lane = self._lane.child_lane
        return 0 if lane is None else lane.number

    async def _run(self, child: Child) -> ChildRunOutcome:
        clock, meters = self._parts.context.clock, self._parts.context.meters
        connection = ChildConnection(
            child,
            self._settings,
            clock=clock,
            log=self._log,
            metrics=ChildMetrics(meters, clock, lease_labels(self._lane.lease)),
            on_checkpoint=self._checkpointer.answer,
            on_early_request=self._stop_signal.wake,
            rejects=self._rejects,
        )
        connection.invariants = self._progress.invariants
        self._reading = self._read(connection, self._lane.checkpoint, self._memory)
        outcome: ChildRunOutcome = Stopped()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, connection)
                tasks.start_soon(self._reading.run)
                outcome = await self._converse_and_end(child, connection, tasks)
                tasks.cancel_scope.cancel()
        finally:
            self._progress.reading_ended(self._lane.checkpoint)
            self._reading.reader.close()
        return outcome

    async def _pump(self, connection: ChildConnection) -> None:
        await connection.pump()
        self._stop_signal.wake()

    async def _converse_and_end(
        self, child: Child, connection: ChildConnection, tasks: TaskGroup
    ) -> ChildRunOutcome:
        outcome: ChildRunOutcome = Stopped()
        with anyio.CancelScope() as conversation:
            self._progress.child_started(child, conversation.cancel)
            tasks.start_soon(self._limit, conversation)
            outcome = await self._converse(connection, tasks)
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
            # Log now: the child may take long to exit.
            self._log.warning("child_broke_protocol", error=str(outcome.error))
        stuck = conversation.cancelled_caught or (
            isinstance(outcome, Failed) and isinstance(outcome.error, ChildTimedOut)
        )
        await end_child(
            child,
            clock=self._parts.context.clock,
            grace_s=self._settings.exit_grace_ms / 1000,
            ask=not stuck,
            log=self._log,
        )
        return outcome

    def _read(
        self, connection: ChildConnection, start: ExtendedSequenceNumber, memory: StartMemory
    ) -> Reading:
        parts, lease = self._parts, self._lane.lease
        source = ShardSource(
            stream=self._stream.ref,
            shard_id=lease.shard_id,
            checkpoint=start,
            timestamp_s=self._stream.position.timestamp_s,
            memory=memory,
            last_fetch=self._progress.last_fetch,
            flow=self._progress.flow,
            stream_is_there=self._stream.watch.is_there,
            has_forgotten=lambda: self._stream.watch.has_forgotten(self._lane.lease),
            encoder=connection.encoder,
            until_ms=parts.until_ms,
            only=parts.settings.shards.only,
            invariants=self._progress.invariants,
            tells_complete=self._settings.is_relay,
        )
        reader = self._shaped(source)
        self._progress.reading(reader)
        return Reading(reader)

    def _shaped(self, source: ShardSource) -> ShardReader:
        parts, settings = self._parts, self._parts.settings.delivery
        # Lanes join records of their own.
        if self._lane.child_lane is not None or not settings.shapes_batches:
            return self._lane.reader(source, self._log)
        inner = replace(source, encoder=BatchEncoder())  # what it gives is encoded once it is joined
        from kcl_daemon.retrieval.batch_window import BatchWindow

        reader, clock = self._lane.reader(inner, self._log), parts.context.clock
        reserve = parts.readers.reserve
        self._window = BatchWindow(reader, settings, clock=clock, progress=self._progress, reserve=reserve)
        return self._window

    async def _begin_at(
        self, position: ExtendedSequenceNumber | None, connection: ChildConnection, tasks: TaskGroup
    ) -> None:
        lane, start = self._lane, self._lane.checkpoint
        if position is not None and position != start:
            parts, stop = self._parts, self._stop_signal
            if await is_readable(position, parts=parts, lane=lane, stop_signal=stop):
                self._log.info("child_begins_by_itself", position=str(position), checkpoint=str(start))
                await self._reading.end()
                self._reading = self._read(connection, position, StartMemory())
                tasks.start_soon(self._reading.run)
                await self._checkpointer.begins_at(position)
                start = position
        if self._poison_search is not None:
            self._poison_search.begins_at(start)

    async def _limit(self, conversation: anyio.CancelScope) -> None:
        await self._stop_signal.until_stop_requested()
        grace_s = self._settings.shutdown_grace_ms / 1000
        await self._parts.context.clock.sleep(
            max(grace_s, self._parts.context.timings.handoff_s) if self._lane.handed_over else grace_s
        )
        conversation.cancel()

    def _initialize(self) -> Initialize:
        start, stream, lane = self._lane.checkpoint, self._stream.ref, self._lane.child_lane
        extra: dict[str, Scalar] = {} if lane is None else {"lane": lane.number, "lanes": lane.count}
        if (fence := self._lane.lease.fence) is not None:
            extra["fencingToken"] = fence
        return Initialize(
            self._lane.lease.shard_id,
            start.sequence_number,
            start.sub_sequence_number,
            stream_name=None if stream.identity is None else stream.name,
            stream_arn=None if stream.identity is None else stream.arn,
            extra=extra,
        )

    async def _converse(self, connection: ChildConnection, tasks: TaskGroup) -> ChildRunOutcome:
        lane, invariants = self._lane, self._progress.invariants
        self._parts.live_children.begins(lane.key, self._lane_number, self, invariants)
        invariants.begins(lane.checkpoint)
        try:
            status = await connection.perform(self._initialize())
            faults.maybe("after-child-initialized")
            self._parts.startup_failures.started_once()
            lane.throughput.begins()
            await self._begin_at(
                own_position(status, has_lanes=self._lane.child_lane is not None), connection, tasks
            )
            end = await self._deliver(connection)
            if isinstance(end, ReachedBound):
                return await self._end_at_bound(connection)
            outcome = None if end is None else await self._end_shard(connection, end)
            if outcome is not None:
                return outcome
            await self._shut_down_child(connection)
        except ChildError as error:
            return self._failed(error)
        return Stopped()

    def _failed(self, error: ChildError) -> Finished | Failed:
        """After SHARD_END no new child is needed."""
        if isinstance(error, PositionRefused):
            self._log.error("child_position_refused", error=str(error), advice=REFUSED_ADVICE)
        if self._lane.checkpoint.is_shard_end:
            self._log.warning("child_failed", error=str(error), advice="the shard was finished already")
            return Finished()
        return Failed(error, self._checkpointer.advanced, refused=self._checkpointer.refused)

    async def _deliver(self, connection: ChildConnection) -> EndOfShard | None:
        """None after a stop request."""
        gate, reader = Gate(self._parts, self._lane, self._stop_signal, connection), self._reading.reader
        give = self._path(connection, gate)
        filters = self._parts.settings.delivery.record_filter is not None
        take = partial(self._next_in_time, reader) if filters else reader.next
        while await gate.opens():
            self._progress.waits_for_records()
            item = await self._stop_signal.interruptible(take)
            if connection.silent:
                if isinstance(item, DeliveryBatch):
                    item.release()
                raise await connection.exited("idle")
            match item:
                case DeliveryBatch():
                    self._progress.invariants.note("batch_taken", item.last, item.count)
                    if not await self._process(connection, gate, give, item):
                        return None
                case EndOfShard():
                    return item if await gate.opens(gives=True) else None
                case Passed(position):
                    self._checkpointer.passed(position)
                    self._progress.passed(position)
                    await self._store_passed()
                case None:  # the gate knows whether it was a stop request
                    await self._store_passed()
        await self._deliver_rest(connection, gate, give)
        return None

    async def _deliver_rest(self, connection: ChildConnection, gate: Gate, give: Give) -> None:
        """What was gathered, while the child may still checkpoint it."""
        while self._window is not None and self._stop_signal.reason is StopReason.STOP and not gate.is_held:
            match self._window.rest():
                case DeliveryBatch() as batch:
                    await connection.answer_early_requests()
                    complete = await give(batch)
                    batch.release()
                    if not complete:
                        return
                case Passed(position):
                    self._checkpointer.passed(position)
                case _:
                    return

    async def _next_in_time(self, reader: ShardReader) -> ReadItem | None:
        """None when it is time to store what was passed."""
        with self._parts.context.clock.move_on_after(_STORE_PASSED_S):
            return await reader.next()
        return None

    async def _store_passed(self) -> None:
        now_s = self._parts.context.clock.monotonic()
        if now_s >= self._store_passed_at_s:
            self._store_passed_at_s = now_s + _STORE_PASSED_S
            await self._checkpointer.store_passed()

    async def _process(
        self, connection: ChildConnection, gate: Gate, give: Give, batch: DeliveryBatch
    ) -> bool:
        """As `Give`: nothing may be passed after it, too."""
        try:
            if batch.last is not None:
                self._progress.takes(batch.count, batch.data_bytes, batch.arrived_s)
                gave_all = await gate.give(batch, give)
                if gave_all:
                    self._progress.gave_all()
                return gave_all
            if self._settings.call_for_empty and await gate.opens():
                await self._give_batch(connection, batch)
            return True
        finally:
            batch.release()

    def _path(self, connection: ChildConnection, gate: Gate) -> Give:
        """After the gate."""
        give: Give = partial(self._give_batch, connection)
        if self._poison_search is not None:
            give = partial(
                self._poison_search.deliver,
                connection=connection,
                checkpointer=self._checkpointer,
                may_go_on=partial(gate.opens, gives=True, within_batch=True),
            )
        if (max_age_ms := self._parts.settings.failures.max_age_ms) is not None:
            from kcl_daemon.consumer.expired import ExpiredRecords

            aged = ExpiredRecords(
                parts=self._parts,
                lane=self._lane,
                checkpointer=self._checkpointer,
                aside=self._set_aside,
                max_age_ms=max_age_ms,
            )
            give = partial(aged.give, give=give, connection=connection)
        return partial(self._counted, give)

    async def _counted(self, give: Give, batch: DeliveryBatch) -> bool:
        self._lane.throughput.record(batch.data_bytes, now_s=self._parts.context.clock.monotonic())
        return await give(batch)

    async def _give_batch(self, connection: ChildConnection, batch: DeliveryBatch) -> bool:
        last = batch.last
        self._progress.works("processRecords", arrived_s=batch.arrived_s)
        self._checkpointer.begin_batch()
        before_send = None if last is None else partial(self._checkpointer.delivering, last)
        await connection.deliver(batch, before_send=before_send)
        stored = self._lane.checkpoint
        self._progress.done(last, batch.count, batch.data_bytes, span_s=batch.span_s, stored=stored)
        return True

    async def _end_at_bound(self, connection: ChildConnection) -> Reached:
        self._progress.works("shutdownRequested")
        await connection.perform(ShutdownRequested())
        self._progress.works("leaseLost")
        await connection.perform(lease_lost(self._settings.protocol))
        return Reached()

    async def _end_shard(self, connection: ChildConnection, end: EndOfShard) -> Finished | Stopped | None:
        """None if a stop came before shardEnded was sent."""
        self._progress.read_to_end()
        self._progress.waits(WaitReason.DYNAMODB, "leases of child shards are being created")
        creating = partial(self._lane.end, end.children, self._log)
        while await self._stop_signal.interruptible(creating) is None:
            if connection.silent:
                raise await connection.exited("idle")
            if self._stop_signal.reason is not StopReason.NONE:
                return None
            await connection.answer_early_requests()
        self._progress.shard_ended()
        known = {child.shard_id for child in end.children} or self._lane.lease.child_shard_ids
        lands = self._parts.settings.landing.uri is not None
        ended = shard_ended(self._settings.protocol, tuple(sorted(known)) if lands else None)
        await connection.perform(ended, before_send=self._checkpointer.shard_ended)
        faults.maybe("after-shard-ended")
        if self._lane.checkpoint.is_shard_end:
            return Finished()
        if self._lane.lost is not None or self._stop_signal.reason is not StopReason.NONE:
            # Nothing may follow shardEnded, not even leaseLost; the next owner ends the shard.
            return Stopped()
        raise NoFinalCheckpoint

    async def _shut_down_child(self, connection: ChildConnection) -> None:
        """KCL: ShutdownNotificationTask."""
        if self._stop_signal.reason is StopReason.STOP and self._lane.lost is None:
            self._progress.works("shutdownRequested")
            await connection.perform(ShutdownRequested())
            faults.maybe("after-shutdown-requested")
            await self._checkpointer.store_passed()
            self._progress.waits(WaitReason.LEASE, "it is handed off")
            await self._lane.release()
        self._progress.works("leaseLost")
        await connection.perform(lease_lost(self._settings.protocol))
