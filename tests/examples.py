"""How many examples a property test draws: a fifth of what is written at it in `make test`, twice as many in `make prove`."""

from __future__ import annotations

from hypothesis import settings

_FEWEST = 10
_USUAL = 100


def examples(number: int) -> int:
    """So many, as the profile of this run has it: the same part that it draws where nothing is written at a test."""
    return max(_FEWEST, number * settings().max_examples // _USUAL)
