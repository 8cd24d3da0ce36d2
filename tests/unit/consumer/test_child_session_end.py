"""How a child is ended."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.consumer.child_session import end_child
from tests.simulator.loop import run_virtual
from tests.unit.consumer.puppet import Puppet
from tests.unit.fakes import LoopClock, MemoryLog


def ended(deaf_to: set[str], *, ask: bool = True) -> tuple[list[str], float, int | None]:
    """What it took: the signals, the seconds, the status."""

    async def play() -> tuple[list[str], float, int | None]:
        child = Puppet()
        child.deaf_to = deaf_to
        await end_child(child, clock=LoopClock(), grace_s=5.0, ask=ask, log=MemoryLog())
        return child.signals, anyio.current_time(), child.status

    return run_virtual(play)


@pytest.mark.parametrize(
    ("deaf_to", "signals", "seconds", "status"),
    [
        (set[str](), ["EOF"], 0.0, 0),
        ({"EOF"}, ["EOF", "TERM"], 5.0, -15),
        ({"EOF", "TERM"}, ["EOF", "TERM", "KILL"], 10.0, -9),
    ],
)
def test_each_step_of_ending_a_child_is_tried_for_its_time(
    deaf_to: set[str], signals: list[str], seconds: float, status: int
) -> None:
    assert ended(deaf_to) == (signals, seconds, status)


def test_a_stuck_child_is_not_asked_first() -> None:
    assert ended({"EOF", "TERM"}, ask=False) == (["EOF", "TERM", "KILL"], 5.0, -9)
