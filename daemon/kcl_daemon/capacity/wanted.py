"""How many workers are needed, and how fast that may change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kcl_daemon.capacity.figures import Bound, Capacity
from kcl_daemon.capacity.picture import HELD, HOST_BINDS, Picture, SeenShard, fewest, longest_s
from kcl_daemon.capacity.words import clock
from kcl_daemon.text import about, counted

PACE_CPU: Final = 0.7
"""Of the busiest host, if all shards keep pace."""
DRAIN_CPU: Final = 0.9
FALL_CPU: Final = 0.6
"""With one worker fewer."""
TURN_CPU: Final = 0.5
"""As `FALL_CPU`, for the first fall after a rise, as nothing can rise for an hour after it."""
DRAIN_S: Final = 600.0
DRAIN_LEVELS: Final = 5
RAISE_EVERY_MS: Final = 3 * 60_000
"""A new worker starts and takes leases meanwhile."""
FALL_AFTER_MS: Final = 15 * 60_000
TURN_EVERY_MS: Final = 60 * 60_000
QUIET_S: Final = 600.0
_NOTICEABLE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Fields of `Capacity` under their names; `enough` workers would do."""

    wanted: int
    reason: str
    since_ms: int
    enough: int
    falls_since_ms: int | None = None
    rises: bool | None = None
    turned_ms: int = 0


def pace_needs(picture: Picture) -> list[float]:
    """Where all is held back, no other worker helps."""
    if all(each.load.bound in HELD for each in picture.shards):
        return []
    rates = (each.load.out_bytes if each.load.bound in HELD else each.arrives for each in picture.shards)
    return [rate * (picture.host_per_byte or 0.0) for rate in rates]


def drain_target_s(level_s: float) -> float:
    return max(DRAIN_S, DRAIN_LEVELS * level_s)


def _drain_needs(picture: Picture) -> list[float]:
    """If shards that the host holds back are to drain in time, and the others go on as they do."""
    target_s = drain_target_s(picture.targets.level_s)
    per_byte = picture.host_per_byte or 0.0
    return [
        per_byte
        * (each.arrives + each.backlog / target_s if each.load.bound in HOST_BINDS else each.load.out_bytes)
        for each in picture.shards
    ]


def needed(picture: Picture) -> tuple[int, str]:
    """Not damped. Workers without a report are added."""
    most, silent = max(picture.leases, 1), picture.state.silent
    pace = min(fewest(pace_needs(picture), PACE_CPU, most) + silent, most)
    found = pace, f"keeps pace with what comes in at {PACE_CPU:.0%} CPU"
    bound_by_host = [each for each in picture.late if each.load.bound in HOST_BINDS]
    if not bound_by_host:
        return found
    drain = min(fewest(_drain_needs(picture), DRAIN_CPU, most) + silent, most)
    target_s = drain_target_s(picture.targets.level_s)
    if drain > found[0]:
        found = drain, f"the backlog can be done in {about(target_s)}"
    lasts_s = longest_s(bound_by_host)
    is_slow = lasts_s is None or lasts_s > 2 * target_s
    if found[0] <= picture.state.live < most and is_slow and _helps_to_spread(picture, bound_by_host):
        found = picture.state.live + 1, "the CPU of a host is used up, and its shards can be spread"
    return found


def _helps_to_spread(picture: Picture, late: list[SeenShard]) -> bool:
    """Whether a host with a late shard has another shard that takes some of its CPU or memory."""
    if any(each.load.bound is Bound.MEMORY for each in late):
        return True
    hosts = {each.worker for each in late}
    per_byte = picture.host_per_byte or 0.0
    busy = [each.worker for each in picture.shards if each.load.out_bytes * per_byte >= _NOTICEABLE]
    return any(busy.count(host) > 1 for host in hosts)


