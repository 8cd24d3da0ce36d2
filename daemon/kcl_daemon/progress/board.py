"""The board: the leases that this worker works on now, and what its leader has decided lately.

Owns who is on it. Consumers put their lease up and take it down; the watchdog, the metrics and the page look.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.progress.progress import Progress

_MOVES_MOST: Final = 100


class Watched(Protocol):
    """A held lease, as far as it is watched; one that was lost may still have a child to end."""

    @property
    def key(self) -> LeaseKey:
        """Its lease key."""
        ...

    @property
    def lease(self) -> Lease:
        """As last known to be stored."""
        ...

    @property
    def moved_s(self) -> float:
        """Monotonic seconds just before the last write that took effect."""
        ...

    @property
    def lost(self) -> str | None:
        """Why it is not held any more, None while it is."""
        ...

    @property
    def progress(self) -> Progress:
        """How far it is."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """One lease given to somebody by this worker as leader.

    Args:
        at_s: monotonic seconds.
        key: of the lease.
        reason: in words.
    """

    at_s: float
    key: LeaseKey
    reason: str


class Board:
    """What this worker does now. Everything happens on the loop."""

    def __init__(self) -> None:
        self._up: dict[LeaseKey, Watched] = {}
        self._moves: deque[Decision] = deque(maxlen=_MOVES_MOST)

    def put_up(self, watched: Watched) -> None:
        """A consumer begins; one of the same lease that is about to end is not shown any more."""
        self._up[watched.key] = watched

    def take_down(self, watched: Watched) -> None:
        """Its consumer has ended."""
        if self._up.get(watched.key) is watched:
            del self._up[watched.key]

    def decided(self, key: LeaseKey, reason: str, at_s: float) -> None:
        """As leader we gave a lease to somebody."""
        self._moves.append(Decision(at_s, key, reason))

    @property
    def shards(self) -> tuple[Watched, ...]:
        """What is up now."""
        return tuple(self._up.values())

    @property
    def moves(self) -> tuple[Decision, ...]:
        """The last hundred decisions, newest first."""
        return tuple(reversed(self._moves))
