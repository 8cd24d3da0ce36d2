from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcl_daemon.capacity.figures import Alternative, StreamCapacity
from kcl_daemon.capacity.picture import HOST_BINDS, Picture, SeenShard, longest_s, peak, quickest_s
from kcl_daemon.text import about, counted

_MOST: Final = 8
_FULL: Final = 0.95
"""A little is left for others on the host."""


def alternatives(picture: Picture, whole: StreamCapacity) -> tuple[Alternative, ...]:
    """One worker fewer, and more, up to the number of leases; none if not all is known."""
    if picture.state.silent or picture.untold or not picture.shards:
        return ()
    needs = sorted(
        (each.load.out_bytes * (picture.host_per_byte or 0.0) for each in picture.shards), reverse=True
    )
    found = ((workers, _drains_s(workers, picture, whole, needs)) for workers in _numbers(picture))
    return tuple(Alternative(workers, drains_s, _words(workers, drains_s)) for workers, drains_s in found)


def _numbers(picture: Picture) -> Iterable[int]:
    live, most = picture.state.live, picture.leases
    some = {live - 1, *range(live + 1, min(live + _MOST, most) + 1), most}
    return sorted(each for each in some if 0 < each <= most and each != live)


def _drains_s(workers: int, picture: Picture, whole: StreamCapacity, needs: list[float]) -> float | None:
    live, late = max(picture.state.live, 1), picture.late
    busiest = peak(needs, workers)
    if not late:
        return 0.0 if workers > live or busiest <= _FULL else None
    by_host = [each for each in late if each.load.bound in HOST_BINDS]
    others = [each for each in late if each.load.bound not in HOST_BINDS]
    if workers < live and not by_host and busiest > _FULL:
        by_host, others = others, []
    share = peak(needs, live) / max(busiest, 1e-9)
    if not by_host or share == 1 or (workers > live and whole.binds not in HOST_BINDS):
        return whole.drains_s
    others_s = longest_s(others)
    return None if others_s is None else _scaled(share, by_host, others_s, whole.drains_s)


def _scaled(share: float, shards: list[SeenShard], others_s: float, now_s: float | None) -> float | None:
    then_s, plain_s = _at(share, shards), _at(1.0, shards)
    if then_s is not None and plain_s and now_s:
        then_s *= now_s / plain_s
    return None if then_s is None else max(then_s, others_s)


def _at(share: float, shards: list[SeenShard]) -> float | None:
    backlog = sum(each.backlog for each in shards)
    left = sum(each.load.out_bytes * share - each.arrives for each in shards)
    return max(backlog / left, *(quickest_s(each) for each in shards)) if left > 0 else None


def _words(workers: int, drains_s: float | None) -> str:
    name = counted(workers, "worker")
    if drains_s is None:
        return f"{name}: will not catch up"
    return f"{name}: done in {about(drains_s)}" if drains_s else f"{name}: enough to keep up"
