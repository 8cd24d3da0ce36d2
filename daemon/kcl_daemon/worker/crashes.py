"""How long a lease rests here after its consumer crashed, which is a fault of ours.

Given up at once it would come back with the leader's next look, and crash again: children started and ended for nothing,
and a traceback every few seconds. Owns the count and the growth; the wait itself is the worker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.ports import Clock

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
# A consumer that has worked for so long has got past what it crashed at before.
_FORGOTTEN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Crash:
    at_s: float
    rest_s: float


class Crashes:
    """Of all consumers of one worker.

    Args:
        clock: for the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[LeaseKey, _Crash] = {}

    def rest_s(self, key: LeaseKey) -> float:
        """The consumer of this lease has crashed now; how long to wait before the lease is given up.

        Twice as long as the last time, up to a minute; once ten minutes have passed since then it begins anew.
        """
        now_s = self._clock.monotonic()
        self._last = {each: last for each, last in self._last.items() if now_s < last.at_s + _FORGOTTEN_S}
        last = self._last.get(key)
        rest_s = FIRST_S if last is None else min(2 * last.rest_s, MOST_S)
        self._last[key] = _Crash(now_s, rest_s)
        return rest_s
