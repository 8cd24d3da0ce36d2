"""One held lease at work (KCL: ShardConsumer): waits for its parents, then keeps a child running.

After a failure, `RestartPolicy` starts another child, releases the lease, or ends the daemon.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.children import ChildFailurePolicy, PoisonRecordPolicy
from kcl_daemon.consumer.child_session import ChildRun, Failed, Finished, Stopped
from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.poison import PoisonSearch, SearchProgress
from kcl_daemon.errors import AwsError, ChildStartFailed
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.fleet.streams import RECHECK_S, StreamState
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.leases.row import lease_from_row
from kcl_daemon.ports import Log
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.retrieval.source import StartMemory
from kcl_daemon.shards.lineage import unfinished_parents


class RestartPolicy:
    """`degraded`: release the lease because its children kept failing."""

    def __init__(self, *, parts: ConsumerContext, held: HeldLease, stop_signal: StopSignal, log: Log) -> None:
        self._parts = parts
        self._held = held
        self._stop_signal = stop_signal
        self._log = log
        self._settings = parts.settings.failures
        self._failures = 0
        self.degraded = False
        self.poison_search: PoisonSearch | None = None
        if self._settings.poison is not PoisonRecordPolicy.RETRY:
            self.poison_search = PoisonSearch(parts=parts, held=held, stop_signal=stop_signal, log=log)

    async def cool_down(self) -> None:
        """Pause if this worker has just released the lease for its failures."""
        rest = self._parts.degraded.rest(self._held.lease)
        if rest is None:
            return
        failures, cooldown_s = rest
        self._held.progress.continue_after(failures)
        if cooldown_s:
            self._log.info("shard_restart_delayed", for_s=round(cooldown_s, 1))
            await self._pause(cooldown_s)

    async def continue_after(self, failed: Failed) -> bool:
        """False if no other child should start here."""
        found = SearchProgress()
        if self.poison_search is not None:
            found = await self.poison_search.judge(failed.error, refused=failed.refused, stderr=failed.stderr)
        if failed.progressed or found.progressed:
            self._failures = 0
        if not found.narrowed:
            self._failures += 1
        self._log_failure(failed)
        self._report_failing_starts(failed)
        if self._settings.policy is ChildFailurePolicy.EXIT:
            self._parts.on_fatal(failed.error)
            return False
        if 0 < self._settings.failures_most <= self._failures and self._stop_signal.reason is StopReason.NONE:
            self._release()
            return False
        await self._back_off(1 if found.narrowed else self._failures)
        return True

    def _log_failure(self, failed: Failed) -> None:
        log_event = self._log.error if isinstance(failed.error, ChildStartFailed) else self._log.warning
        log_event(
            "child_failed",
            error=str(failed.error),
            failures=self._failures,
            restart_from=str(self._held.lease.checkpoint),
        )

    def _report_failing_starts(self, failed: Failed) -> None:
        count = self._parts.startup_failures.failed(self._held.key)
        if count:
            self._log.error(
                "every_child_fails_at_start",
                failures=count,
                error=str(failed.error),
                stderr=failed.stderr[-1] if failed.stderr else None,
                advice="no child of this worker has answered `initialize` yet: read its stderr, and test the "
                "program with `kcl-daemon run-child`. Other shards will have the same problem",
            )

    def _release(self) -> None:
        self.degraded = True
        self._parts.degraded.released(self._held.lease, self._held.progress.failure_history)
        self._log.error(
            "shard_degraded",
            failures=self._failures,
            checkpoint=str(self._held.lease.checkpoint),
            rests_s=self._settings.degraded_ms / 1000,
            advice="its children keep failing on this host, so the lease is released and other hosts are "
            "preferred; read child_failed and child_stderr of this shard. If it fails everywhere, see "
            "poisonRecordPolicy",
        )

    async def _back_off(self, failures: int) -> None:
        """Doubles with each failure in a row; random, so that shards do not restart together."""
        settings = self._parts.settings.child
        most_ms = min(settings.backoff_first_ms * 2 ** min(failures - 1, 20), settings.backoff_most_ms)
        await self._pause(most_ms / 1000 * self._parts.context.randomness.uniform(0.5, 1.0))

    async def _pause(self, seconds: float) -> None:
        self._held.progress.pauses(seconds)
        with self._parts.context.clock.move_on_after(seconds):
            await self._stop_signal.until_stop_requested()


_STREAM_PAUSE_S: Final = 5.0
# Deleting and creating a stream takes longer.
_CONFIRMED_WITHIN_S: Final = 5.0


class ShardConsumer:
    """A failing child is replaced without effect on other shards."""

    def __init__(self, *, parts: ConsumerContext, held: HeldLease) -> None:
        self._parts = parts
        self._held = held
        self._stop_signal = StopSignal()
        self._memory = StartMemory()
        stream = held.lease.stream
        named = {} if stream is None else {"stream": str(stream)}
        self._log = parts.context.log.bind(**named, shard_id=held.lease.shard_id)
        self._restart_policy = RestartPolicy(
            parts=parts, held=held, stop_signal=self._stop_signal, log=self._log
        )
        held.on_change = self._lease_changed

    def request_stop(self) -> None:
        """Finish the batch, let the child checkpoint, release the lease. Idempotent."""
        self._stop_signal.request(StopReason.STOP)

    async def until_stop_requested(self) -> None:
        await self._stop_signal.until_stop_requested()

    def _lease_changed(self) -> None:
        self._stop_signal.request(StopReason.STOP if self._held.lost is None else StopReason.LEASE_LOST)

    async def run(self) -> None:
        """Run until the shard is finished or the lease is gone, and release the lease.

        A finished lease stays if the renewer keeps finished ones. Cancelled: the child is killed and nothing
        is written.
        """
        if self._held.next_owner is not None:
            self.request_stop()
        if await self._parents_finished():
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
        await self._restart_policy.cool_down()
        while await self._stream_found() and self._stop_signal.reason is StopReason.NONE:
            child_run = ChildRun(
                parts=self._parts,
                held=self._held,
                stop_signal=self._stop_signal,
                memory=self._memory,
                log=self._log,
                poison_search=self._restart_policy.poison_search,
            )
            match await child_run.run():
                case Finished():
                    self._log.info("shard_finished")
                    self._parts.shard_finished.fire()
                    return
                case Stopped():
                    return
                case Failed() as failed:
                    self._held.progress.failed(str(failed.error), failed.stderr)
                    if not await self._restart_policy.continue_after(failed):
                        return

    async def _parents_finished(self) -> bool:
        """False if a stop comes first."""
        reported = False
        while self._stop_signal.reason is StopReason.NONE:
            waiting = await self._unfinished_parents()
            if not waiting:
                self._held.progress.moved()
                return True
            (self._log.debug if reported else self._log.info)(
                "shard_waits_for_parents", parents=sorted(waiting)
            )
            reported = True
            await self._stop_signal.interruptible(
                lambda: self._parts.shard_finished.wait(self._parts.context.timings.parents_s)
            )
        return False

    async def _stream_found(self) -> bool:
        """Wait until the stream exists; False if a stop comes first.

        A stream may have been deleted and created again. The new stream's shards have the same names and
        must not be read for the old one.
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
            for shard_id in sorted(self._held.lease.parent_shard_ids):
                row = await self._parts.table.get(self._held.lease.key_of(shard_id))
                parents[shard_id] = None if row is None else lease_from_row(row)
        except (AwsError, ValueError) as error:
            self._held.progress.waits(WaitReason.PARENT, str(error))
            self._log.warning("parents_unreadable", error=str(error))
            return self._held.lease.parent_shard_ids
        unfinished = unfinished_parents(self._held.lease, parents)
        if unfinished:
            self._held.progress.waits(WaitReason.PARENT, ", ".join(sorted(unfinished)))
        return unfinished
