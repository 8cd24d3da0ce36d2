"""The port DeadLetters of one worker: slow now and then, and refusing now and then.

Owns nothing; what was stored is the checkers' business (`deliveries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio

from kcl_daemon.errors import Throttled, Unavailable
from kcl_daemon.records.dead_letter import DeadLetter
from tests.simulator.chance import Chance
from tests.simulator.faults.life import Life
from tests.simulator.loop import now
from tests.simulator.rules.deliveries import Deliveries

_SLOWEST_S: Final = 0.5
_REFUSED: Final = 0.1
_UNANSWERED: Final = 0.1


class SimDeadLetters:
    """A place that takes most letters, and none from one moment to another of `away_s`."""

    def __init__(
        self,
        life: Life,
        *,
        chance: Chance,
        deliveries: Deliveries,
        away_s: Sequence[tuple[float, float]] = (),
    ) -> None:
        self._away_s = away_s
        self._life = life
        self._chance = chance
        self._deliveries = deliveries

    async def store(self, dead_letter: DeadLetter) -> None:
        """As the port says."""
        await self._life.go_on()
        await anyio.sleep(self._chance.uniform(0.005, _SLOWEST_S))
        self._life.ensure_alive()
        if any(begin <= now() < end for begin, end in self._away_s):
            self._deliveries.seen["letter refused while the store was away"] += 1
            raise Unavailable("nobody is there", operation="SendMessage")
        if self._chance.happens(_REFUSED):
            raise Throttled("too many", operation="SendMessage")
        self._deliveries.set_aside(
            dead_letter.shard_id,
            dead_letter.worker_id,
            dead_letter.record,
            dead_letter.cause,
            stream=dead_letter.stream_name,
        )
        if self._chance.happens(_UNANSWERED):
            raise Unavailable("no answer", operation="SendMessage")
