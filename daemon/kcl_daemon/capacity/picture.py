"""What each shard needs of a host, and when it has drained, from the reports of all workers."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_daemon.capacity.figures import Bound, CapacityTargets, FleetState, ShardLoad, WorkerLoad
from kcl_daemon.leases.lease import LeaseKey, WorkerId

HOST_BINDS: Final = (Bound.HOST_CPU, Bound.MEMORY)
HELD: Final = (Bound.PAUSE, Bound.LIMIT, Bound.DOWNSTREAM, Bound.FAILING, Bound.HANGING, Bound.REFUSED)
QUOTA_BYTES: Final = 2 * 2**20
"""What Kinesis gives of a shard in a second."""
_NOT_TOLD: Final = (Bound.NOTHING, Bound.UNKNOWN)
"""At the tip, and right after a lease has moved, a low speed does not mean that much comes in."""
_SLOWEST: Final = 0.1
"""A shard that has just begun has such a speed, too, so it says little about what comes in."""


@dataclass(frozen=True, slots=True)
class SeenShard:
    """What was worked out of a shard.

    Args:
        arrives: bytes that came in a second, in the part of the stream that it works on.
        backlog: bytes until it has drained, if they came in evenly.
        drains_s: 0: it has.
    """

    load: ShardLoad
    stream: str | None
    worker: WorkerId
    arrives: float
    backlog: float
    drains_s: float | None

    @property
    def behind_s(self) -> float:
        return self.load.behind_s or 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """`host_per_byte`: the share of a host that a byte a second takes. `untold`: leases that no report counts."""

    state: FleetState
    targets: CapacityTargets
    shards: tuple[SeenShard, ...]
    host_per_byte: float | None
    untold: int

    @property
    def late(self) -> tuple[SeenShard, ...]:
        return tuple(each for each in self.shards if each.behind_s > self.targets.level_s)

    @property
    def has_all_lags(self) -> bool:
        is_told = not (self.state.silent or self.untold)
        return is_told and all(each.load.behind_s is not None for each in self.shards)

    @property
    def leases(self) -> int:
        return len(self.state.leases)


def picture_of(state: FleetState, targets: CapacityTargets) -> Picture:
    shards = tuple(each for load in state.loads for each in _of_worker(load, state.leases, targets.level_s))
    told = sum(len(load.shards) + load.left_out for load in state.loads)
    return Picture(state, targets, shards, _host_per_byte(state.loads), max(len(state.leases) - told, 0))


def _host_per_byte(loads: Iterable[WorkerLoad]) -> float | None:
    measured = [load for load in loads if load.cpu is not None]
    finished = sum(each.out_bytes for load in measured for each in load.shards)
    return sum(load.cpu or 0.0 for load in measured) / finished if finished else None


def _of_worker(
    load: WorkerLoad, leases: Mapping[LeaseKey, str | None], level_s: float
) -> Iterable[SeenShard]:
    plain = [_seen(each, load.worker_id, leases.get(each.key), level_s) for each in load.shards]
    together_s = _together_s([each for each in plain if each.load.bound in HOST_BINDS])
    for each in plain:
        yield SeenShard(
            each.load,
            each.stream,
            each.worker,
            each.arrives,
            each.backlog,
            _drains_s(each, level_s, together_s),
        )


def _seen(load: ShardLoad, worker: WorkerId, stream: str | None, level_s: float) -> SeenShard:
    behind_s = load.behind_s or 0.0
    speed = load.speed if load.speed is not None and load.speed >= _SLOWEST else 1.0
    if load.bound in _NOT_TOLD:
        speed = max(speed, 1.0)
    arrives = load.in_bytes if speed == 1 else load.out_bytes / speed
    return SeenShard(load, stream, worker, arrives, max(behind_s - level_s, 0.0) * arrives, None)


def _together_s(shards: list[SeenShard]) -> float | None:
    """Of the shards of a host that is used up. They end together: what one no longer needs, the others get."""
    left = sum(each.load.out_bytes - each.arrives for each in shards)
    return sum(each.backlog for each in shards) / left if left > 0 else None


def _drains_s(shard: SeenShard, level_s: float, together_s: float | None) -> float | None:
    late_s = shard.behind_s - level_s
    if shard.load.behind_s is None:
        return None
    if late_s <= 0:
        return 0.0
    if shard.load.bound in HOST_BINDS:
        return None if together_s is None else max(together_s, quickest_s(shard))
    speed = shard.load.speed
    return late_s / (speed - 1) if speed is not None and speed > 1 else None


def quickest_s(shard: SeenShard) -> float:
    return shard.backlog / max(QUOTA_BYTES - shard.arrives, 1.0)


def longest_s(shards: Iterable[SeenShard]) -> float | None:
    longest = 0.0
    for each in shards:
        if each.drains_s is None:
            return None
        longest = max(longest, each.drains_s)
    return longest


def peak(needs: Iterable[float], workers: int) -> float:
    hosts = [0.0] * max(workers, 1)
    for need in sorted(needs, reverse=True):
        heapq.heapreplace(hosts, hosts[0] + need)
    return max(hosts)


def fewest(needs: Sequence[float], target: float, most: int) -> int:
    """Whose CPU stays below `target`; a shard that needs more has a host to itself."""
    target += 1e-9
    usual = sorted((each for each in needs if each <= target), reverse=True)
    alone = len(needs) - len(usual)
    low, high = (1, max(len(usual), 1)) if usual or not alone else (0, 0)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if peak(usual, middle) <= target else (middle + 1, high)
    return max(min(alone + low, most), 1)


def by_stream(shards: Iterable[SeenShard]) -> dict[str | None, list[SeenShard]]:
    found = defaultdict(list)
    for each in shards:
        found[each.stream].append(each)
    return found
