"""Being called away from a wait without losing what was waited for."""

from __future__ import annotations

import anyio

from kcl_daemon.consumer.context import StopReason, StopSignal
from tests.simulator.loop import run_virtual


async def after(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "done"


def test_an_uncalled_wait_gives_its_result() -> None:
    assert run_virtual(lambda: StopSignal().interruptible(lambda: after(1.0))) == "done"


def test_a_call_ends_the_wait_under_way_and_every_later_one() -> None:
    async def play() -> tuple[str | None, float, str | None]:
        stop_signal = StopSignal()
        first: str | None = "not waited for"
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await anyio.sleep(2.0)
                stop_signal.request(StopReason.STOP)

            tasks.start_soon(call)
            first = await stop_signal.interruptible(lambda: after(10.0))
        return first, anyio.current_time(), await stop_signal.interruptible(lambda: after(10.0))

    assert run_virtual(play) == (None, 2.0, None)


def test_a_higher_call_outranks_a_lower_one_and_not_the_other_way() -> None:
    async def play() -> StopReason:
        stop_signal = StopSignal()
        stop_signal.request(StopReason.LEASE_LOST)
        stop_signal.request(StopReason.STOP)
        return await stop_signal.until_stop_requested()

    assert run_virtual(play) is StopReason.LEASE_LOST


def test_a_stir_ends_one_wait_only_even_if_it_came_before() -> None:
    async def play() -> tuple[str | None, str | None]:
        stop_signal = StopSignal()
        stop_signal.wake()
        return await stop_signal.interruptible(lambda: after(1.0)), await stop_signal.interruptible(
            lambda: after(1.0)
        )

    assert run_virtual(play) == (None, "done")


def test_a_result_that_is_ready_when_the_stop_comes_is_not_lost() -> None:
    async def play() -> str | None:
        stop_signal = StopSignal()

        async def ready() -> str:
            stop_signal.request(StopReason.STOP)
            return "taken"

        return await stop_signal.interruptible(ready)

    assert run_virtual(play) == "taken"
