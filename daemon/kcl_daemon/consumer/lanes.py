"""A shard with several children, each for the records of its keys (`shardConcurrency`; no counterpart in KCL).

What is stored for the shard is the mark of the `LaneWindow`. The children speak the same protocol as the only child of a
shard, and know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kcl_daemon.consumer.child_session import ChildRun, Failed, Finished, Reached, Stopped
from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.lane import KeyLane
from kcl_daemon.consumer.restart_policy import RestartPolicy
from kcl_daemon.consumer.shard_end import create_child_leases
from kcl_daemon.errors import AwsError, LeaseLost
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.hold_words import share_text, why_text
from kcl_daemon.leases.holds import NOT_HELD
from kcl_daemon.ports import ChildLane, Log
from kcl_daemon.progress.invariants import Invariants
from kcl_daemon.progress.progress import NEVER_S, LeaseProgress, WaitReason
from kcl_daemon.records.batch import Limits, nothing
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.records.lane_window import LaneWindow, NotOfThisLane
from kcl_daemon.records.payload import LINE_BYTES, data_bytes_of, line_bytes
from kcl_daemon.retrieval.byte_budget import Reservation
from kcl_daemon.retrieval.source import (
    DeliveryBatch,
    EndOfShard,
    Passed,
    ReachedBound,
    ShardReader,
    ShardSource,
    StartMemory,
)
from kcl_protocol.errors import CheckpointInvalidState
from kcl_protocol.sequence import LATEST, SHARD_END, ExtendedSequenceNumber

# A record takes some microseconds here: other shards must not wait.
_RECORDS_PER_TURN: Final = 500
_STORE_PAUSE_S: Final = 0.5
_STORE_PAUSE_MOST_S: Final = 10.0
_LAST_STORE_S: Final = 10.0
_MARK_HELD_S: Final = 600.0
_STORE_PASSED_S: Final = 30.0
_STANDBY_KEPT_S: Final = 60.0
_OTHERS: Final = "the other lanes"


class ShardLanes:
    """Runs once, for a lease whose shard may be read. `restart_policy`: whether to release it as degraded."""

    def __init__(
        self,
        *,
        parts: ConsumerContext,
        held: HeldLease,
        stop_signal: StopSignal,
        memory: StartMemory,
        log: Log,
        restart_policy: RestartPolicy,
    ) -> None:
        self._parts = parts
        self._held = held
        self._progress = held.progress
        self._stop_signal = stop_signal
        self._memory = memory
        self._log = log
        self._restart_policy = restart_policy
        self._clock = parts.context.clock
        self._stream = parts.streams.of(held.lease)
        self._settings = parts.settings.concurrency
        failures = parts.settings.failures
        self._may_need_batch = failures.dead_letters is not None or failures.attempts is not None
        count = self._settings.lanes_of(held.lease.stream)
        self._window = LaneWindow(count, held.lease.checkpoint, self._settings.order, held.lease.lanes)
        self._lanes = tuple(self._new_lane(number, count) for number in range(count))
        self._started: dict[int, KeyLane] = {}
        self._tasks: TaskGroup
        self._reservation: Reservation
        self._nothing = nothing(None)
        self._at_end = self._reads_again = self._gave_up = self._at_bound = self._drains = False
        self._store_trouble: str | None = None
        self._held_back: tuple[ExtendedSequenceNumber, int] | None = None
        self._held_told_s = NEVER_S
        self._changed = anyio.Event()
        self._mark_moved = anyio.Event()
        self._released = anyio.Event()

    def _new_lane(self, number: int, count: int) -> KeyLane:
        held, progress = self._held, LeaseProgress(self._clock.monotonic, lane=number)
        progress.last_fetch, progress.set_aside = held.progress.last_fetch, held.progress.set_aside
        progress.latency = held.progress.latency
        progress.invariants = Invariants(self._clock.monotonic, lane=number, shard=held.progress.invariants)
        of_child, log = ChildLane(number, count), self._log.bind(lane=number)
        return KeyLane(of_child, held, self, progress, log, held.lease.checkpoint)

    async def run(self) -> Finished | Stopped | Reached:
        """As `ChildRun.run`; a child that fails is the matter of its lane."""
        self._progress.starts()
        self._progress.invariants.begins(max(map(self._window.checkpoint_of, range(len(self._lanes)))))
        self._progress.window = self._window
        self._stop_signal.on_request = self._stop_requested
        remembers = self._settings.remembers and self._settings.order is ShardOrder.KEY
        self._held.lanes = lambda: self._window.done(remembers=remembers)
        self._reservation = self._parts.readers.reserve(self._forget_processed, self._progress.invariants)
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._store_marks)
                self._tasks.start_soon(self._dismiss_unneeded)
                self._tasks.start_soon(self._follow_holds)
                if self._parts.settings.delivery.record_filter is not None:
                    self._tasks.start_soon(self._store_passed)
                await self._work()
                await self._end_lanes()
                self._tasks.cancel_scope.cancel()
        finally:
            self._stop_signal.on_request = None
            self._reservation.release()
            self._progress.lanes.clear()
            self._progress.window = self._progress.held_back_s = None
        if self._at_bound:
            return Reached()
        return Finished() if self._held.lease.is_finished else Stopped()

    async def _dismiss_unneeded(self) -> None:
        await self._clock.sleep(_STANDBY_KEPT_S)
        self._parts.standby.dismiss(self._held.key)

    async def _follow_holds(self) -> None:
        while await self._parts.holds.until_changed():
            if self._at_end:
                self._notify()
            elif not self._is_stopping:
                self._show()

    @property
    def _is_stopping(self) -> bool:
        return self._gave_up or self._at_bound or self._stop_signal.reason is not StopReason.NONE

    @property
    def _is_interrupted(self) -> bool:
        return self._is_stopping or self._reads_again

    def _stop_requested(self) -> None:
        if self._stop_signal.reason is StopReason.LEASE_LOST:
            for lane in self._lanes:
                lane.stop_signal.request(StopReason.LEASE_LOST)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _interruptible_change(self) -> None:
        await self._stop_signal.interruptible(self._changed.wait)

    async def _work(self) -> None:
        while not self._is_stopping:
            self._reads_again = False
            end = await self._read()
            if isinstance(end, ReachedBound):
                await self._finish_at_bound()
                continue
            if end is None or not await self._create_child_leases(end):
                continue
            if await self._finish_lanes():
                await self._store(lambda: SHARD_END)
                return

    async def _read(self) -> EndOfShard | None:
        """None after a stop request, or where reading has to begin anew."""
        reader = self._reader()
        self._progress.reading(reader)
        end: EndOfShard | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader.run)
                end = await self._take_all(reader)
                tasks.cancel_scope.cancel()
        finally:
            self._progress.reading_ended(self._held.lease.checkpoint)
            self._count()
            reader.close()
        return end

    def _reader(self) -> ShardReader:
        stream, lease = self._stream, self._held.lease
        source = ShardSource(
            stream=stream.ref,
            shard_id=lease.shard_id,
            checkpoint=self._window.reread_from() or self._window.high,
            timestamp_s=stream.position.timestamp_s,
            memory=self._memory,
            last_fetch=self._progress.last_fetch,
            flow=self._progress.flow,
            stream_is_there=stream.watch.is_there,
            has_forgotten=lambda: stream.watch.has_forgotten(self._held.lease),
            until_ms=self._parts.until_ms,
            only=self._parts.settings.shards.only,
            invariants=self._progress.invariants,
        )
        return self._parts.readers.reader(source, hash_range=lease.hash_range, log=self._log)

    async def _take_all(self, reader: ShardReader) -> EndOfShard | None:
        while not self._is_interrupted:
            if not self._has_room():
                self._hurry()
                self._show()
                await self._interruptible_change()
                continue
            self._show()
            match await self._stop_signal.interruptible(reader.next):
                case DeliveryBatch() as batch:
                    await self._add(batch)
                case ReachedBound() as end:
                    return end
                case Passed(position):
                    self._window.passed(position)
                    self._progress.passed(position)
                    self._progress.invariants.passed(position)
                case EndOfShard() as end:
                    self._window.shard_ended()
                    return end
                case None:
                    pass
        return None

    def _has_room(self) -> bool:
        window, most_bytes = self._window, self._settings.window_bytes
        if window.size_bytes >= most_bytes:
            window.shed(max(0, window.answered_bytes - (window.size_bytes - most_bytes) - 1))
            self._count()
        return window.size_bytes < most_bytes

    def _forget_processed(self) -> None:
        """Other shards need the room. A lane that fails then is read anew."""
        self._window.shed(0)
        self._reservation.resize(self._window.size_bytes)
        self._hurry()

    def _hurry(self) -> None:
        for lane in self._started.values():
            if lane.until_s is not None:
                lane.filled.set()

    async def _add(self, batch: DeliveryBatch) -> None:
        try:
            if not batch.count:
                self._offer_empty()
                return
            whole = batch.take()
            self._nothing = nothing(whole.behind_ms)
            if batch.last is not None and batch.arrived_s is not None:
                stored = self._held.lease.checkpoint
                self._progress.uncheckpointed.delivered(batch.last, batch.arrived_s, stored)
        finally:
            batch.release()
        for begin in range(0, len(whole), _RECORDS_PER_TURN):
            for number in sorted(self._window.add(whole.part(begin, begin + _RECORDS_PER_TURN))):
                self._wake(self._lanes[number])
            self._count()
            await checkpoint()
        self._tell_if_mark_stands()

    def _tell_if_mark_stands(self) -> None:
        """A lane that gets no records makes no checkpoint, if its program makes them while it processes."""
        number, since_s, now_s = self._window.holds_mark, self._progress.held_back_s, self._clock.monotonic()
        if number is None or since_s is None or self._window.is_behind(number):
            return
        if now_s - max(since_s, self._held_told_s) >= _MARK_HELD_S:
            self._held_told_s = now_s
            self._log.warning(
                "lane_holds_checkpoint",
                lane=number,
                checkpoint=str(self._window.mark),
                held_s=round(now_s - since_s),
                advice="the child of this lane has processed its records and has not checkpointed them, so the checkpoint of "
                "the shard cannot move: let the program checkpoint by time, also with "
                "callProcessRecordsEvenForEmptyRecordList=true, or after each batch",
            )

    def _offer_empty(self) -> None:
        for lane in self._started.values():
            if lane.idle:
                lane.offers_empty = True
                lane.filled.set()

    def _count(self) -> None:
        if self._reservation.is_wanted:
            self._window.shed(0)
        self._reservation.resize(self._window.size_bytes + sum(lane.kept_bytes for lane in self._lanes))
        self._progress.oldest_undone_s = self._window.oldest_s
        held_back = self._window.held_back
        if held_back != self._held_back:
            self._held_back = held_back
            self._progress.held_back_s = None if held_back is None else self._clock.monotonic()

    def _show(self) -> None:
        hold = self._parts.holds.of(self._held.lease)
        if self._store_trouble is not None:
            self._progress.waits(WaitReason.DYNAMODB, self._store_trouble)
        elif hold.pause is not None:
            self._progress.waits(WaitReason.PAUSED, why_text(hold.pause))
        elif hold.limits and self._window.size_bytes:
            self._progress.waits(WaitReason.LIMITED, "; ".join(map(share_text, hold.limits)))
        elif self._at_end or self._window.size_bytes >= self._settings.window_bytes:
            self._progress.waits_for_lane(*self._slowest())
        else:
            self._progress.waits_for_records()

    def _slowest(self) -> tuple[int, str]:
        slowest = self._window.slowest
        if slowest is None:
            unfinished = (
                number for number, lane in self._started.items() if not lane.checkpoint.is_shard_end
            )
            return min(unfinished, default=0), ""
        key_hash = self._window.first_key_hash(slowest)
        return slowest, "" if key_hash is None else f"at a record whose key has the hash {key_hash:08x}"

    async def _create_child_leases(self, end: EndOfShard) -> bool:
        """False if it was interrupted."""
        self._progress.read_to_end()
        self._progress.waits(WaitReason.DYNAMODB, "leases of child shards are being created")
        creating = partial(create_child_leases, self._parts, self._held, end.children, self._log)
        while not self._is_interrupted:
            if await self._stop_signal.interruptible(creating):
                return True
        return False

    async def _finish_at_bound(self) -> None:
        self._progress.read_to_end()
        while not self._is_interrupted and not self._is_drained:
            self._show()
            await self._interruptible_change()
        self._at_bound = not self._is_interrupted

    async def _finish_lanes(self) -> bool:
        """Every child that was started gets shardEnded; at least one is. False if it was interrupted."""
        self._at_end = True
        if not self._started:
            self._wake(self._lanes[0])
        for lane in self._started.values():
            lane.filled.set()
        while not self._is_interrupted:
            if all(lane.checkpoint.is_shard_end for lane in self._started.values()):
                return True
            self._show()
            await self._interruptible_change()
        self._at_end = False
        return False

    def _wake(self, lane: KeyLane) -> None:
        if not lane.running and not self._is_stopping:
            lane.running = True
            if lane.number not in self._started:
                lane.checkpoint = max(self._window.mark, self._window.checkpoint_of(lane.number))
            self._started[lane.number] = lane
            self._progress.lanes[lane.number] = lane
            self._tasks.start_soon(self._run_lane, lane)
        lane.filled.set()

    async def _run_lane(self, lane: KeyLane) -> None:
        policy = RestartPolicy(parts=self._parts, lane=lane, stop_signal=lane.stop_signal, log=lane.log)
        while lane.stop_signal.reason is StopReason.NONE:
            outcome = await ChildRun(
                parts=self._parts,
                lane=lane,
                stop_signal=lane.stop_signal,
                memory=StartMemory(),
                log=lane.log,
                set_aside=policy.set_aside,
                poison_search=policy.poison_search,
            ).run()
            lane.idle = False
            if not isinstance(outcome, Failed):
                lane.progress.waits(WaitReason.LEASE, _OTHERS)
                break
            lane.progress.failed(str(outcome.error), outcome.stderr)
            self._rewind(lane)
            if not await policy.continue_after(outcome):
                self._give_up(lane, policy)
                break
        lane.running = False
        self._notify()

    def _rewind(self, lane: KeyLane) -> None:
        lane.batch, lane.until_s = (0, 0), None
        if self._window.rewind(lane.number):
            lane.log.info("lane_reads_again", after=str(lane.checkpoint))
            self._reads_again = True
            self._stop_signal.wake()
        self._count()
        self._notify()

    def _give_up(self, lane: KeyLane, policy: RestartPolicy) -> None:
        self._restart_policy.degraded |= policy.degraded
        self._gave_up = True
        self._held.progress.continue_after(lane.progress.failure_history)
        self._stop_signal.wake()

    async def next_of(self, lane: KeyLane) -> DeliveryBatch | EndOfShard:
        self._processed(lane)
        while True:
            taken = self._window.take(lane.number, LINE_BYTES, self._batch_records(lane))
            if taken is not None:
                batch = DeliveryBatch(taken, lane.keeps_nothing)
                if self._may_need_batch:
                    lane.kept_bytes = sum(map(line_bytes, taken.records))
                lane.batch = (batch.count, batch.data_bytes)
                self._count()
                if batch.last is not None and lane.furthest < batch.last:
                    lane.furthest = batch.last
                    self._progress.gave_records()
                return batch
            if lane.offers_empty:
                lane.offers_empty = False
                return DeliveryBatch(self._nothing)
            if self._at_end and not self._window.is_rereading(lane.number):
                return EndOfShard(())
            lane.idle, lane.filled = True, anyio.Event()
            self._notify()
            if lane.until_s is None:
                await lane.filled.wait()
            else:
                with self._clock.move_on_after(max(0.0, lane.until_s - self._clock.monotonic())):
                    await lane.filled.wait()
            lane.idle = False

    def _batch_records(self, lane: KeyLane) -> int:
        """Of the next batch of a lane; 0: they are still gathered."""
        delivery = self._parts.settings.delivery
        if not delivery.shapes_batches:
            return self._parts.settings.retrieval.max_records
        count, is_due = self._gathered(lane)
        now_s = self._clock.monotonic()
        if count and lane.until_s is None:
            lane.until_s = now_s + (delivery.batch_window_ms or 0) / 1000
        is_due |= self._is_hurried or (lane.until_s is not None and lane.until_s <= now_s)
        if is_due:
            lane.until_s = None
        gathering = (each.until_s for each in self._lanes if each.until_s is not None)
        self._progress.window_until_s = min(gathering, default=None)
        return count if is_due else 0

    def _gathered(self, lane: KeyLane) -> tuple[int, bool]:
        """Records of its next batch, and whether it is full."""
        delivery, count, data_bytes = self._parts.settings.delivery, 0, 0
        for record in self._window.untaken(lane.number):
            data_bytes += data_bytes_of(record)
            if count == delivery.batch_records or (count and data_bytes > delivery.batch_bytes):
                return count, True
            count += 1
        is_full = count == delivery.batch_records or data_bytes >= delivery.batch_bytes
        return count, is_full or Limits.of(count, data_bytes).line_bytes >= LINE_BYTES

    @property
    def _is_hurried(self) -> bool:
        is_full = self._window.size_bytes >= self._settings.window_bytes
        return self._drains or self._at_end or is_full or self._reservation.is_wanted

    def _processed(self, lane: KeyLane) -> None:
        records, data_bytes = lane.batch
        if records:
            lane.batch = (0, 0)
            self._window.answered(lane.number)
            self._progress.records += records
            self._progress.data_bytes += data_bytes
            self._got_on(lane)
            self._count()
            self._notify()

    def _got_on(self, lane: KeyLane) -> None:
        """Records that a child gets again are no progress, and none is while nothing can be stored."""
        if lane.progress.progressed_s > lane.progressed_s and self._store_trouble is None:
            lane.progressed_s = lane.progress.progressed_s
            self._progress.moved()

    async def checkpointed(self, lane: KeyLane, position: ExtendedSequenceNumber) -> None:
        """Raises as the renewer's `checkpoint`, and CheckpointInvalidState for a record of another lane."""
        if self._window.mark == LATEST:
            await self._parts.renewer.checkpoint(self._held, LATEST)
        if position <= lane.checkpoint:
            return  # where its child began, if that was given no records because of a pause
        try:
            self._window.checkpoint(lane.number, position)
        except NotOfThisLane as wrong:
            raise CheckpointInvalidState(str(wrong)) from wrong
        lane.progress.invariants.stores(position, lane.checkpoint)
        lane.checkpoint = position
        if self._store_trouble is None:
            self._progress.moved()
        self._mark_moved.set()
        self._count()
        self._notify()

    async def _store_marks(self) -> None:
        while True:
            await self._mark_moved.wait()
            self._mark_moved = anyio.Event()
            await self._store(lambda: self._window.mark)

    async def _store_passed(self) -> None:
        while True:
            await self._clock.sleep(_STORE_PASSED_S)
            self._mark_moved.set()

    async def _store(self, position: Callable[[], ExtendedSequenceNumber]) -> None:
        """Retries until it is stored or the lease is lost; later positions go with it."""
        pause_s = _STORE_PAUSE_S
        while self._held.lost is None and self._held.lease.checkpoint < position():
            try:
                await self._parts.renewer.checkpoint(self._held, position())
            except LeaseLost:
                return
            except AwsError as error:
                self._store_trouble = str(error)
                self._log.warning("lane_checkpoint_not_stored", error=str(error), checkpoint=str(position()))
                self._show()
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _STORE_PAUSE_MOST_S)
                continue
            if self._store_trouble is not None:
                self._store_trouble = None
                self._show()
            self._progress.moved()
            self._log.debug("checkpoint_stored", checkpoint=str(self._held.lease.checkpoint))

    async def until_released(self, lane: KeyLane) -> None:
        lane.waits_for_release = True
        lane.progress.waits(WaitReason.LEASE, _OTHERS)
        self._notify()
        await self._released.wait()

    async def _end_lanes(self) -> None:
        """KCL: ShutdownNotificationTask."""
        if not self._held.lease.is_finished:
            timings, settings = self._parts.context.timings, self._parts.settings.child
            is_handoff = self._held.next_owner is not None and not self._held.announced
            grace_s = max(settings.shutdown_grace_ms / 1000, timings.handoff_s if is_handoff else 0.0)
            await self._drain(grace_s / 2)
            for lane in self._lanes:
                lane.stop_signal.request(max(self._stop_signal.reason, StopReason.STOP))
            await self._until_lanes_wait(grace_s / 2)
            await self._release()
        self._released.set()
        while any(lane.running for lane in self._lanes):
            await self._changed.wait()

    async def _drain(self, most_s: float) -> None:
        """What was read is processed, so that little comes twice."""
        self._drains = True
        self._hurry()
        with self._clock.move_on_after(most_s):
            while self._stop_signal.reason is StopReason.STOP and not self._is_drained and not self._is_held:
                await self._changed.wait()

    @property
    def _is_held(self) -> bool:
        paused = (lane.progress.cause is WaitReason.PAUSED for lane in self._lanes)
        return self._parts.holds.of(self._held.lease) is not NOT_HELD or any(paused)

    async def _until_lanes_wait(self, most_s: float) -> None:
        """A child that hangs is ended before the time of those that wait for it is over."""
        with self._clock.move_on_after(most_s):
            while self._unready:
                await self._changed.wait()
        for lane in self._unready:
            lane.progress.child_stuck(most_s)
        while self._unready:
            await self._changed.wait()

    @property
    def _unready(self) -> list[KeyLane]:
        return [lane for lane in self._lanes if lane.running and not lane.waits_for_release]

    @property
    def _is_drained(self) -> bool:
        return self._window.all_taken and all(lane.idle or not lane.running for lane in self._lanes)

    async def _release(self) -> None:
        self._progress.waits(WaitReason.LEASE, "it is handed off")
        with self._clock.move_on_after(_LAST_STORE_S):
            await self._store(lambda: self._window.mark)
        failed = self._reads_again or not self._window.all_taken
        self._at_bound &= not failed and self._stop_signal.reason is StopReason.NONE
        if self._at_bound:
            return
        if self._restart_policy.degraded:
            self._parts.degraded.released(self._held.lease, self._held.progress.failure_history)
        elif self._held.lost is None and not self._gave_up:
            await self._parts.renewer.release_lease(self._held)
