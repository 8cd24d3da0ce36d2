"""Lease taking as KCL 2.x does it: every worker helps itself (KCL: DynamoDBLeaseTaker).

Needed while an application comes from 2.x, and when it was rolled back. All workers of such a fleet, Java and ours,
aim at the same number of leases each, so the rules here are KCL's to the letter, its words included: a lease is stolen
from a worker that lives, without asking. Finished leases count like the others, as in KCL.

Java takes the first of those with the most leases in the order of a hash map; here it is the first by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeAlias

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import taking
from kcl_daemon.leases.table import RowUpdate

Pick: TypeAlias = Callable[[int], int]
"""Chance: a number from 0 up to below the one given (1 or more)."""

_VERY_OLD_FAILOVERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingOptions:
    """How leases are taken.

    Args:
        failover_s: a lease that has not moved for longer is free.
        max_leases_for_worker: a worker takes no more than these.
        max_leases_to_steal: of living workers in one run (`maxLeasesToStealAtOneTime`).
        priority: whether leases that have stood still for three fail-over times are taken without regard to the
            target (`enablePriorityLeaseAssignment`).
    """

    failover_s: float = 10.0
    max_leases_for_worker: int = 2**31 - 1
    max_leases_to_steal: int = 1
    priority: bool = True

    @property
    def period_s(self) -> float:
        """From the end of one run to the beginning of the next."""
        return 2 * (self.failover_s + 0.025)


@dataclass(frozen=True, slots=True)
class Sightings:
    """Since when (monotonic seconds) each lease has had its counter, as this worker has seen it.

    A scan that finds a new counter sets the time; a lease that is gone is forgotten. (KCL: DynamoDBLeaseTaker)

    Args:
        counters: counter and time by lease; minus infinity for a lease that nobody owned when it was first seen.
        looked_s: when the last scan began.
        scan_s: how long it took.
    """

    counters: Mapping[LeaseKey, tuple[int, float]] = field(default_factory=dict[LeaseKey, tuple[int, float]])
    looked_s: float = 0.0
    scan_s: float = 0.0

    def look(self, leases: Iterable[Lease], *, began_s: float, ended_s: float) -> Sightings:
        """After a scan that took from `began_s` to `ended_s`; leases that have vanished are forgotten."""
        counters = {lease.lease_key: (lease.lease_counter, self._since_s(lease, ended_s)) for lease in leases}
        return Sightings(counters, began_s, ended_s - began_s)

    def _since_s(self, lease: Lease, now_s: float) -> float:
        before = self.counters.get(lease.lease_key)
        if before is None:
            return -inf if lease.lease_owner is None else now_s
        return before[1] if before[0] == lease.lease_counter else now_s

    def age_s(self, lease: Lease) -> float:
        """For how long the lease has not moved; infinite for one that nobody has owned."""
        return self.looked_s - self.counters[lease.lease_key][1]


@dataclass(frozen=True, slots=True)
class Take:
    """One lease to take, by this write; refused where somebody else was quicker."""

    lease: Lease
    update: RowUpdate
    stolen_from: WorkerId | None
    reason: str


@dataclass(frozen=True, slots=True)
class TakingPlan:
    """What to take in this run, and the figures behind it.

    Args:
        takes: the leases to take.
        read_again: the scan took so long that each stolen lease is to be read again first (`confirmed`).
        target: so many leases each worker should have.
        spill_over: so many above `max_leases_for_worker` it should have.
        workers: those that hold leases, and this one.
        mine: leases this worker holds.
        free: leases that nobody holds.
        very_old: those among them that have stood still for three fail-over times.
    """

    takes: tuple[Take, ...]
    read_again: bool
    target: int
    spill_over: int
    workers: int
    mine: int
    free: int
    very_old: int


def plan_taking(
    me: WorkerId, leases: Sequence[Lease], seen: Sightings, options: TakingOptions, pick: Pick
) -> TakingPlan:
    """Which leases to take now.

    Args:
        me: our worker id.
        leases: all of the table.
        seen: after `look` at these leases.
        options: how leases are taken.
        pick: chance, so that workers that run at the same time do not all want the same leases.
    """
    free = [lease for lease in leases if lease.lease_owner is None or seen.age_s(lease) > options.failover_s]
    held = _held(me, leases, {lease.lease_key for lease in free})
    wanted = 1 if len(held) >= len(leases) else -(-len(leases) // len(held))
    target = min(wanted, options.max_leases_for_worker)
    mine = len(held[me])
    very_old = _very_old(free, seen, options)
    takes = _takes(me, held, free, very_old, target=target, options=options, pick=pick)
    return TakingPlan(
        takes=takes,
        read_again=seen.scan_s > options.failover_s / 6 and any(take.stolen_from for take in takes),
        target=target,
        spill_over=wanted - target,
        workers=len(held),
        mine=mine,
        free=len(free),
        very_old=len(very_old),
    )


def confirmed(take: Take, now: Lease | None, me: WorkerId) -> Take | None:
    """A lease to steal, read again because the scan was slow: with its present counter; None if its owner has changed."""
    if now is None or now.lease_owner != take.stolen_from:
        return None
    return Take(now, taking(now, me), take.stolen_from, take.reason)


def _held(me: WorkerId, leases: Iterable[Lease], free: set[LeaseKey]) -> dict[WorkerId, list[Lease]]:
    held: dict[WorkerId, list[Lease]] = {me: []}
    for lease in leases:
        if lease.lease_owner is not None and lease.lease_key not in free:
            held.setdefault(lease.lease_owner, []).append(lease)
    return held


def _very_old(free: Iterable[Lease], seen: Sightings, options: TakingOptions) -> list[Lease]:
    if not options.priority:
        return []
    oldest_s = _VERY_OLD_FAILOVERS * options.failover_s
    return [lease for lease in free if seen.age_s(lease) > oldest_s]


def _takes(
    me: WorkerId,
    held: Mapping[WorkerId, Sequence[Lease]],
    free: Sequence[Lease],
    very_old: Sequence[Lease],
    *,
    target: int,
    options: TakingOptions,
    pick: Pick,
) -> tuple[Take, ...]:
    mine = len(held[me])
    if very_old:
        room = max(options.max_leases_for_worker - mine, 0)
        return tuple(
            _take(me, lease, "was not renewed for a long time") for lease in _some(very_old, room, pick)
        )
    need = target - mine
    if need <= 0:
        return ()
    if free:
        why = f"is free, this worker has {mine} leases of {target}"
        return tuple(_take(me, lease, why) for lease in _some(free, need, pick))
    return _thefts(me, held, need=need, target=target, options=options, pick=pick)


def _thefts(
    me: WorkerId,
    held: Mapping[WorkerId, Sequence[Lease]],
    *,
    need: int,
    target: int,
    options: TakingOptions,
    pick: Pick,
) -> tuple[Take, ...]:
    others = sorted(worker for worker in held if worker != me)
    if not others:
        return ()
    most = max(others, key=lambda worker: len(held[worker]))
    theirs = len(held[most])
    count = min(need, max(theirs - target, 0))
    if count == 0 and need > 1 and theirs >= target:
        count = 1
    why = f"{most} has {theirs} leases, this worker {target - need}, {target} is the target"
    stolen = _some(held[most], min(count, options.max_leases_to_steal), pick)
    return tuple(Take(lease, taking(lease, me), most, f"{lease.lease_key}: {why}") for lease in stolen)


def _take(me: WorkerId, lease: Lease, why: str) -> Take:
    return Take(lease, taking(lease, me), None, f"{lease.lease_key}: {why}")


def _some(leases: Sequence[Lease], count: int, pick: Pick) -> list[Lease]:
    """So many of them at random; all where there are fewer."""
    left = list(leases)
    chosen: list[Lease] = []
    while left and len(chosen) < count:
        index = pick(len(left))
        left[index], left[-1] = left[-1], left[index]
        chosen.append(left.pop())
    return chosen
