"""The clock of one simulated worker: its own start, its own speed, its own idea of the date.

Owns the translation between virtual time and what this worker's clock shows. Knows nothing of who reads it.
"""

from __future__ import annotations

from typing import Final

from anyio import CancelScope

from tests.simulator.chance import Chance
from tests.simulator.faults.life import Life
from tests.simulator.loop import current_loop, now
from tests.simulator.ordered import scope_until

# The true date at virtual second 0, epoch seconds.
EPOCH_S: Final = 1_700_000_000.0


class SimClock:
    """Port Clock.

    Args:
        life: the process this clock belongs to.
        wall_skew_s: what its date is ahead of the true one.
        monotonic_start_s: what `monotonic` shows at virtual second 0.
        drift: how much faster than true time it runs: 0.01 is one second in a hundred.
    """

    def __init__(
        self, life: Life, *, wall_skew_s: float = 0.0, monotonic_start_s: float = 0.0, drift: float = 0.0
    ) -> None:
        self._life = life
        self._wall_skew_s = wall_skew_s
        self._monotonic_start_s = monotonic_start_s
        self._speed = 1.0 + drift
        self._ahead_most_s = max(0.0, wall_skew_s)

    def monotonic(self) -> float:
        """Seconds by this worker's clock."""
        return self._monotonic_start_s + current_loop().now_s * self._speed

    def wall_ms(self) -> int:
        """Epoch milliseconds by this worker's clock."""
        return int((EPOCH_S + now() * self._speed + self._wall_skew_s) * 1000)

    def passed_ms(self) -> int:
        """Of the service, whose date is the true one."""
        return int((EPOCH_S + now()) * 1000)

    @property
    def ahead_s(self) -> float:
        """How far its date is ahead of the true one now."""
        return now() * (self._speed - 1.0) + self._wall_skew_s

    @property
    def ahead_most_s(self) -> float:
        """How far it was ahead at most; between two jumps it only gains, or only loses."""
        return max(self._ahead_most_s, self.ahead_s)

    def step_wall(self, seconds: float) -> None:
        """Jump with the date, as after a time synchronisation."""
        self._ahead_most_s = self.ahead_most_s
        self._wall_skew_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Wait that long by this worker's clock."""
        self._life.ensure_alive()
        await current_loop().pause(seconds / self._speed)
        self._life.ensure_alive()

    def move_on_after(self, seconds: float | None) -> CancelScope:
        """A scope that ends after that long by this worker's clock."""
        if seconds is None:
            return CancelScope()
        return scope_until(now() + max(0.0, seconds) / self._speed)


def drawn_clock(chance: Chance, life: Life, *, skew_s: float, drift: float) -> SimClock:
    """A clock that is wrong by up to these amounts, either way."""
    return SimClock(
        life,
        wall_skew_s=chance.uniform(-skew_s, skew_s),
        monotonic_start_s=chance.uniform(0.0, 1e6),
        drift=chance.sign() * chance.uniform(drift / 100, drift) if drift else 0.0,
    )