def decide(picture: Picture, previous: Capacity | None, why: str) -> Wanted:
    """`why`: what holds the application back, in words."""
    before = _before(picture, previous)
    target, reason = _target(picture)
    bounds = {each.load.bound for each in picture.late}
    has_all = picture.state.live >= picture.leases
    if target <= before.wanted and bounds and (has_all or bounds.isdisjoint(HOST_BINDS)):
        reason = why if Bound.UNKNOWN in bounds else f"more workers do not help: {why}"
    before = replace(before, reason=reason, enough=target)
    if target > before.wanted:
        return _raised(picture, before)
    return _fallen(picture, before)


def _before(picture: Picture, previous: Capacity | None) -> Wanted:
    now_ms, most = picture.state.now_ms, max(picture.leases, 1)
    if previous is None:
        return Wanted(max(min(picture.state.live, most), 1), "", now_ms, 1)
    falls_ms = previous.falls_since_ms
    return Wanted(
        min(previous.wanted, most),
        "",
        min(previous.since_ms, now_ms),  # another leader's clock may be ahead
        1,
        None if falls_ms is None else min(falls_ms, now_ms),
        previous.rises,
        min(previous.turned_ms, now_ms),
    )


def _target(picture: Picture) -> tuple[int, str]:
    if picture.targets.scale_to_zero and _is_quiet(picture):
        return 0, f"nothing was finished for {about(QUIET_S)}"
    return needed(picture)


def _is_quiet(picture: Picture) -> bool:
    loads = picture.state.loads
    return bool(loads) and _is_calm(picture) and all(load.quiet_s >= QUIET_S for load in loads)


def _is_calm(picture: Picture) -> bool:
    return (
        picture.has_all_lags
        and not picture.late
        and all(load.cpu is not None for load in picture.state.loads)
        and all(each.load.bound not in HELD for each in picture.shards)
    )


def _raised(picture: Picture, before: Wanted) -> Wanted:
    now_ms = picture.state.now_ms
    before = replace(before, falls_since_ms=None)
    turns = before.rises is False and before.wanted > 0
    wait_ms = RAISE_EVERY_MS - (now_ms - before.since_ms) if before.rises and before.wanted else 0
    if turns:
        wait_ms = TURN_EVERY_MS - (now_ms - before.turned_ms)
    if wait_ms > 0:
        reason = f"{before.enough} would be better, but it was changed at {clock(before.since_ms)}; not before {clock(now_ms + wait_ms)}"
        return replace(before, reason=reason)
    wanted = min(before.enough, 2 * before.wanted + 1)
    turned_ms = now_ms if before.rises is False else before.turned_ms
    return replace(before, wanted=wanted, since_ms=now_ms, rises=True, turned_ms=turned_ms)


def _fallen(picture: Picture, before: Wanted) -> Wanted:
    now_ms = picture.state.now_ms
    to_zero = before.enough == 0 < before.wanted
    if before.wanted and not to_zero:
        before = replace(before, enough=_enough(picture, before))
    if before.enough >= before.wanted:
        return replace(before, falls_since_ms=None)
    since_ms = now_ms if before.falls_since_ms is None else before.falls_since_ms
    sustained_ms = 0 if to_zero else TURN_EVERY_MS if before.rises else FALL_AFTER_MS
    due_ms = max(since_ms + sustained_ms, before.turned_ms + TURN_EVERY_MS if before.turned_ms else 0)
    if now_ms < due_ms:
        reason = f"{counted(before.enough, 'worker')} would be enough; one fewer at {clock(due_ms)}, if that stays so"
        return replace(before, falls_since_ms=since_ms, reason=reason)
    turned_ms = now_ms if before.rises else before.turned_ms
    wanted = 0 if to_zero else before.wanted - 1
    return replace(
        before, wanted=wanted, since_ms=now_ms, falls_since_ms=now_ms, rises=False, turned_ms=turned_ms
    )


def _enough(picture: Picture, before: Wanted) -> int:
    if not _is_calm(picture):
        return before.wanted
    target = TURN_CPU if before.rises else FALL_CPU
    return fewest(pace_needs(picture), target, max(picture.leases, 1))
