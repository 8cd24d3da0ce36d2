"""Assignment by load (KCL: VarianceBasedLeaseAssignmentDecider).

Free leases first; then workers above their fair share by the threshold give leases away, largest first. Unlike in KCL:

- A receiver's own figures decide what a lease costs it, and it must end lighter than the giver was, by half
  the threshold. So the higher load of the two falls with each move, and balancing ends.
- Dampening leaves at least one lease that fits the excess, so a small percentage slows balancing and never ends it.
- A worker keeps its last lease with traffic: without one it shows no figures.
- Leases under a tenth of the average do not move for load.
- An empty worker gets its share of throughput at once: figures come half a minute late.
- Workers on one host report the same CPU, so they share leases by number.
- Each worker is judged by its own most loaded metric.
- A dead owner's lease is always given away.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final, TypeAlias

from kcl_daemon.assignment.load import BalanceOptions, FleetLoad, WorkerLoad, measure_fleet, metric_title
from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, LeaseMove, MoveKind, Queued, Strategy, place_all
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import THROUGHPUT

__all__ = ["BalanceOptions", "by_utilization"]

_MIN_POINTS: Final = 2.0
_MIN_KBPS: Final = 1.0
_MAX_CANDIDATES: Final = 8
# Within the threshold a worker helps only if it is above its share by this part of it.
_HELPING: Final = 0.5

_Queue: TypeAlias = list[Queued[WorkerLoad]]


@dataclass(slots=True)
class _Donor:
    load: WorkerLoad
    leases: list[Lease]
    weights: list[float]


def fill_empty_workers(
    state: FleetLoad, fleet: Fleet, options: BalanceOptions, placed: Collection[LeaseKey]
) -> list[LeaseMove]:
    """From those above their share. `state` follows the moves; `placed` leases are assigned by this plan already."""
    ceiling = 1 + options.threshold
    takers: _Queue = [
        _queued(load, load.weight)
        for load in state.loads.values()
        if not load.leases and not load.is_above_ceiling and load.relative <= ceiling
    ]
    if not takers:
        return []
    givers = _givers(state, fleet, placed, with_traffic_only=False)
    donors = [(-giver.load.weight, name) for name, giver in givers.items()]
    heapify(takers)
    heapify(donors)
    moves: list[LeaseMove] = []
    while takers and donors:
        giver, to = givers[donors[0][1]], takers[0][3]
        index = _largest_fitting_lease(giver, to, state.target_weight)
        if index is None:
            heappop(donors)
            continue
        if not options.has_room_for(to, giver.leases[index], state.scale.kbps(giver.leases[index])):
            heappop(takers)
            continue
        moves.append(_move(state, giver, index, to, "it reads nothing yet, "))
        heapreplace(donors, (-giver.load.weight, giver.load.worker_id))
        heapreplace(takers, _queued(to, to.weight))
    return moves


def _largest_fitting_lease(giver: _Donor, to: WorkerLoad, target_weight: float) -> int | None:
    """The receiver's first need not fit its share."""
    if giver.load.weight <= target_weight or len(giver.leases) < 2 or giver.load.leases < 2:
        return None
    index = bisect_right(giver.weights, target_weight - to.weight) - 1
    if index < 0 and to.leases == 0:
        index = 0
    if index >= 0 and to.weight + giver.weights[index] < giver.load.weight:
        return index
    return None


def even_out(
    state: FleetLoad, fleet: Fleet, options: BalanceOptions, placed: Collection[LeaseKey]
) -> list[LeaseMove]:
    if state.quiet or (state.scale.is_idle and state.scale.measured):
        return []
    low = 1 - options.threshold
    receivers: _Queue = [_queued(load, load.relative) for load in state.loads.values() if load.relative < 1]
    needy = any(
        relative < low and _differs_beyond_noise(load, -1, state) for relative, _, _, load in receivers
    )
    givers = [
        giver
        for giver in _givers(state, fleet, placed, with_traffic_only=True).values()
        if _is_over(giver.load, options, state)
        or (needy and giver.load.relative > 1 + options.threshold * _HELPING)
    ]
    heapify(receivers)
    moves: list[LeaseMove] = []
    for giver in sorted(givers, key=lambda giver: (-_too_much(giver.load), giver.load.worker_id)):
        moves += _relieve(giver, receivers, state, options)
    return moves


