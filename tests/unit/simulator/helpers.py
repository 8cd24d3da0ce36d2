"""What the tests of the simulator share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

import anyio

from tests.simulator.loop import Lane, current_loop, run_virtual
from tests.simulator.violation import Violation

T = TypeVar("T")


def violation_in(action: Callable[[], object]) -> str | None:
    """The name of the violation that an action, run at virtual second 0, reports; None: it reports none."""

    async def main() -> None:
        action()
        await anyio.sleep(0.001)

    return violation_while(main)


def violation_while(main: Callable[[], Coroutine[object, object, None]]) -> str | None:
    """The same of what takes its time."""
    try:
        run_virtual(main)
    except Violation as violation:
        return violation.name
    return None


def in_lane(limiter: Lane, run: Callable[[], Awaitable[None]]) -> None:
    """Run something as a simulated process of its own."""

    async def process() -> None:
        await run()

    current_loop().spawn(limiter, process)
