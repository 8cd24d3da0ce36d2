"""Assignment by how busy the workers are (KCL: VarianceBasedLeaseAssignmentDecider, WORKER_UTILIZATION_AWARE).

Leases that nobody reads are placed first, those without an owner and then those that wait longest; then, when asked,
load is evened out. It knows values only; `survey` and `load` predict what a lease costs, `balance` picks what moves.

Differs from KCL:
- Workers of equal load are told apart by their number of leases, then by name, so a fresh fleet without figures is
  spread evenly. KCL's heap alternates between two workers then (its keys are NaN).
- A lease whose owner has died is always given away; it stays where it is only with an owner that lives where nobody
  else has room.
- A hand-off that takes too long is ended by the leader (`How.FORCE`); KCL only allows a later plan to do so.
- A lease counts at least a tenth of an average one, so idle shards are not all piled upon one worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import TypeAlias

from kcl_daemon.assignment.balance import even_out, feed_empty, level
from kcl_daemon.assignment.load import Load
from kcl_daemon.assignment.options import BalanceOptions
from kcl_daemon.assignment.plan import Fleet, Move, Plan, Strategy, taking
from kcl_daemon.assignment.survey import Survey, survey
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId

__all__ = ["BalanceOptions", "by_utilization"]

_Room: TypeAlias = tuple[float, int, WorkerId, Load]


def by_utilization(options: BalanceOptions) -> Strategy:
    """The strategy for one run of the leader; cheap to make anew for each run."""
    return _ByUtilization(options)


@dataclass(frozen=True, slots=True)
class _ByUtilization:
    options: BalanceOptions

    def __call__(self, fleet: Fleet) -> Plan:
        state = survey(fleet, alpha=self.options.ema_alpha)
        moves, unplaced = _place(state, fleet, self.options)
        if self.options.balance_this_run:
            placed = frozenset(lease.lease_key for lease in state.waiting)
            fed = feed_empty(state, fleet, self.options, placed)
            # Those that have just been fed may look busy soon; the figures must settle before more is moved.
            moves += (
                fed
                or even_out(state, fleet, self.options, placed)
                or level(state, fleet, self.options, placed)
            )
        return Plan(tuple(moves), tuple(unplaced), {name: load.leases for name, load in state.loads.items()})


def _place(state: Survey, fleet: Fleet, options: BalanceOptions) -> tuple[list[Move], list[LeaseKey]]:
    """Give each waiting lease to the worker with most headroom."""
    moves: list[Move] = []
    unplaced: list[LeaseKey] = []
    best = [(load.relative, load.leases, load.worker_id, load) for load in state.loads.values()]
    heapify(best)
    for lease in sorted(state.waiting, key=lambda lease: _urgency(lease, fleet)):
        _drop_full(best, fleet, options)
        if not best:
            unplaced.append(lease.lease_key)
            continue
        avoided = _avoided(lease, best, fleet, options)
        to = best[0][3]
        to.add(state.scale.weight(lease), state.scale.kbps(lease))
        heapreplace(best, (to.relative, to.leases, to.worker_id, to))
        if avoided is not None:
            heappush(best, avoided)
        if not _stays(lease, to.worker_id):
            moves.append(taking(lease, to.worker_id, fleet))
    return moves, unplaced


def _drop_full(best: list[_Room], fleet: Fleet, options: BalanceOptions) -> None:
    while best and not options.has_room(best[0][3], fleet.max_leases_for_worker):
        heappop(best)


def _avoided(lease: Lease, best: list[_Room], fleet: Fleet, options: BalanceOptions) -> _Room | None:
    """The one who gets a lease only where nobody else has room; to be put back afterwards."""
    if best[0][2] != fleet.unwanted(lease):
        return None
    first = heappop(best)
    _drop_full(best, fleet, options)
    if best:
        return first
    heappush(best, first)
    return None


def _urgency(lease: Lease, fleet: Fleet) -> tuple[bool, float, LeaseKey]:
    age_s = inf if lease.actual_owner is None else fleet.ages_s.get(lease.lease_key, 0.0)
    return lease.actual_owner is not None, -age_s, lease.lease_key


def _stays(lease: Lease, best: str) -> bool:
    """Whether a lease that stands still is left with its owner, which lives: its next renewal brings it back.

    A lease in handoff is never left with its owner: only the leader can end that handoff (as KCL does since 3.4.2).
    """
    return lease.lease_owner == best and lease.checkpoint_owner is None