def level_lease_counts(
    state: FleetLoad, fleet: Fleet, options: BalanceOptions, placed: Collection[LeaseKey]
) -> list[LeaseMove]:
    """By number on one host. Each move makes two numbers differ less, so it ends."""
    givers = _givers(state, fleet, placed, with_traffic_only=False)
    moves: list[LeaseMove] = []
    for sharing in state.hosts:
        while (
            move := _levelling(state, options, givers, [state.loads[each] for each in sharing])
        ) is not None:
            moves.append(move)
    return moves


def _levelling(
    state: FleetLoad, options: BalanceOptions, givers: dict[WorkerId, _Donor], loads: list[WorkerLoad]
) -> LeaseMove | None:
    to = min(loads, key=lambda load: (load.leases, load.weight, load.worker_id))
    donor = max(loads, key=lambda load: (load.leases, load.weight, load.worker_id))
    giver = givers.get(donor.worker_id)
    if giver is None or donor.leases - to.leases < 2:
        return None
    index = bisect_right(giver.weights, donor.weight - to.weight) - 1
    if index < 0:
        return None
    if not options.has_room_for(to, giver.leases[index], state.scale.kbps(giver.leases[index])):
        return None
    change = f"they share a host, leases {donor.leases} -> {to.leases}"
    return _moved(state, giver, index, to, change)


def _relieve(giver: _Donor, receivers: _Queue, state: FleetLoad, options: BalanceOptions) -> list[LeaseMove]:
    moves: list[LeaseMove] = []
    excess = _too_much(giver.load)
    budget = excess * options.dampening_percentage / 100
    if giver.weights and budget < giver.weights[0] <= excess:
        budget = giver.weights[0]
    # A worker that is not over its share helps only those far below.
    over = _is_over(giver.load, options, state)
    below, ceiling = (1.0, inf) if over else (1 - options.threshold, 1.0)
    index = bisect_right(giver.weights, budget) - 1
    if index < 0 and options.allow_throughput_overshoot:
        index = 0
    asked: _Queue = []
    while index >= 0 and len(giver.leases) > 1 and receivers and receivers[0][0] < below:
        to = receivers[0][3]
        lease, weight = giver.leases[index], giver.weights[index]
        after = to.relative_with(weight)
        limit = min(ceiling, giver.load.relative - options.threshold / 2)
        if after <= limit and options.has_room_for(to, lease, state.scale.kbps(lease)):
            moves.append(_move(state, giver, index, to, ""))
            budget -= weight
            heapreplace(receivers, _queued(to, to.relative))
            index = min(index, bisect_right(giver.weights, budget)) - 1
        elif index > 0:
            index -= 1
        elif len(asked) < _MAX_CANDIDATES:
            asked.append(heappop(receivers))
            index = bisect_right(giver.weights, budget) - 1
            if index < 0 and not moves and options.allow_throughput_overshoot:
                index = 0
        else:
            break
    for each in asked:
        heappush(receivers, each)
    return moves


def _givers(
    state: FleetLoad, fleet: Fleet, placed: Collection[LeaseKey], *, with_traffic_only: bool
) -> dict[WorkerId, _Donor]:
    """Leases in a handoff, or placed by this plan, cannot move."""
    owned: dict[WorkerId, list[tuple[float, LeaseKey, Lease]]] = {}
    for lease in fleet.unfinished:
        owner = lease.lease_owner
        if owner is None or owner not in state.loads or lease.checkpoint_owner is not None:
            continue
        if lease.lease_key not in placed and (not with_traffic_only or state.scale.is_felt(lease)):
            owned.setdefault(owner, []).append((state.scale.weight(lease), lease.lease_key, lease))
    givers: dict[WorkerId, _Donor] = {}
    for owner, leases in owned.items():
        leases.sort(key=lambda each: each[:2])
        givers[owner] = _Donor(
            state.loads[owner], [lease for _, _, lease in leases], [weight for weight, _, _ in leases]
        )
    return givers


