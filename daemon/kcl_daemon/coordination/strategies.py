"""Which rules of assignment a leader goes by.

Owns the choice by settings; the rules are those of `assignment`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kcl_daemon.assignment.count import by_lease_count
from kcl_daemon.assignment.plan import Strategy
from kcl_daemon.assignment.variance import BalanceOptions, by_utilization
from kcl_daemon.config.settings import AssignmentStrategy, Settings


@dataclass(frozen=True, slots=True)
class Strategies:
    """Who should hold what, in two degrees.

    Args:
        place: only gives away what nobody reads; made in every run.
        balance: also evens out; made now and then, because figures lag behind what was moved.
        graceful: whether a lease that moves from a living worker is handed over by it.
    """

    place: Strategy
    balance: Strategy
    graceful: bool = True


def strategies(settings: Settings) -> Strategies:
    """Who should hold what, by the settings of the worker that leads."""
    balance, graceful = settings.balance, settings.leases.graceful_handoff
    if balance.strategy is AssignmentStrategy.LEASE_COUNT_BASED:
        return Strategies(place=by_lease_count, balance=by_lease_count, graceful=graceful)
    options = BalanceOptions(
        rebalance_threshold_percentage=balance.rebalance_threshold_percentage,
        dampening_percentage=balance.dampening_percentage,
        allow_throughput_overshoot=balance.allow_throughput_overshoot,
        max_throughput_per_host_kbps=balance.max_throughput_per_host_kbps,
        ema_alpha=balance.worker_metrics_ema_alpha,
    )
    return Strategies(
        place=by_utilization(replace(options, balance_this_run=False)),
        balance=by_utilization(options),
        graceful=graceful,
    )
