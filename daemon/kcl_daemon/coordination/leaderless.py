"""For how long a fleet has been without a leader, as one worker sees it; it warns, and has the figure for metrics.

Owns the last sign of life of any leader. Knows nothing of locks.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.ports import Clock, Log

# So many lease durations without a leader are no fail-over any more.
_WORTH_A_WARNING: Final = 2.0


class Leaderless:
    """Counts from the last time that somebody was seen to lead."""

    def __init__(self, *, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._led_s = clock.monotonic()
        self._warn_at_s = 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since a leader last gave a sign of life, or since we began to look."""
        return self._clock.monotonic() - self._led_s

    def led(self, leader: str) -> None:
        """Somebody leads: a heartbeat was seen, or we lead ourselves."""
        if self._warn_at_s:
            self._log.info("fleet_has_leader_again", leader=leader, after_s=round(self.silent_s, 1))
        self._led_s, self._warn_at_s = self._clock.monotonic(), 0.0

    def began(self) -> None:
        """We begin to look; what was before is not known."""
        self._led_s, self._warn_at_s = self._clock.monotonic(), 0.0

    def look(self, lease_s: float) -> None:
        """Warn after two durations (`lease_s`, of the leader's lock), and again after each two more."""
        silent_s, period_s = self.silent_s, _WORTH_A_WARNING * lease_s
        if silent_s < max(self._warn_at_s, period_s):
            return
        self._warn_at_s = silent_s + period_s
        self._log.warning(
            "fleet_without_leader",
            silent_s=round(silent_s, 1),
            advice="leases are not assigned; find out why no worker can write the row of the leader lock",
        )
