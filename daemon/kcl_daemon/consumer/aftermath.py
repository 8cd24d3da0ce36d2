"""What follows when a child has failed: another one after a pause, another worker, or the end of the daemon.

Owns the count of failures in a row and the pauses. Which record is to blame is the matter of `scrutiny`.
"""

from __future__ import annotations

from kcl_daemon.config.failure_settings import ChildFailurePolicy, PoisonRecordPolicy
from kcl_daemon.consumer.incarnation import Failed
from kcl_daemon.consumer.interrupts import Call, Interrupts
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.consumer.scrutiny import Finding, Scrutiny
from kcl_daemon.coordination.keeper import HeldLease
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.ports import Log


class Aftermath:
    """Of one lease.

    Args:
        parts: settings and ports.
        held: the lease.
        interrupts: end every pause.
        log: of the shard.

    Attributes:
        scrutiny: looks for records that make children fail; None where nobody wants to know.
        degraded: whether the lease is to be released because its children kept failing.
    """

    def __init__(self, *, parts: ConsumerParts, held: HeldLease, interrupts: Interrupts, log: Log) -> None:
        self._parts = parts
        self._held = held
        self._interrupts = interrupts
        self._log = log
        self._settings = parts.settings.failures
        self._failures = 0
        self.degraded = False
        self.scrutiny: Scrutiny | None = None
        if self._settings.poison is not PoisonRecordPolicy.RETRY:
            self.scrutiny = Scrutiny(parts=parts, held=held, interrupts=interrupts, log=log)

    async def rest(self) -> None:
        """Wait before the first child, where this worker has released the lease for its failures a moment ago."""
        before = self._parts.degraded.failures(self._held.lease)
        if before is not None:
            self._held.progress.goes_on(before)
        rest_s = self._parts.degraded.rest_s(self._held.lease)
        if rest_s:
            self._log.info("shard_rests", for_s=round(rest_s, 1))
            await self._pause(rest_s)

    async def goes_on(self, failed: Failed) -> bool:
        """Say what happened, and wait; False where no other child is to be started here."""
        found = Finding()
        if self.scrutiny is not None:
            found = await self.scrutiny.judge(failed.error, refused=failed.refused, stderr=failed.stderr)
        if failed.progressed or found.progressed:
            self._failures = 0
        if not found.closer:
            self._failures += 1
        self._tell(failed)
        self._tell_of_all(failed)
        if self._settings.policy is ChildFailurePolicy.EXIT:
            self._parts.on_fatal(failed.error)
            return False
        if 0 < self._settings.failures_most <= self._failures and self._interrupts.call is Call.NONE:
            self._release()
            return False
        await self._back_off(1 if found.closer else self._failures)
        return True

    def _tell(self, failed: Failed) -> None:
        tell = self._log.error if isinstance(failed.error, ChildStartFailed) else self._log.warning
        tell(
            "child_failed",
            error=str(failed.error),
            failures=self._failures,
            restart_from=str(self._held.lease.checkpoint),
        )

    def _tell_of_all(self, failed: Failed) -> None:
        count = self._parts.beginnings.failed(self._held.key)
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
        self._parts.degraded.released(self._held.lease, self._held.progress.past_failures)
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
        """Wait before the next child: twice as long after each failure in a row, never in step with other shards."""
        settings = self._parts.settings.child
        most_ms = min(settings.backoff_first_ms * 2 ** min(failures - 1, 20), settings.backoff_most_ms)
        await self._pause(most_ms / 1000 * self._parts.randomness.uniform(0.5, 1.0))

    async def _pause(self, seconds: float) -> None:
        self._held.progress.pauses(seconds)
        with self._parts.clock.move_on_after(seconds):
            await self._interrupts.until_called()
