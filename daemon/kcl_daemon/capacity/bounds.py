"""What holds a shard back, from what its worker sees of it."""

from __future__ import annotations

from typing import Final

from kcl_daemon.capacity.figures import Bound, ShardObservation

AT_TIP_S: Final = 5.0
"""Reading waits a second or two between reads, so a shard that keeps up is a few seconds behind."""
_FULL_CPU: Final = 0.9
_BUSY: Final = 0.8
_WAITS: Final = 0.3


def bound_of(seen: ShardObservation) -> Bound:
    """First what holds it on purpose or by failures, then the host, then the shard itself."""
    held = _held(seen)
    if held is not None:
        return held
    if seen.behind_s is None:
        return Bound.UNKNOWN
    if seen.behind_s < AT_TIP_S:
        return Bound.NOTHING
    if seen.host_cpu is not None and seen.host_cpu >= _FULL_CPU and seen.refused < _WAITS:
        return Bound.HOST_CPU
    return _own(seen)


def _held(seen: ShardObservation) -> Bound | None:
    held = {
        Bound.PAUSE: seen.paused,
        Bound.FAILING: seen.failing,
        Bound.REFUSED: seen.not_read,
        Bound.HANGING: seen.hanging,
        Bound.DOWNSTREAM: seen.downstream,
        Bound.LIMIT: seen.limited,
    }
    return next((bound for bound, is_so in held.items() if is_so), None)


def _own(seen: ShardObservation) -> Bound:
    if seen.hot_lane:
        return Bound.HOT_KEY
    if seen.refused >= _WAITS and seen.refused >= seen.memory:
        return Bound.READ_QUOTA
    if seen.memory >= _WAITS:
        return Bound.MEMORY
    if seen.busy >= _BUSY and seen.host_cpu is not None:
        return Bound.CHILD
    return Bound.UNKNOWN
