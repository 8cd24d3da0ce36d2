"""The event loop in virtual time."""

from __future__ import annotations

import time  # the machine's clock, to see that nobody waited for it
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from tests.simulator.loop import (
    Deadlock,
    Lane,
    Livelock,
    Promise,
    at_once,
    current_loop,
    now,
    run_virtual,
)
from tests.unit.simulator.helpers import in_lane


def test_a_virtual_day_takes_no_time() -> None:
    async def main() -> float:
        await anyio.sleep(86_400)
        return now()

    began = time.perf_counter()
    assert run_virtual(main) == 86_400
    assert time.perf_counter() - began < 60


def test_anyio_deadlines_follow_virtual_time() -> None:
    async def main() -> tuple[bool, float]:
        with anyio.move_on_after(2.5) as scope:
            await anyio.sleep(100)
        return scope.cancelled_caught, anyio.current_time()

    assert run_virtual(main) == (True, 2.5)


def test_timers_of_the_same_moment_fire_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        for number in range(100):
            current_loop().after(1.0, fired.append, number)
        await anyio.sleep(1.0)
        return fired

    assert run_virtual(main) == list(range(100))


def test_a_wait_that_no_task_can_end_is_a_deadlock() -> None:
    async def main() -> None:
        await anyio.Event().wait()

    with pytest.raises(Deadlock, match="every task waits"):
        run_virtual(main)


def test_spinning_without_the_time_going_on_is_a_livelock() -> None:
    async def main() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    with pytest.raises(Livelock, match="time stands still"):
        run_virtual(main)


def test_cancelled_timers_do_not_hold_the_time_up_or_pile_up() -> None:
    async def main() -> float:
        for _ in range(5_000):
            with anyio.move_on_after(1_000_000):
                await anyio.sleep(0.001)
        assert len(current_loop()._timers) < 2_000
        return now()

    assert run_virtual(main) == pytest.approx(5.0)


def test_an_error_in_a_callback_ends_the_run() -> None:
    def fail() -> None:
        raise ValueError("planned")

    async def main() -> None:
        current_loop().after(1.0, fail)
        await anyio.sleep(10)

    with pytest.raises(ValueError, match="planned"):
        run_virtual(main)


def test_a_crash_ends_the_run_and_the_first_one_counts() -> None:
    async def main() -> None:
        current_loop().crash(ValueError("first"))
        current_loop().crash(ValueError("second"))
        await anyio.sleep(10)

    with pytest.raises(ValueError, match="first"):
        run_virtual(main)


def test_cancellation_reaches_the_tasks_of_a_group_in_the_order_in_which_they_were_started() -> None:
    async def main() -> list[int]:
        ended: list[int] = []

        async def wait(number: int) -> None:
            try:
                with anyio.CancelScope():
                    await anyio.sleep_forever()
            finally:
                ended.append(number)

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(wait, number)
            await anyio.sleep(1)
            group.cancel_scope.cancel()
        return ended

    assert run_virtual(main) == list(range(200))


def test_a_held_lane_stands_still_while_others_go_on_and_catches_up_when_released() -> None:
    async def main() -> tuple[list[float], list[float]]:
        held: list[float] = []
        free: list[float] = []

        async def tick(seen: list[float]) -> None:
            for _ in range(4):
                await anyio.sleep(1)
                seen.append(now())

        limiter = Lane("held")
        in_lane(limiter, lambda: tick(held))
        in_lane(Lane("free"), lambda: tick(free))
        current_loop().after(1.5, limiter.hold)
        current_loop().after(7.25, limiter.release)
        await anyio.sleep(20)
        return held, free

    assert run_virtual(main) == ([1.0, 7.25, 8.25, 9.25], [1.0, 2.0, 3.0, 4.0])


def test_tasks_started_in_a_lane_are_held_with_it() -> None:
    async def main() -> list[float]:
        seen: list[float] = []

        async def inner() -> None:
            await anyio.sleep(1)
            seen.append(now())

        async def outer() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(inner)

        limiter = Lane("held")
        in_lane(limiter, outer)
        current_loop().after(0.5, limiter.hold)
        current_loop().after(5.0, limiter.release)
        await anyio.sleep(10)
        return seen

    assert run_virtual(main) == [5.0]


def test_a_promise_reaches_all_who_wait_also_when_one_of_them_is_cancelled() -> None:
    async def main() -> list[str]:
        promise: Promise[str] = Promise()
        got: list[str] = []

        async def wait(timeout_s: float) -> None:
            with anyio.move_on_after(timeout_s):
                got.append(await promise.wait())

        async with anyio.create_task_group() as group:
            for timeout_s in (0.5, 10.0, 10.0):
                group.start_soon(wait, timeout_s)
            current_loop().after(1.0, promise.resolve, "value")
        promise.resolve("too late")
        got.append(await promise.wait())
        return got

    assert run_virtual(main) == ["value", "value", "value"]


def test_a_failed_promise_raises_in_who_waits() -> None:
    async def main() -> None:
        promise: Promise[str] = Promise()
        current_loop().after(1.0, promise.fail, ValueError("planned"))
        await promise.wait()

    with pytest.raises(ValueError, match="planned"):
        run_virtual(main)


def test_at_once_gives_the_result_of_a_coroutine_that_waits_for_nothing() -> None:
    async def nothing() -> int:
        return 3

    assert at_once(nothing()) == 3


def test_at_once_refuses_a_coroutine_that_waits() -> None:
    async def main() -> None:
        at_once(anyio.sleep(1))

    with pytest.raises(RuntimeError, match="waited"):
        run_virtual(main)


def test_of_two_held_lanes_with_one_name_each_is_released_by_itself() -> None:
    async def main() -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []

        async def late(number: int) -> None:
            await anyio.sleep(4)
            seen.append((number, now()))

        limiters = [Lane("twice"), Lane("twice")]
        for number, limiter in enumerate(limiters):
            in_lane(limiter, partial(late, number))
            current_loop().after(0.5, limiter.hold)
        current_loop().after(2.0, limiters[0].release)
        current_loop().after(7.0, limiters[1].release)
        await anyio.sleep(20)
        return seen

    assert run_virtual(main) == [(0, 4.0), (1, 7.0)]
