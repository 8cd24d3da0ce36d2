"""A held lease, from its parents' end to its release (KCL: ShardConsumer)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kcl_daemon.consumer.child_session import ChildRun, Failed, Finished, Reached, Stopped
from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.lane import OnlyLane
from kcl_daemon.consumer.restart_policy import RestartPolicy
from kcl_daemon.errors import AwsError, LeaseLost
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.fleet.streams import RECHECK_S, StreamState
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.leases.row import lease_from_row
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.retrieval.source import StartMemory
from kcl_daemon.shards.lineage import needed_since_ms, unfinished_parents

if TYPE_CHECKING:
    from kcl_daemon.consumer.lanes import ShardLanes

_STREAM_PAUSE_S: Final = 5.0
# Deleting and creating a stream takes longer.
_CONFIRMED_WITHIN_S: Final = 5.0
_REACH_PAUSE_S: Final = 1.0


class ShardConsumer:
    def __init__(self, *, parts: ConsumerContext, held: HeldLease) -> None:
        self._parts = parts
        self._held = held
        self._stop_signal = StopSignal()
        self._memory = StartMemory(held.lease.first_read)
        self._works = self._begins_after_bound = False
        self._finished_parents = set[ShardId]()
        stream = held.lease.stream
        named = {} if stream is None else {"stream": str(stream)}
        self._log = parts.context.log.bind(**named, shard_id=held.lease.shard_id)
        self._lane = OnlyLane(parts, held)
        self._restart_policy = RestartPolicy(
            parts=parts, lane=self._lane, stop_signal=self._stop_signal, log=self._log
        )
        held.on_change = self._lease_changed

    def request_stop(self) -> None:
        """Finish the batch, let the child checkpoint, release the lease. Idempotent."""
        self._stop_signal.request(StopReason.STOP)

    async def until_stop_requested(self) -> None:
        await self._stop_signal.until_stop_requested()

    def _lease_changed(self) -> None:
        if self._held.lost is not None:
            self._stop_signal.request(StopReason.LEASE_LOST)
        elif not (self._works and self._parts.renewer.awaits_standby(self._held)):
            self._stop_signal.request(StopReason.STOP)

    async def run(self) -> None:
        """Until the shard is finished or the lease is gone. Cancelled: the child is killed and nothing is written."""
        if self._held.next_owner is not None:
            self.request_stop()
        if self._is_at_bound(self._held.lease) or await self._parents_finished():
            await self._work()
        renewer = self._parts.renewer
        stays = self._held.lease.is_finished and renewer.keeps_finished and not self._stopped
        self._held.progress.waits(WaitReason.LEASE, "it is released")
        if self._held.lost is None and renewer.holds(self._held.key) and not stays:
            await renewer.release_lease(self._held, degraded=self._restart_policy.degraded)

    @property
    def _stopped(self) -> bool:
        return self._stop_signal.reason is not StopReason.NONE

    async def _work(self) -> None:
        if self._begins_after_bound or self._is_at_bound(self._held.lease):
            await self._stay_at_bound()
            return
        self._works = True
        await self._restart_policy.cool_down()
        while await self._stream_found() and self._stop_signal.reason is StopReason.NONE:
            match await self._child_run().run():
                case Finished():
                    self._log.info("shard_finished")
                    self._parts.shard_finished.fire()
                    return
                case Reached():
                    await self._stay_at_bound()
                    return
                case Stopped():
                    return
                case Failed() as failed:
                    self._held.progress.failed(str(failed.error), failed.stderr)
                    if not await self._restart_policy.continue_after(failed):
                        return

    def _is_at_bound(self, lease: Lease) -> bool:
        until_ms = self._parts.until_ms
        return until_ms is not None and not lease.is_finished and lease.is_at(until_ms)

    async def _stay_at_bound(self) -> None:
        until_ms, held = self._parts.until_ms, self._held
        assert until_ms is not None, "the run is bounded"
        self._works = False
        self._parts.standby.dismiss(held.key)
        held.progress.read_to_end()
        held.progress.waits(WaitReason.RUN_END)
        while self._stop_signal.reason is StopReason.NONE and not held.lease.is_at(until_ms):
            try:
                await self._parts.renewer.reach(held, until_ms)
                self._log.info("shard_at_bound", checkpoint=str(held.lease.checkpoint))
            except LeaseLost:
                return
            except AwsError as error:
                self._log.warning("bound_not_stored", error=str(error))
                await self._stop_signal.interruptible(lambda: self._parts.context.clock.sleep(_REACH_PAUSE_S))
        await self._stop_signal.until_stop_requested()

    def _child_run(self) -> ChildRun | ShardLanes:
        parts, held, policy = self._parts, self._held, self._restart_policy
        if parts.settings.concurrency.lanes_of(held.lease.stream) > 1:
            from kcl_daemon.consumer.lanes import ShardLanes  # few shards have several

            return ShardLanes(
                parts=parts,
                held=held,
                stop_signal=self._stop_signal,
                memory=self._memory,
                log=self._log,
                restart_policy=policy,
            )
        return ChildRun(
            parts=parts,
            lane=self._lane,
            stop_signal=self._stop_signal,
            memory=self._memory,
            log=self._log,
            set_aside=policy.set_aside,
            poison_search=policy.poison_search,
        )

    async def _parents_finished(self) -> bool:
        reported = False
        while self._stop_signal.reason is StopReason.NONE:
            waiting = await self._unfinished_parents()
            if not waiting or self._begins_after_bound:
                self._memory.needed_since_ms = needed_since_ms(
                    self._held.lease.shard_id, self._finished_parents
                )
                self._held.progress.moved()
                return True
            (self._log.debug if reported else self._log.info)(
                "shard_waits_for_parents", parents=sorted(waiting)
            )
            reported = True
            self._parts.standby.dismiss(self._held.key)
            await self._stop_signal.interruptible(
                lambda: self._parts.shard_finished.wait(self._parts.context.timings.parents_s)
            )
        return False

    async def _stream_found(self) -> bool:
        """False if a stop comes first.

        A stream may have been deleted and created again: shards of the new one have the same names and must not be read for it.
        """
        lease, reported = self._held.lease, False
        if lease.stream is None:
            return True
        watch = self._parts.streams.of(lease).watch
        # The new stream rejects an old sequence number, but not a sentinel.
        within_s = _CONFIRMED_WITHIN_S if lease.checkpoint.is_sentinel else RECHECK_S
        while self._stop_signal.reason is StopReason.NONE:
            try:
                if await watch.confirm(within_s) is StreamState.THERE:
                    if reported:
                        self._held.progress.moved()
                    return True
                why = "it is not there"
            except AwsError as error:
                why = str(error)
            self._held.progress.waits(WaitReason.STREAM, why)
            (self._log.debug if reported else self._log.info)("shard_waits_for_stream", why=why)
            reported = True
            await self._stop_signal.interruptible(lambda: self._parts.context.clock.sleep(_STREAM_PAUSE_S))
        return False

    async def _unfinished_parents(self) -> frozenset[ShardId]:
        parents: dict[ShardId, Lease | None] = {}
        try:
            # A shard of a table's next stream has as many parents as the one before had shards.
            for shard_id in sorted(self._held.lease.parent_shard_ids - self._finished_parents):
                row = await self._parts.table.get(self._held.lease.key_of(shard_id))
                parent = parents[shard_id] = None if row is None else lease_from_row(row)
                if parent is not None and parent.is_finished:
                    self._finished_parents.add(shard_id)
                elif parent is not None and self._parts.until_ms is None:
                    break
        except (AwsError, ValueError) as error:
            self._held.progress.waits(WaitReason.PARENT, str(error))
            self._log.warning("parents_unreadable", error=str(error))
            return self._held.lease.parent_shard_ids
        # Whatever comes after a shard that is at the bound came after it.
        self._begins_after_bound = any(
            parent is not None and self._is_at_bound(parent) for parent in parents.values()
        )
        unfinished = unfinished_parents(self._held.lease, parents)
        if unfinished:
            self._held.progress.waits(WaitReason.PARENT, ", ".join(sorted(unfinished)))
        return unfinished
