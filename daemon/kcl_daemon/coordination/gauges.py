"""Looks at the parts of a worker in each renewal period and tells what they are like: held leases, leader, loop.

Owns the pace of the looks. Counts nothing that happens in between; that is told where it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.renewals import lease_labels
from kcl_daemon.coordination.shuffle import ShuffleLeader
from kcl_daemon.coordination.versions import Versions
from kcl_daemon.leases.client_version import ClientVersion
from kcl_daemon.metrics import kcl, kcl_shards, ours
from kcl_daemon.ports import Clock
from kcl_daemon.ports_metrics import Meters
from kcl_daemon.progress.rules import lag_s
from kcl_daemon.progress.watchdog import Watchdog

_BY_SHUFFLE = frozenset({ClientVersion.INIT, ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X})


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked at.

    Args:
        keeper: of the leases.
        elector: the one by the lock.
        shuffle: whether this worker leads by shuffle.
        versions: tell which of the two counts.
        watchdog: of the shards.
    """

    keeper: LeaseKeeper
    elector: Elector
    shuffle: ShuffleLeader
    versions: Versions
    watchdog: Watchdog


class Gauges:
    """The loop.

    Args:
        watched: the parts.
        may_change: whether this application may change from one kind of leader to the other.
        in_hand: bytes that readers have in hand.
        period_s: from one look to the next.
        meters: told of all.
        clock: for the looks.
    """

    def __init__(
        self,
        watched: Watched,
        *,
        may_change: bool,
        in_hand: Callable[[], int],
        period_s: float,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._watched = watched
        self._may_change = may_change
        self._in_hand = in_hand
        self._period_s = period_s
        self._meters = meters
        self._clock = clock

    async def run(self) -> None:
        """Look in each period; for ever."""
        while True:
            asked_s = self._clock.monotonic()
            await self._clock.sleep(self._period_s)
            self._meters.add(ours.LOOP_LAG, max(0.0, self._clock.monotonic() - asked_s - self._period_s))
            self.look()

    def look(self) -> None:
        """One look."""
        watched, add = self._watched, self._meters.add
        held = watched.keeper.held
        watched.keeper.renewals.tick(len(held))
        now_s = self._clock.monotonic()
        add(ours.LEASE_AGE, max((now_s - each.moved_s for each in held.values()), default=0.0))
        add(ours.IN_HAND, self._in_hand())
        by_shuffle = watched.versions.version in _BY_SHUFFLE
        leads = watched.shuffle.leads if by_shuffle else watched.elector.is_leader
        add(kcl.IS_LEADER, float(leads))
        if self._may_change:
            add(kcl.DECIDER_SHUFFLE if by_shuffle else kcl.DECIDER_LOCK)
        if not by_shuffle:
            add(ours.LEADERLESS, watched.elector.leaderless_s)
        self._look_at_shards(now_s)

    def _look_at_shards(self, now_s: float) -> None:
        watchdog, add = self._watched.watchdog, self._meters.add
        for shard in watchdog.board.shards:
            behind_s = lag_s(shard.progress, watchdog.limits, now_s)
            if behind_s is not None:
                add(kcl_shards.PROCESS_BEHIND, behind_s, **lease_labels(shard.lease))
                add(kcl_shards.APPLICATION_BEHIND, behind_s)
