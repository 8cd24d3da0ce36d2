from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kcl_daemon.capacity.alternatives import alternatives
from kcl_daemon.capacity.figures import Bound, Capacity, CapacityTargets, FleetState, StreamCapacity
from kcl_daemon.capacity.picture import HOST_BINDS, Picture, SeenShard, by_stream, longest_s, picture_of
from kcl_daemon.capacity.wanted import decide
from kcl_daemon.capacity.words import sentence, unknown, why_of
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.text import counted

_HALF_LIFE_S: Final = 30.0
_NEVER: Final = 0.01
_OWN: Final = (Bound.CHILD, Bound.READ_QUOTA)


def estimate(
    state: FleetState, targets: CapacityTargets, previous: Capacity | None, *, by: WorkerId
) -> Capacity:
    """`previous`, perhaps of another leader, damps the result."""
    picture = picture_of(state, targets)
    former = {each.stream: each for each in previous.streams} if previous else {}
    of_stream = by_stream(picture.shards)
    names = sorted({name for name in state.leases.values() if name is not None})
    streams = tuple(
        _smooth(_capacity_of(name, of_stream.get(name, []), picture), former.get(name), picture, previous)
        for name in names
    )
    whole = _capacity_of(None, picture.shards, picture)
    whole = _smooth(whole, previous.whole if previous else None, picture, previous)
    choice = decide(picture, previous, whole.why)
    found = Capacity(
        state.now_ms, by, state.live, state.silent, choice.wanted, choice.reason, "", unknown(picture), whole, streams,
        alternatives(picture, whole), choice.since_ms, choice.falls_since_ms, choice.rises, choice.turned_ms, targets,
    )  # fmt: skip
    return replace(found, sentence=sentence(found, choice.enough, picture))


def _capacity_of(stream: str | None, shards: Sequence[SeenShard], picture: Picture) -> StreamCapacity:
    leases = picture.state.leases
    count = len(leases) if stream is None else sum(name == stream for name in leases.values())
    level_s = picture.targets.level_s
    known = [each.behind_s for each in shards if each.load.behind_s is not None]
    late = [each for each in shards if each.behind_s > level_s]
    slowest = max(late, key=_takes, default=None)
    binds, why = _binds(late, slowest, count, picture)
    is_hot = late and len(late) <= max(count // 4, 1) and len(late) < count
    return StreamCapacity(
        stream, count, max(known, default=None), slowest.load.speed if slowest else _speed(shards), longest_s(shards), binds,
        why, sum(each.load.in_bytes for each in shards), sum(each.load.out_bytes for each in shards),
        tuple(each.load.key for each in late) if is_hot else (),
    )  # fmt: skip


def _takes(shard: SeenShard) -> tuple[float, float]:
    return float("inf") if shard.drains_s is None else shard.drains_s, shard.behind_s


def _speed(shards: Sequence[SeenShard]) -> float | None:
    furthest = max(shards, key=lambda each: each.behind_s, default=None)
    return furthest.load.speed if furthest else None


def _binds(
    late: Sequence[SeenShard], slowest: SeenShard | None, count: int, picture: Picture
) -> tuple[Bound, str]:
    if slowest is None:
        return Bound.NOTHING, "all shards are within the service level"
    binds = slowest.load.bound
    same = sorted((each for each in late if each.load.bound is binds), key=lambda each: each.load.key)
    if binds in HOST_BINDS and picture.state.live >= picture.leases:
        return Bound.SHARDS, f"each shard has a worker to itself, and {why_of(binds, same)}"
    own = [each for each in late if each.load.bound in _OWN]
    if 1 < count == len(own):
        return Bound.SHARDS, f"each of the {count} shards is held back by itself: {_counts(own)}"
    return binds, why_of(binds, same)


def _counts(shards: Sequence[SeenShard]) -> str:
    found = {bound: sum(each.load.bound is bound for each in shards) for bound in _OWN}
    words = {Bound.CHILD: "its child works all the time", Bound.READ_QUOTA: "Kinesis gives 2 MiB a second"}
    return ", ".join(
        f"{words[bound]} ({counted(number, 'shard')})" for bound, number in found.items() if number
    )


def _smooth(
    now: StreamCapacity, former: StreamCapacity | None, picture: Picture, previous: Capacity | None
) -> StreamCapacity:
    """The speed becomes that of the shard that takes longest, on average until it has drained."""
    level_s = picture.targets.level_s
    if now.behind_s is None or now.behind_s <= level_s or now.speed is None:
        return now
    gains = (now.behind_s - level_s) / now.drains_s if now.drains_s else min(now.speed - 1, 0.0)
    if _goes_on(now, former, picture, previous) and former and former.speed is not None and previous:
        kept = 0.5 ** (max(picture.state.now_ms - previous.at_ms, 0) / 1000 / _HALF_LIFE_S)
        gains += (former.speed - 1 - gains) * kept
    drains_s = (now.behind_s - level_s) / gains if gains > _NEVER else None
    return replace(now, speed=max(1 + gains, 0.0), drains_s=drains_s)


def _goes_on(
    now: StreamCapacity, former: StreamCapacity | None, picture: Picture, previous: Capacity | None
) -> bool:
    return (
        former is not None
        and previous is not None
        and previous.workers == picture.state.live
        and former.binds is now.binds
        and (former.behind_s or 0.0) > picture.targets.level_s
    )
