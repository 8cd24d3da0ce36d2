"""Looking at the shards from outside their conversations: whether everything has been read.

Pure but for telling. Times are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kcl_spark.control import Tell
from kcl_spark.conversation import ShardState
from kcl_spark.positions import Position

QUIET_S: Final = 5.0


class CaughtUp:
    """Whether everything that the stream has, has been read and committed, for a while.

    The while is there for shards that have yet to come: child shards start a moment after their parents' end.

    Args:
        states: of every shard that is or was served.
        committed: of a shard, by all queries.
        mark: the last record of a shard that arrived.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[ShardState]],
        committed: Callable[[str], Position],
        mark: Callable[[str], Position],
    ) -> None:
        self._states = states
        self._committed = committed
        self._mark = mark
        self._since_s: float | None = None
        self._seen: frozenset[str] = frozenset()
        self._told = False

    def is_so(self, now_s: float) -> bool:
        """Whether it is so now and has been for long enough."""
        states = self._states()
        shards = frozenset(state.shard_id for state in states)
        done = bool(states) and all(self._is_done(state) for state in states)
        if not done or shards != self._seen:
            self._seen = shards
            self._since_s = now_s if done else None
            return False
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s >= QUIET_S

    def tell_once(self, tell: Tell) -> None:
        """Tell the daemon, once: it stops then."""
        if not self._told:
            self._told = True
            tell("info", "caught_up", shards=len(self._seen))

    def _is_done(self, state: ShardState) -> bool:
        if state.ended:
            return True
        done = max(self._committed(state.shard_id), state.checkpoint)  # as conversations see it
        return state.behind_ms == 0 and done >= self._mark(state.shard_id)
