"""What follows when a child has failed: another child, the release of the lease, or the end of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcl_daemon.config.children import ChildFailurePolicy, PoisonRecordPolicy
from kcl_daemon.consumer.child_session import Failed
from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.lane import Lane
from kcl_daemon.consumer.set_aside import SetAside
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.ports import Log

if TYPE_CHECKING:
    from kcl_daemon.consumer.poison import PoisonSearch


class RestartPolicy:
    """`degraded`: release the lease because its children kept failing."""

    def __init__(self, *, parts: ConsumerContext, lane: Lane, stop_signal: StopSignal, log: Log) -> None:
        self._parts = parts
        self._lane = lane
        self._stop_signal = stop_signal
        self._log = log
        self._settings = parts.settings.failures
        self._failures = 0
        self.degraded = False
        self.set_aside = SetAside(parts=parts, lane=lane, stop_signal=stop_signal, log=log)
        self.poison_search: PoisonSearch | None = None
        if self._settings.poison is not PoisonRecordPolicy.RETRY:
            from kcl_daemon.consumer.poison import PoisonSearch

            self.poison_search = PoisonSearch(
                parts=parts, lane=lane, stop_signal=stop_signal, log=log, set_aside=self.set_aside
            )

    async def cool_down(self) -> None:
        rest = self._parts.degraded.rest(self._lane.lease)
        if rest is None:
            return
        failures, cooldown_s = rest
        self._lane.progress.continue_after(failures)
        if cooldown_s:
            self._log.info("shard_restart_delayed", for_s=round(cooldown_s, 1))
            await self._pause(cooldown_s)

    async def continue_after(self, failed: Failed) -> bool:
        """False if no other child should start here."""
        progressed, narrowed = failed.progressed, False
        if self.poison_search is not None:
            found = await self.poison_search.judge(failed.error, refused=failed.refused, stderr=failed.stderr)
            progressed, narrowed = progressed or found.progressed, found.narrowed
        if progressed:
            self._failures = 0
        if not narrowed:
            self._failures += 1
        self._log_failure(failed)
        self._report_failing_starts(failed)
        if self._settings.policy is ChildFailurePolicy.EXIT:
            self._parts.on_fatal(failed.error)
            return False
        if 0 < self._settings.failures_most <= self._failures and self._stop_signal.reason is StopReason.NONE:
            self._release()
            return False
        await self._back_off(1 if narrowed else self._failures)
        return True

    def _log_failure(self, failed: Failed) -> None:
        log_event = self._log.error if isinstance(failed.error, ChildStartFailed) else self._log.warning
        log_event(
            "child_failed",
            error=str(failed.error),
            failures=self._failures,
            restart_from=str(self._lane.checkpoint),
        )

    def _report_failing_starts(self, failed: Failed) -> None:
        count = self._parts.startup_failures.failed(self._lane.key)
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
        self._parts.degraded.released(self._lane.lease, self._lane.progress.failure_history)
        self._log.error(
            "shard_degraded",
            failures=self._failures,
            checkpoint=str(self._lane.checkpoint),
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
        self._lane.progress.pauses(seconds)
        with self._parts.context.clock.move_on_after(seconds):
            await self._stop_signal.until_stop_requested()
