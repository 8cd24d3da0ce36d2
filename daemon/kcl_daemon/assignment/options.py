"""What an operator can say about balancing, as values."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from kcl_daemon.assignment.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions:
    """How workers are balanced; the leader's options count for all workers (G7b).

    Args:
        rebalance_threshold_percentage: leases move when a worker is further than this from its fair share.
        dampening_percentage: how much of what a worker has too much leaves it in one run; its figures lag behind.
        allow_throughput_overshoot: whether the smallest lease may move where each lease is more than that.
        max_throughput_per_host_kbps: a worker above it is given nothing more, in KiB per second; balancing does not
            lift one above it. Nothing is taken from a worker because of it.
        ema_alpha: weight of the newer value in the moving average of a worker's figures.
        balance_this_run: whether to balance, or only to place leases that nobody reads. Not twice on the same
            figures: workers report every 30 s, and what has been moved shows only then.
    """

    rebalance_threshold_percentage: float = 10
    dampening_percentage: float = 60
    allow_throughput_overshoot: bool = True
    max_throughput_per_host_kbps: float = inf
    ema_alpha: float = 0.5
    balance_this_run: bool = True

    @property
    def threshold(self) -> float:
        """The threshold as a part of the fair share."""
        return self.rebalance_threshold_percentage / 100

    def has_room(self, load: Load, max_leases: int) -> bool:
        """Whether a worker may be given a lease that nobody reads."""
        return load.leases < max_leases and load.throughput_kbps <= self.max_throughput_per_host_kbps

    def has_room_for(self, load: Load, max_leases: int, throughput_kbps: float) -> bool:
        """Whether a lease may be moved to a worker for balance."""
        return (
            load.leases < max_leases
            and load.throughput_kbps + throughput_kbps <= self.max_throughput_per_host_kbps
        )