def _is_over(load: WorkerLoad, options: BalanceOptions, state: FleetLoad) -> bool:
    beyond = load.relative > 1 + options.threshold and _differs_beyond_noise(load, 1, state)
    return beyond or load.is_above_ceiling


def _differs_beyond_noise(load: WorkerLoad, sign: int, state: FleetLoad) -> bool:
    """Above (1) or below (-1) its share."""
    if load.leading != THROUGHPUT:
        return load.excess_points * sign >= _MIN_POINTS
    return state.scale.is_idle or (load.weight - state.target_weight) * sign >= _MIN_KBPS


def _too_much(load: WorkerLoad) -> float:
    return max(0.0, 1 - 1 / load.relative) * load.weight


def _move(state: FleetLoad, giver: _Donor, index: int, to: WorkerLoad, why: str) -> LeaseMove:
    donor = giver.load
    name = donor.leading if donor.leading in to.values and not why else THROUGHPUT
    if name == THROUGHPUT and state.scale.is_idle:
        change = f"leases {donor.leases} -> {to.leases}"
    else:
        change = f"{metric_title(name)} {donor.describe(name)} -> {to.describe(name)}"
    return _moved(state, giver, index, to, f"{why}{change}")


def _moved(state: FleetLoad, giver: _Donor, index: int, to: WorkerLoad, change: str) -> LeaseMove:
    lease, weight, donor = giver.leases.pop(index), giver.weights.pop(index), giver.load
    reason = f"{lease.lease_key}: {donor.worker_id} -> {to.worker_id}, {change}"
    kbps = state.scale.kbps(lease)
    donor.drop(lease, weight, kbps)
    to.add(lease, weight, kbps)
    return LeaseMove(lease, to.worker_id, reason, MoveKind.HANDOFF)


def _queued(load: WorkerLoad, key: float) -> Queued[WorkerLoad]:
    return key, load.leases, load.worker_id, load


def by_utilization(options: BalanceOptions) -> Strategy:
    def plan(fleet: Fleet) -> AssignmentPlan:
        state = measure_fleet(fleet, alpha=options.ema_alpha)
        moves, unplaced = _place(state, fleet, options)
        if options.balance_this_run:
            placed = frozenset(lease.lease_key for lease in state.waiting)
            # Let the figures of filled workers settle before more moves.
            moves += (
                fill_empty_workers(state, fleet, options, placed)
                or even_out(state, fleet, options, placed)
                or level_lease_counts(state, fleet, options, placed)
            )
        counts = {name: load.leases for name, load in state.loads.items()}
        return AssignmentPlan(tuple(moves), tuple(unplaced), counts)

    return plan


def _place(state: FleetLoad, fleet: Fleet, options: BalanceOptions) -> tuple[list[LeaseMove], list[LeaseKey]]:
    moves, unplaced = place_all(
        sorted(state.waiting, key=lambda lease: _urgency(lease, fleet)),
        state.loads.values(),
        fleet,
        order=lambda load: None if options.is_full(load) else _queued(load, load.relative),
        give=lambda load, lease: load.add(lease, state.scale.weight(lease), state.scale.kbps(lease)),
    )
    return [move for move in moves if not _stays(move.lease, move.to)], unplaced


def _urgency(lease: Lease, fleet: Fleet) -> tuple[bool, float, LeaseKey]:
    age_s = inf if lease.actual_owner is None else fleet.ages_s.get(lease.lease_key, 0.0)
    return lease.actual_owner is not None, -age_s, lease.lease_key


def _stays(lease: Lease, best: str) -> bool:
    """An expired lease stays with a live owner, whose next renewal brings it back; not in a handoff (KCL since 3.4.2)."""
    return lease.lease_owner == best and lease.checkpoint_owner is None
