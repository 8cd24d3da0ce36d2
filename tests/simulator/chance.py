"""All chance of a simulation, grown from one seed.

Owns the streams of random numbers. Each part of the world takes its own stream by name, so that one more draw here
does not change what happens there. Never depends on hash order: the same seed gives the same numbers in every process.
"""

from __future__ import annotations

import random  # noqa: TID251 - the seeded source behind the Randomness port
from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")


class Chance:
    """One stream of random numbers; also the `Randomness` port of one simulated worker."""

    __slots__ = ("_name", "_random", "random")

    def __init__(self, name: str) -> None:
        self._name = name
        self._random = random.Random(name)
        self.random = self._random.random

    def fork(self, name: str) -> Chance:
        """An independent stream, always the same for the same name."""
        return Chance(f"{self._name}/{name}")

    def uniform(self, low: float, high: float) -> float:
        """A number between the two."""
        return low + (high - low) * self.random()

    def token(self) -> str:
        """A UUID as text, the same in every run."""
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def happens(self, probability: float) -> bool:
        """Whether something of that probability happens now."""
        return probability > 0 and self.random() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[int(self.random() * len(items))]

    def sign(self) -> float:
        """1 or -1."""
        return 1.0 if self.random() < 0.5 else -1.0
