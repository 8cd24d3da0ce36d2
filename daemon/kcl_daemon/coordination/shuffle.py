"""The leader by shuffle, as this worker sees it now (KCL: DeterministicShuffleShardSyncLeaderDecider).

Owns the latest verdict and how old it is; `leases.shuffle_leader` judges. Reads nothing: whoever has read the leases
shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.shuffle_leader import Verdict, look_again_after_s, verdict
from kcl_daemon.ports import Clock, Log


class ShuffleLeader:
    """Whether this worker leads a fleet that follows KCL 2.x."""

    def __init__(self, *, worker_id: WorkerId, clock: Clock, log: Log) -> None:
        self._me = worker_id
        self._clock = clock
        self._log = log
        self._verdict: Verdict | None = None
        self._looks = 0
        self._looked_s = 0.0

    @property
    def leads(self) -> bool:
        """By the latest verdict; False before the first."""
        return self._verdict is not None and self._verdict.leads

    def look(self, leases: Iterable[Lease]) -> bool:
        """All leases as they were just read, judged if it is time to; whether this worker begins to lead."""
        now_s = self._clock.monotonic()
        if self._looks and now_s - self._looked_s < look_again_after_s(self._looks):
            return False
        before, self._verdict = self._verdict, verdict(self._me, leases)
        self._looks, self._looked_s = self._looks + 1, now_s
        if before is None or before.leads != self._verdict.leads:
            self._log.info("leader_by_shuffle", leads=self._verdict.leads, reason=self._verdict.reason)
        return self._verdict.leads and not (before is not None and before.leads)

    def forget(self) -> None:
        """What is not watched goes stale: nobody leads before the next look."""
        self._verdict, self._looks = None, 0
