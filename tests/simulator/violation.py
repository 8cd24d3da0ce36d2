"""What a checker raises, and where it is reported."""

from __future__ import annotations

from tests.simulator.loop import current_loop, now


class Violation(Exception):
    """Raised when the fleet did what it must never do, or did not do what it must.

    Args:
        name: which rule, in snake_case; tests and people look for it.
        detail: shard, worker, positions: what is needed to find the cause in the trace.
    """

    def __init__(self, name: str, detail: str, at_s: float | None = None) -> None:
        self.name = name
        self.detail = detail
        self.at_s = now() if at_s is None else at_s
        super().__init__(name, detail, self.at_s)  # what pickling needs, between processes

    def __str__(self) -> str:
        return f"{self.name} at {self.at_s:.3f} s: {self.detail}"


def report(name: str, detail: str) -> None:
    """End the run with this violation.

    It is given to the loop rather than raised where it was seen, because that may be inside production code, which
    could take it for an error of its own.
    """
    current_loop().crash(Violation(name, detail))
