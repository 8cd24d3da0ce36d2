"""Called with each record of the stream: `executableName = python3 -m kcl_client.run consumer:handle`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Order:
    """A record. What is not such an order is a dead letter."""

    id: str
    item: str
    amount: float


def handle(order: Order) -> None:
    """What is printed goes to the daemon's log. An exception stops the shard until it has been dealt with."""
    print(f"{order.id}: {order.item} for {order.amount:.2f}")
