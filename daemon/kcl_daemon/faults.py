"""Named places between two writes. In production nothing happens there; the simulator ends or pauses a worker at them."""

from __future__ import annotations

from collections.abc import Callable


def _nothing(_point: str) -> None: ...


_at: Callable[[str], None] = _nothing


def maybe(point: str) -> None:
    """Call it directly after a write that another write follows; `point` names it, such as `after-checkpoint-write`."""
    _at(point)


def inject(at: Callable[[str], None] | None) -> None:
    """For the simulator and tests: call `at` at each point from now on; None: nothing."""
    global _at  # noqa: PLW0603 - one for the process, so that production pays for one call
    _at = at or _nothing
