"""What a run costs, in dollars: an estimate before, and a cap that is kept.

List prices of us-east-1 as known in November 2025; other regions cost up to twice as much:
aws.amazon.com/kinesis/data-streams/pricing, aws.amazon.com/dynamodb/pricing/on-demand, aws.amazon.com/fis/pricing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from kcl_prove.parts import BudgetReached, Usage

PRICES_OF: Final = "us-east-1, November 2025"
_MILLION: Final = 1_000_000.0
_BY_THE_HOUR: Final = ("shard_hours", "on_demand_stream_hours", "fan_out_shard_hours")
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Price:
    dollars: float
    unit: str
    per: float = 1.0


PRICES: Final[Mapping[str, Price]] = {
    "shard_hours": Price(0.015, "shard hours"),
    "on_demand_stream_hours": Price(0.04, "hours of on-demand streams"),
    "on_demand_in_gb": Price(0.08, "GB into on-demand streams"),
    "on_demand_out_gb": Price(0.04, "GB out of on-demand streams"),
    "put_units": Price(0.014, "million PUT units of 25 KB", _MILLION),
    "fan_out_shard_hours": Price(0.015, "shard hours of fan-out consumers"),
    "fan_out_gb": Price(0.013, "GB by fan-out"),
    "dynamodb_writes": Price(0.625, "million DynamoDB write units", _MILLION),
    "dynamodb_reads": Price(0.125, "million DynamoDB read units", _MILLION),
    "fis_action_minutes": Price(0.10, "minutes of FIS actions"),
}


@dataclass(frozen=True, slots=True)
class CostItem:
    unit: str
    amount: float
    dollars: float


def cost_items(usage: Usage) -> tuple[CostItem, ...]:
    amounts = [(price, getattr(usage, name) / price.per) for name, price in PRICES.items()]
    return tuple(CostItem(price.unit, each, each * price.dollars) for price, each in amounts if each)


def cost(usage: Usage) -> float:
    return sum(item.dollars for item in cost_items(usage))


def total(usages: Iterable[Usage]) -> Usage:
    return sum(usages, Usage())


class Budget:
    """An hour counts whenever another one begins, until `stopped`. `reached`: what was refused."""

    def __init__(self, most_dollars: float, now_s: Callable[[], float]) -> None:
        self.most_dollars = most_dollars
        self.used = Usage()
        self.reached = ""
        self._now_s = now_s
        self._hourly: list[tuple[float, int, Usage]] = []

    def spend(self, usage: Usage) -> None:
        """BudgetReached, and nothing counted, if it would cost more than allowed."""
        self._count(usage)
        hourly = Usage(**{name: getattr(usage, name) for name in _BY_THE_HOUR})
        if cost(hourly) > 0:
            self._hourly.append((self._now_s(), 1, hourly))

    def hours_begun(self) -> None:
        """Call it now and then. BudgetReached once the next hour would cost too much."""
        for number, (since_s, counted, usage) in enumerate(self._hourly):
            begun = int((self._now_s() - since_s) // _HOUR_S) + 1
            for _ in range(begun - counted):
                self._count(usage)
            self._hourly[number] = (since_s, begun, usage)

    def stopped(self) -> None:
        self._hourly.clear()

    def _count(self, usage: Usage) -> None:
        if any(getattr(usage, each.name) < 0 for each in fields(usage)):
            raise ValueError(f"a usage cannot be negative: {usage}")
        dollars = cost(self.used + usage)
        if dollars > self.most_dollars:
            self.reached = (
                f"the next step would bring the cost to {dollars:.2f} dollars, above --most {self.most_dollars:.2f}; "
                f"{cost(self.used):.2f} dollars are used so far"
            )
            raise BudgetReached(self.reached)
        self.used += usage
