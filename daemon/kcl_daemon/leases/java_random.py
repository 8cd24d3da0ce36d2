"""The random numbers, the shuffle and the string order of Java, for decisions that all workers must make alike.

The 2.x election has every worker shuffle the same names with the same seed; who computes it in another language must
come to the same order. Owns the arithmetic only, not what is shuffled. (Definition: java.util.Random,
java.util.Collections.shuffle, java.lang.String.compareTo.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

_Item = TypeVar("_Item")
_Text = TypeVar("_Text", bound=str)

_MULTIPLIER: Final = 0x5DEECE66D
_INCREMENT: Final = 0xB
_MASK_48_BITS: Final = (1 << 48) - 1
_INT_MOST: Final = (1 << 31) - 1


class JavaRandom:
    """The linear congruential generator of 48 bits behind `java.util.Random`."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _MULTIPLIER) & _MASK_48_BITS

    def next_int(self, bound: int) -> int:
        """What `nextInt(bound)` returns next: a number from 0 up to below `bound`.

        Raises ValueError for a bound that is no positive Java int.
        """
        if not 0 < bound <= _INT_MOST:
            raise ValueError(f"bound is {bound}, it must be from 1 to {_INT_MOST}")
        if bound & (bound - 1) == 0:
            return (bound * self._next_31_bits()) >> 31
        while True:
            bits = self._next_31_bits()
            value = bits % bound
            # Java tells by an overflow that these bits belong to the last, incomplete stretch of `bound` numbers.
            if bits - value + bound - 1 <= _INT_MOST:
                return value

    def _next_31_bits(self) -> int:
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK_48_BITS
        return self._state >> 17


def shuffled(items: Sequence[_Item], seed: int) -> list[_Item]:
    """The items as `Collections.shuffle(items, new Random(seed))` would order them."""
    order = list(items)
    chance = JavaRandom(seed)
    for size in range(len(order), 1, -1):
        other = chance.next_int(size)
        order[size - 1], order[other] = order[other], order[size - 1]
    return order


def java_order(texts: Iterable[_Text]) -> list[_Text]:
    """The texts in the order of `String.compareTo`: by UTF-16 code units, so U+1F600 comes before U+FFFD."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))
