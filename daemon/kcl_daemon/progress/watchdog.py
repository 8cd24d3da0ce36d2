"""Looks at every lease that this worker works on, and says where one does not get on; ends children that are stuck.

Owns what was said, the rates, and how late the event loop is. Knows nothing of AWS or of processes: it goes by the
records on the board (`rules`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.ports import Clock, Log
from kcl_daemon.progress.board import Board, Watched
from kcl_daemon.progress.cause import Cause
from kcl_daemon.progress.rules import ADVICE, Limits, Say, Seen, Told, child_stuck_s, judge, see

TICK_S: Final = 2.0
_LATE_S: Final = 1.0
_LATE_AGAIN_S: Final = 60.0
# After a pause of the whole process everything seems to have stood still; so long it may take to get on again. For that
# time the pause is added to every limit, no more: short ones that come again and again must not keep all from being judged.
_COME_TO_S: Final = 60.0
# Of the fail-over time: a lease that is renewed as it should be is at most half as old.
_RENEWAL_LATE: Final = 0.7
_RATE_WINDOW_S: Final = 10.0


@dataclass(slots=True)
class _Rate:
    """Bytes done at the beginning of the last whole window, and of the one under way."""

    before_s: float
    before_bytes: int
    since_s: float
    since_bytes: int


class Watchdog:
    """The watchdog of one worker.

    Args:
        board: what it looks at.
        limits: of the rules.
        failover_s: after this long without a renewal a lease is lost.
        clock: for the ticks.
        log: for what does not get on.

    Attributes:
        loop_lag_s: by how much the last tick came too late.
    """

    def __init__(self, *, board: Board, limits: Limits, failover_s: float, clock: Clock, log: Log) -> None:
        self.board = board
        self.limits = limits
        self.loop_lag_s = 0.0
        self._renewal_late_s = _RENEWAL_LATE * failover_s
        self._clock = clock
        self._log = log
        self._told: dict[LeaseKey, tuple[Watched, Told]] = {}
        self._rates: dict[LeaseKey, _Rate] = {}
        self._late_told_s: float | None = None
        self._lags: deque[tuple[float, float]] = deque()
        self._renewals_late = False

    async def run(self) -> None:
        """Look at every tick; for ever. Cancellable at any point."""
        while True:
            due_s = self._clock.monotonic() + TICK_S
            await self._clock.sleep(TICK_S)
            self.tick(lag_s=max(0.0, self._clock.monotonic() - due_s))

    def tick(self, *, lag_s: float) -> None:
        """One look.

        Args:
            lag_s: by how much it comes too late.
        """
        now_s = self._clock.monotonic()
        self._notice_lag(lag_s, now_s)
        patience_s = self._patience_s(now_s)
        shards = self.board.shards
        self._forget_the_gone(shards)
        for watched in shards:
            self._measure(watched, now_s)
            self._look(watched, now_s, patience_s)
        self._look_at_renewals(shards, now_s)

    def is_stalled(self, watched: Watched) -> bool:
        """Whether the log has said that it does not get on, and it has not since."""
        told = self._told.get(watched.key)
        return told is not None and told[0] is watched

    def bytes_per_s(self, key: LeaseKey) -> float:
        """What its child got done in the last ten to twenty seconds."""
        rate = self._rates.get(key)
        if rate is None or rate.since_s <= rate.before_s:
            return 0.0
        return (rate.since_bytes - rate.before_bytes) / (rate.since_s - rate.before_s)

    def _forget_the_gone(self, shards: tuple[Watched, ...]) -> None:
        up = {watched.key for watched in shards}
        for known in (self._told, self._rates):
            for key in known.keys() - up:
                del known[key]

    def _look(self, watched: Watched, now_s: float, patience_s: float) -> None:
        known = self._told.get(watched.key)
        told = known[1] if known is not None and known[0] is watched else None
        seen = see(watched.progress, self.limits, now_s, patience_s=patience_s)
        told, say = judge(seen, told, now_s)
        if told is None:
            self._told.pop(watched.key, None)
        else:
            self._told[watched.key] = (watched, told)
        if say is not Say.NOTHING:
            self._say(say, watched, seen)
        worked_s = child_stuck_s(watched.progress, self.limits, now_s, patience_s=patience_s)
        if worked_s is not None:
            self._log_of(watched).warning(
                "child_stuck",
                action=watched.progress.doing,
                worked_s=round(worked_s, 1),
                advice="it is stopped and replaced because of childStuckTimeoutMillis; the new child begins at "
                "the checkpoint",
            )
            watched.progress.child_stuck(worked_s)

    def _say(self, say: Say, watched: Watched, seen: Seen) -> None:
        log = self._log_of(watched)
        if say is Say.MOVES_AGAIN:
            log.info("shard_moves_again", cause=seen.cause.value)
            return
        # The first word may be about something that heals by itself. That of a parent is never a fault of this shard.
        cause = seen.stalled_by or seen.cause
        is_lasting = say is Say.STILL_STALLED and cause is not Cause.PARENT
        (log.error if is_lasting else log.warning)(
            "shard_stalled",
            cause=cause.value,
            detail=seen.detail,
            waited_s=round(seen.waits_s, 1),
            no_progress_s=round(seen.idle_s, 1),
            advice=ADVICE[cause],
        )

    def _log_of(self, watched: Watched) -> Log:
        lease = watched.lease
        named = {} if lease.stream is None else {"stream": str(lease.stream)}
        child = watched.progress.child
        return self._log.bind(
            **named, shard_id=lease.shard_id, **({} if child is None else {"pid": child.pid})
        )

    def _measure(self, watched: Watched, now_s: float) -> None:
        done = watched.progress.data_bytes
        rate = self._rates.get(watched.key)
        if rate is None or done < rate.since_bytes:
            self._rates[watched.key] = _Rate(now_s, done, now_s, done)
        elif now_s - rate.since_s >= _RATE_WINDOW_S:
            rate.before_s, rate.before_bytes = rate.since_s, rate.since_bytes
            rate.since_s, rate.since_bytes = now_s, done

    def _notice_lag(self, lag_s: float, now_s: float) -> None:
        self.loop_lag_s = lag_s
        if lag_s <= _LATE_S:
            return
        self._lags.append((now_s, lag_s))
        if self._late_told_s is None or now_s - self._late_told_s >= _LATE_AGAIN_S:
            self._late_told_s = now_s
            self._log.warning(
                "event_loop_late",
                late_s=round(lag_s, 1),
                advice="the daemon did not run for this long: was it paused, or is there too little CPU? "
                "Leases that are not renewed in time are lost",
            )

    def _patience_s(self, now_s: float) -> float:
        """For how long the daemon did not run lately."""
        while self._lags and now_s - self._lags[0][0] >= _COME_TO_S:
            self._lags.popleft()
        return sum(lag_s for _, lag_s in self._lags)

    def _look_at_renewals(self, shards: tuple[Watched, ...], now_s: float) -> None:
        late = [watched for watched in shards if watched.lost is None and self._is_late(watched, now_s)]
        if bool(late) == self._renewals_late:
            return
        self._renewals_late = bool(late)
        if late:
            self._log.warning(
                "leases_not_renewed",
                count=len(late),
                oldest_s=round(max(now_s - watched.moved_s for watched in late), 1),
                advice="they are lost if this continues: check the capacity of the lease table and the network",
            )
        else:
            self._log.info("leases_renewed_again")

    def _is_late(self, watched: Watched, now_s: float) -> bool:
        return now_s - watched.moved_s > self._renewal_late_s
