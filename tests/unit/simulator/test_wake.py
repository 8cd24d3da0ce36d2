"""Waits that go on at once: woken, cancelled, in a held lane."""

from __future__ import annotations

import anyio
import pytest

from tests.simulator.loop import Lane, Wake, current_loop, now, run_virtual
from tests.unit.simulator.helpers import in_lane


def test_who_waits_goes_on_before_anything_else_that_is_due_then() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        wake = Wake(loop=current_loop())

        async def wait() -> None:
            await wake
            order.append("woken")

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(1.0)
            current_loop().after(1.0, wake.wake)
            current_loop().after(1.0, order.append, "next")
            await anyio.sleep(2.0)
        return order

    assert run_virtual(main) == ["woken", "next"]


def test_to_wake_twice_or_before_anybody_waits_does_no_harm() -> None:
    async def main() -> None:
        wake = Wake(loop=current_loop())
        wake.wake()
        wake.wake()
        await wake

    run_virtual(main)


def test_a_cancelled_wait_ends_its_timer_and_is_not_woken_any_more() -> None:
    async def main() -> tuple[bool, float]:
        wake = Wake(loop=current_loop())
        wake.timer = current_loop().after(5.0, pytest.fail, "the timer of a cancelled wait fired")
        with anyio.move_on_after(1.0) as scope:
            await wake
        wake.wake()
        await anyio.sleep(10.0)
        return scope.cancelled_caught, now()

    assert run_virtual(main) == (True, 11.0)


def test_waits_that_are_left_when_a_run_breaks_off_are_cleared_away() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await current_loop().pause(100.0)
        finally:
            ended.append("cancelled")

    async def main() -> None:
        in_lane(Lane("left"), wait)
        await anyio.sleep(1.0)
        current_loop().crash(RuntimeError("over"))
        await anyio.sleep(1.0)

    with pytest.raises(RuntimeError, match="over"):
        run_virtual(main)
    assert ended == ["cancelled"]


def test_who_waits_in_a_held_lane_goes_on_when_it_is_released() -> None:
    async def main() -> list[float]:
        limiter = Lane("held")
        woken: list[float] = []

        async def wait() -> None:
            await current_loop().pause(1.0)
            woken.append(now())

        in_lane(limiter, wait)
        await anyio.sleep(0.5)
        limiter.hold()
        await anyio.sleep(2.5)
        assert woken == []
        limiter.release()
        await anyio.sleep(1.0)
        return woken

    assert run_virtual(main) == [3.0]


def test_a_pause_of_no_time_lets_others_run() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        current_loop().call_soon(order.append, "other")
        await current_loop().pause(0.0)
        return [*order, "me"]

    assert run_virtual(main) == ["other", "me"]
